/** Averaging: for each ring when its rounds were, how long they took, and how they ended. */

import { h, setAttribute, setText, svg } from "../dom.js";
import { bytes, counted, duration, timeOfDay } from "../format.js";
import { badge, setBadge, toneOf } from "../ui/badge.js";
import { setTime, timeElement } from "../ui/clock.js";
import { card } from "../ui/parts.js";

const SHOWN_S = 120;
const STRIP = 300;
const MOST_RINGS = 40;

export class RoundsCard {
  /** @param {import("../store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.list = h("ol", { class: "rings" });
    this.more = h("p", { class: "small faint card-body", hidden: true });
    this.element = card("Averaging rounds", {
      tools: h("span", { class: "small faint" }, "the last two minutes"),
      body: [this.list, this.more],
    });
    this.element.hidden = true;
    /** @type {Map<number, ReturnType<typeof ringRow>>} */
    this.rows = new Map();
    this.shape = "";
  }

  /** @param {import("../types.js").RunView|null} run */
  update(run) {
    this.element.hidden = !run?.rings.length;
    if (!run?.rings.length) return;
    const rings = run.rings.slice(0, MOST_RINGS);
    const shape = JSON.stringify([run.run, rings.map((ring) => ring.id)]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.rows = new Map(rings.map((ring) => [ring.id, ringRow(ring, this.store)]));
      this.list.replaceChildren(...[...this.rows.values()].map((row) => row.element));
      this.more.hidden = run.rings.length <= MOST_RINGS;
      setText(this.more, `and ${counted(run.rings.length - MOST_RINGS, "more ring")}`);
    }
    for (const [id, row] of this.rows)
      row.update(
        run.rounds.filter((round) => round.ring === id),
        this.store.now(),
      );
  }
}

/**
 * @param {import("../types.js").RingView} ring
 * @param {import("../store.js").Store} store
 */
function ringRow(ring, store) {
  const members = ring.providers.map((id) => store.nameOf(id));
  const strip = svg("svg", {
    class: "strip",
    viewBox: `0 0 ${STRIP} 18`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": "Rounds of the last two minutes",
  });
  const last = badge("applied");
  const words = h("span", { class: "small" });
  const when = timeElement(0);
  when.classList.add("small", "faint");
  const line = h("div", { class: "ring-last" }, last, words, when);
  const none = h("div", { class: "ring-last small faint" }, "no round yet");
  return {
    element: h(
      "li",
      { class: "ring-row", "data-ring": ring.id },
      h(
        "div",
        { class: "ring-about" },
        h("b", {}, `Ring ${ring.id}`),
        h(
          "span",
          { class: "small soft ring-members", title: members.join(", ") },
          `${bytes(ring.bytes)} from ${ring.first_parameter}`,
        ),
        h(
          "span",
          { class: "small faint" },
          members.length > 4 ? counted(members.length, "machine") : members.join(" · "),
        ),
      ),
      h("div", { class: "ring-strip" }, strip),
      line,
      none,
    ),
    /**
     * @param {import("../types.js").RoundView[]} rounds
     * @param {number} now
     */
    update(rounds, now) {
      const recent = rounds.filter((round) => round.ended > now - SHOWN_S);
      while (strip.childElementCount < recent.length)
        strip.append(svg("rect", { y: 1, height: 16, rx: 1.5 }, svg("title")));
      while (strip.childElementCount > recent.length) strip.lastElementChild?.remove();
      recent.forEach((round, index) => {
        const rect = /** @type {SVGElement} */ (strip.children[index]);
        const x = ((round.began - now + SHOWN_S) / SHOWN_S) * STRIP;
        setAttribute(rect, "x", x.toFixed(1));
        setAttribute(rect, "width", Math.max(2.5, ((round.ended - round.began) / SHOWN_S) * STRIP).toFixed(1));
        setAttribute(rect, "class", `tone-${toneOf(round.outcome)}`);
        setText(
          /** @type {Element} */ (rect.firstElementChild),
          `round ${round.number} at ${timeOfDay(round.began)}: ${round.outcome}, ${duration(round.ended - round.began)}, ${counted(round.members, "member")}`,
        );
      });
      const latest = rounds.at(-1);
      line.hidden = !latest;
      none.hidden = Boolean(latest);
      if (!latest) return;
      setBadge(last, latest.outcome);
      setText(
        words,
        `round ${latest.number}, ${duration(latest.ended - latest.began)}, ${counted(latest.members, "member")}`,
      );
      setTime(when, latest.ended);
    },
  };
}
