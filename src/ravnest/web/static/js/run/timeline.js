/** The pipeline timeline: the last seconds of a run, live or held still to be looked at. */

import { jobPath } from "../api/http.js";
import { h, setAttribute, setProperty, setText } from "../dom.js";
import { duration, percent } from "../format.js";
import { card, choices } from "../ui/parts.js";
import { themeChanges } from "../ui/theme.js";
import { listenTo } from "./gestures.js";
import { AXIS, KINDS, Painter, ROW, kindName } from "./painter.js";
import { KEPT_S, Spans, gapAt, secondsByKind, spanAt, waitShare } from "./spans.js";

/** Reports come about once a second: so far behind, the picture moves without gaps. */
const BEHIND_S = 1.5;
const [SHORTEST_S, LONGEST_S] = [0.2, 40];
const FRAME_MS = 40;
const OVERLAP_S = 3;
const UNTOLD = "Who computes what, second by second, is shown here as soon as machines have told it.";
const AT_WORK = new Set(["running", "paused", "stopping"]);

export class TimelineCard {
  /**
   * @param {import("../types.js").Context} context
   * @param {string} job
   * @param {AbortSignal} closing
   */
  constructor(context, job, closing) {
    this.context = context;
    this.job = job;
    this.closing = closing;
    this.spans = new Spans();
    /** @type {import("./spans.js").Row[]} */
    this.rows = [];
    this.length = 10;
    this.live = true;
    this.end = 0;
    this.visible = false;
    this.fetching = false;
    this.painted = 0;
    this.pause = FRAME_MS;
    this.animating = false;
    this.summedAt = 0;
    this.labelled = "";
    this.working = false;
    this.runNumber = 0;
    /** @type {Map<number, string>} */
    this.names = new Map();

    this.canvas = h("canvas", {
      class: "timeline-canvas",
      hidden: true,
      tabindex: 0,
      role: "img",
      "aria-label": "Timeline of the pipeline. Space holds it, arrow keys move it, plus and minus zoom.",
    });
    this.empty = h("p", { class: "soft small timeline-empty" }, UNTOLD);
    this.painter = new Painter(this.canvas);
    this.labels = h("ol", { class: "timeline-labels" });
    this.tip = h("div", { class: "timeline-tip", hidden: true });
    this.shares = h("ul", { class: "legend timeline-legend" });
    this.hold = h(
      "button",
      { class: "button compact timeline-hold", type: "button", on: { click: () => this.#setLive(!this.live) } },
      "Pause",
    );
    this.zoom = choices(
      "Seconds shown",
      [
        ["2", "2 s"],
        ["5", "5 s"],
        ["10", "10 s"],
        ["20", "20 s"],
      ],
      "10",
      (value) => this.#zoomTo(Number(value)),
    );
    this.element = card("Timeline", {
      tools: [this.zoom.element, this.hold],
      body: h(
        "div",
        { class: "card-body" },
        this.shares,
        h("div", { class: "timeline" }, this.labels, h("div", { class: "timeline-place" }, this.empty, this.canvas, this.tip)),
      ),
    });
    this.element.hidden = true;
    this.watching = new IntersectionObserver(([entry]) => {
      this.visible = Boolean(entry?.isIntersecting);
      if (this.visible) this.#wake();
    });
    this.watching.observe(this.element);
    this.resizing = new ResizeObserver(() => this.#draw());
    this.resizing.observe(this.canvas);
    this.onTheme = () => {
      this.painter.readColours();
      this.#draw();
    };
    themeChanges.addEventListener("change", this.onTheme);
    listenTo(this.canvas, {
      toggle: () => this.#setLive(!this.live),
      move: (share) => this.#move(share * this.length),
      zoom: (factor, around) => this.#zoomTo(this.length * factor, around),
      point: (event) => this.#showTip(event),
      leave: () => (this.tip.hidden = true),
    });
  }

  /**
   * @param {import("../types.js").RunView|null} run
   * @param {import("../types.js").JobView|undefined} job
   */
  setRun(run, job) {
    const before = this.working;
    this.working = Boolean(run && job && AT_WORK.has(job.state));
    this.element.hidden = !this.working && this.rows.length === 0;
    if (this.working && !before && this.visible) this.#wake();
    if (run && run.run !== this.runNumber) {
      this.runNumber = run.run;
      this.spans = new Spans();
    }
    for (const cluster of run?.clusters ?? [])
      for (const one of cluster.stages) this.names.set(one.provider, this.context.store.nameOf(one.provider, one.name));
  }

  /** Something new has been said by the server: there may be new spans. */
  tick() {
    if (this.working && this.live && this.visible && !document.hidden) this.#fetch();
  }

  close() {
    this.watching.disconnect();
    this.resizing.disconnect();
    themeChanges.removeEventListener("change", this.onTheme);
    this.live = false;
  }

  #wake() {
    this.tick();
    this.#draw();
    this.#animate();
  }

  async #fetch() {
    if (this.fetching) return;
    this.fetching = true;
    try {
      const missing = this.context.store.now() - this.spans.ended + OVERLAP_S;
      const seconds = Math.ceil(Math.min(LONGEST_S, missing));
      this.spans.merge(await this.context.http.get(`${jobPath(this.job)}/timeline?seconds=${seconds}`, this.closing));
      this.rows = this.spans.inOrder();
      this.#showLabels();
      this.#draw();
    } catch {
      // The connection's own state is shown above; the next update tries again.
    } finally {
      this.fetching = false;
    }
  }

  #animate() {
    if (this.animating || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    this.animating = true;
    const frame = (/** @type {number} */ time) => {
      if (!this.live || !this.visible || !this.working || this.closing.aborted) {
        this.animating = false;
        return;
      }
      if (time - this.painted >= this.pause) {
        this.painted = time;
        const begin = performance.now();
        this.#draw();
        // A long run of many machines is painted less often, not at the cost of everything else.
        this.pause = Math.max(FRAME_MS, 5 * (performance.now() - begin));
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  #draw() {
    if (!this.rows.length || !this.canvas.clientWidth) return;
    if (this.live) this.end = Math.min(this.context.store.now() - BEHIND_S, this.spans.ended);
    this.painter.draw(this.rows, this.end - this.length, this.end);
    const second = Math.floor(this.end * 2);
    if (second !== this.summedAt || !this.live) this.#sum();
    this.summedAt = second;
  }

  #showLabels() {
    const wanted = JSON.stringify(this.rows.map((row) => [row.provider, this.names.get(row.provider)]));
    if (wanted === this.labelled) return;
    this.labelled = wanted;
    this.canvas.hidden = this.rows.length === 0;
    this.empty.hidden = !this.canvas.hidden;
    this.element.hidden = this.canvas.hidden && !this.working;
    this.labels.replaceChildren(
      ...this.rows.map((row) =>
        h(
          "li",
          {
            class: "timeline-label",
            "data-provider": row.provider,
            title: `cluster ${row.cluster}, stage ${row.stage}`,
          },
          h("span", { class: "timeline-place-name faint" }, `${row.cluster}.${row.stage}`),
          h("span", { class: "timeline-name" }, this.names.get(row.provider) ?? `provider-${row.provider}`),
          h("span", { class: "timeline-wait soft" }),
        ),
      ),
    );
    setProperty(this.labels, "--axis", `${AXIS}px`);
    setProperty(this.labels, "--row", `${ROW}px`);
  }

  /** How the time was spent in what is shown. */
  #sum() {
    const [begin, end] = [this.end - this.length, this.end];
    /** @type {Map<string, number>} */
    const totals = new Map();
    let waits = 0;
    this.rows.forEach((row, index) => {
      const wait = waitShare(row.spans, begin, end);
      const label = this.labels.children[index]?.lastElementChild;
      if (label) setText(label, Number.isFinite(wait) ? `waits ${percent(wait)}` : "");
      waits += Number.isFinite(wait) ? wait : 0;
      for (const [kind, seconds] of secondsByKind(row.spans, begin, end))
        totals.set(kind, (totals.get(kind) ?? 0) + seconds);
    });
    const whole = this.rows.length * this.length;
    const parts = [...new Set([...KINDS, ...totals.keys()])].filter((kind) => totals.has(kind));
    const items = parts.map(
      (kind) => /** @type {[string, string]} */ ([kind, `${kind} ${percent((totals.get(kind) ?? 0) / whole)}`]),
    );
    items.push(["wait", `waiting ${percent(waits / this.rows.length)}`]);
    const shape = items.map(([kind]) => kind).join();
    if (this.shares.dataset.shape !== shape) {
      this.shares.dataset.shape = shape;
      this.shares.replaceChildren(
        ...items.map(([kind]) =>
          h("li", { class: `legend-item kind-${kind === "wait" ? "wait" : kindName(kind)}` }, h("i"), h("span")),
        ),
      );
    }
    items.forEach(([, text], index) => {
      const place = this.shares.children[index]?.lastElementChild;
      if (place) setText(place, text);
    });
  }

  // ---- looking around ----

  /** @param {boolean} live */
  #setLive(live) {
    this.live = live;
    setText(this.hold, live ? "Pause" : "Live");
    setAttribute(this.hold, "aria-pressed", live ? "false" : "true");
    if (live) this.#wake();
  }

  /** @param {number} seconds @param {number} [around] share of the width that stays in place */
  #zoomTo(seconds, around = 1) {
    const length = Math.max(SHORTEST_S, Math.min(LONGEST_S, seconds));
    if (!this.live) this.end += (length - this.length) * (1 - around);
    this.length = length;
    this.zoom.show(/** @type {any} */ (String(length)));
    this.#draw();
  }

  /** @param {number} seconds */
  #move(seconds) {
    this.#setLive(false);
    const earliest = this.spans.ended - KEPT_S + this.length;
    this.end = Math.max(earliest, Math.min(this.spans.ended, this.end + seconds));
    this.#draw();
  }

  /** @param {PointerEvent} event */
  #showTip(event) {
    const row = this.rows[Math.floor((event.offsetY - AXIS) / ROW)];
    this.tip.hidden = !row || event.offsetY < AXIS;
    if (!row) return;
    const at = this.end - this.length + (event.offsetX / this.canvas.clientWidth) * this.length;
    const span = spanAt(row.spans, at);
    const name = this.names.get(row.provider) ?? `provider-${row.provider}`;
    const lines = span ? spanWords(span) : gapWords(gapAt(row.spans, at));
    this.tip.replaceChildren(h("b", {}, name), ...lines.map((line) => h("span", {}, line)));
    const left = Math.min(event.offsetX + 14, this.canvas.clientWidth - 170);
    setProperty(this.tip, "--x", `${Math.max(0, left)}px`);
    setProperty(this.tip, "--y", `${event.offsetY + 16}px`);
  }
}

/** @param {import("../types.js").Span} span */
function spanWords([kind, batch, part, start, end]) {
  return [batch >= 0 ? `${kind}, batch ${batch}, part ${part}` : kind, duration(end - start)];
}

/** @param {{begin: number|null, end: number|null}} gap */
function gapWords({ begin, end }) {
  return begin !== null && end !== null ? ["waiting", duration(end - begin)] : ["nothing computed"];
}
