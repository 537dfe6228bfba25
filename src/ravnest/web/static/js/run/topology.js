/** The run as a drawing: clusters as pipelines, rings between them. Changed in place while it runs. */

import { h, setAttribute, setText, svg } from "../dom.js";
import { digits, metric } from "../format.js";
import { card, empty } from "../ui/parts.js";
import { layoutOf } from "./layout.js";
import { linkLine } from "./linkline.js";
import { stageBox } from "./stagebox.js";

const MOST_CLUSTERS = 12;
const ENDED = new Set(["done", "stopped", "failed"]);
/** @type {Record<string, string>} */
const NO_RUN = {
  waiting:
    "There is no plan yet: the pool cannot hold this model. More machines, or more memory on those that are there, would help.",
  planning: "The server is looking for the best plan.",
  planned: "The plan is ready. Start the job to see its pipelines at work.",
};

export class TopologyCard {
  /** @param {import("../store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.scroll = h("div", {
      class: "topology-scroll",
      tabindex: 0,
      role: "group",
      "aria-label": "Pipelines of the run",
    });
    this.none = empty("No run at present", h("p"));
    this.more = h("button", {
      class: "button quiet jobs-more",
      type: "button",
      hidden: true,
      on: { click: () => this.#showAll() },
    });
    this.element = card("Pipelines", {
      tools: h(
        "ul",
        { class: "legend" },
        h("li", { class: "legend-item key-pipeline" }, h("i"), "activations and gradients"),
        h("li", { class: "legend-item key-ring" }, h("i"), "averaging"),
        h("li", { class: "legend-item key-relay" }, h("i"), "through the relay"),
      ),
      body: [this.scroll, this.more, this.none],
    });
    this.limit = MOST_CLUSTERS;
    this.down = false;
    this.over = false;
    this.shape = "";
    /** @type {import("../types.js").RunView|null} */
    this.run = null;
    /** @type {Map<number, ReturnType<typeof stageBox>>} */
    this.boxes = new Map();
    /** @type {[import("./layout.js").Edge, ReturnType<typeof linkLine>][]} */
    this.lines = [];
    /** @type {Map<number, SVGElement>} */
    this.heads = new Map();
    this.resizing = new ResizeObserver(() => this.#draw());
    this.resizing.observe(this.scroll);
  }

  /**
   * @param {import("../types.js").RunView|null} run
   * @param {import("../types.js").JobView|undefined} job
   */
  update(run, job) {
    this.run = run;
    this.over = ENDED.has(job?.state ?? "");
    setText(/** @type {Element} */ (this.element.querySelector("h2")), this.over ? "Pipelines of the last run" : "Pipelines");
    this.element.hidden = !run && this.over;
    this.none.hidden = Boolean(run);
    this.scroll.hidden = !run;
    setText(
      /** @type {Element} */ (this.none.querySelector("p")),
      NO_RUN[job?.state ?? ""] ?? "Pipelines are shown while a job is at work.",
    );
    this.#draw();
  }

  close() {
    this.resizing.disconnect();
  }

  #showAll() {
    this.limit = Infinity;
    this.#draw();
  }

  #draw() {
    const width = this.scroll.clientWidth;
    if (!this.run || !width) return;
    const all = this.run.clusters;
    const run = { ...this.run, clusters: all.slice(0, this.limit) };
    this.more.hidden = all.length <= this.limit;
    setText(this.more, `Show all ${all.length} clusters`);
    const shape = JSON.stringify([
      width,
      run.run,
      run.clusters.map((cluster) => cluster.stages.map((stage) => stage.provider)),
      run.links.map((link) => [link.kind, link.source, link.target]),
    ]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.#rebuild(run, width);
    }
    for (const cluster of run.clusters) {
      // Where pipelines run down there is room above them for two lines only.
      const loss = cluster.loss === null || this.down ? "" : `loss ${metric("loss", cluster.loss)}`;
      const head = this.heads.get(cluster.id);
      if (head) {
        setText(/** @type {Element} */ (head.children[0]), `Cluster ${cluster.id}`);
        setText(/** @type {Element} */ (head.children[1]), this.over ? "" : `${digits(cluster.samples_per_second)} samples/s`);
        setText(/** @type {Element} */ (head.children[2]), loss);
      }
      for (const stage of cluster.stages) {
        const name = this.store.nameOf(stage.provider, stage.name);
        this.boxes.get(stage.provider)?.update({ ...stage, name }, this.over);
      }
    }
    const links = linksByPair(run.links);
    for (const [edge, line] of this.lines) line.update(links.get(edge.key), this.over);
  }

  /**
   * @param {import("../types.js").RunView} run
   * @param {number} width
   */
  #rebuild(run, width) {
    const layout = layoutOf(run, width);
    this.down = layout.down;
    this.boxes = new Map([...layout.boxes].map(([provider, box]) => [provider, stageBox(box)]));
    this.lines = layout.edges.map((edge) => [edge, linkLine(edge, layout.down)]);
    this.heads = new Map(
      layout.lanes.map(({ id, x, y }) => {
        const name = svg("tspan", { class: "lane-name", x, y });
        const speed = svg("tspan", { class: "lane-facts", x, dy: 16 });
        const loss = svg("tspan", { class: "lane-facts", x, dy: 16 });
        return [id, svg("text", { "data-lane": id }, name, speed, loss)];
      }),
    );
    const picture = svg(
      "svg",
      {
        class: "topology",
        width: layout.width,
        height: layout.height,
        viewBox: `0 0 ${layout.width} ${layout.height}`,
      },
      this.lines.map(([, line]) => line.element),
      [...this.heads.values()],
      [...this.boxes.values()].map((box) => box.element),
    );
    setAttribute(this.scroll, "data-flow", layout.down ? "down" : "right");
    this.scroll.replaceChildren(picture);
  }
}

/**
 * By the key of the edge, also if the link was reported from its other end.
 * @param {import("../types.js").LinkView[]} links
 */
export function linksByPair(links) {
  /** @type {Map<string, import("../types.js").LinkView>} */
  const found = new Map();
  /** @param {string} key @param {import("../types.js").LinkView} link */
  const add = (key, link) => {
    const known = found.get(key);
    found.set(
      key,
      known
        ? {
            ...known,
            forward_bytes_per_s: known.forward_bytes_per_s + link.forward_bytes_per_s,
            backward_bytes_per_s: known.backward_bytes_per_s + link.backward_bytes_per_s,
          }
        : link,
    );
  };
  for (const link of links) {
    add(`${link.kind} ${link.source} ${link.target}`, link);
    const turned = {
      ...link,
      forward_bytes_per_s: link.backward_bytes_per_s,
      backward_bytes_per_s: link.forward_bytes_per_s,
    };
    add(`${link.kind} ${link.target} ${link.source}`, turned);
  }
  return found;
}
