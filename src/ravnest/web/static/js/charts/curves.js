/** The curves of a job: one chart for each metric, and how they are looked at. */

import { arrange, h, setText } from "../dom.js";
import { card, choices } from "../ui/parts.js";
import { themeChanges } from "../ui/theme.js";
import { Chart } from "./chart.js";
import { Curves } from "./data.js";

const FIRST = ["loss", "accuracy"];

export class CurveCard {
  constructor() {
    this.curves = new Curves();
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    /** @type {import("./chart.js").View} */
    this.view = { axis: "step", log: false, memory: 0.6 };
    this.place = h("div", { class: "charts" });
    this.none = h("p", { class: "empty" }, "Curves appear with the first reports of the run.");
    this.log = h(
      "button",
      { class: "button compact", type: "button", "aria-pressed": "false", on: { click: () => this.#toggleLog() } },
      "Log scale",
    );
    this.memory = h("input", {
      type: "range",
      min: 0,
      max: 0.98,
      step: 0.02,
      value: this.view.memory,
      "aria-label": "Smoothing",
      on: { input: () => this.#smooth() },
    });
    this.memoryText = h("span", { class: "small faint" });
    const axes = choices(
      "Horizontal axis",
      [
        ["step", "Step"],
        ["epoch", "Epoch"],
        ["at", "Time"],
      ],
      "step",
      (axis) => this.#look({ axis }),
    );
    this.element = card("Curves", {
      tools: [
        axes.element,
        this.log,
        h(
          "label",
          { class: "smoothing" },
          h("span", { class: "small soft" }, "Smoothing"),
          this.memory,
          this.memoryText,
        ),
      ],
      body: h("div", {}, this.none, this.place),
    });
    this.onTheme = () => {
      for (const chart of this.charts.values()) chart.repaint();
      this.#show();
    };
    themeChanges.addEventListener("change", this.onTheme);
    this.#smooth();
  }

  /**
   * @param {Record<string, import("../types.js").CurvePoint[]>} points
   * @param {import("../types.js").NewPoint[]} early that have come meanwhile
   */
  replace(points, early) {
    this.curves.replace(points);
    this.curves.add(early);
    this.#show();
  }

  /** @param {import("../types.js").NewPoint[]} fresh */
  add(fresh) {
    this.curves.add(fresh);
    this.#show();
  }

  close() {
    themeChanges.removeEventListener("change", this.onTheme);
    for (const chart of this.charts.values()) chart.close();
  }

  #show() {
    const groups = this.curves.byMetric();
    this.none.hidden = groups.size > 0;
    const rank = (/** @type {string} */ metric) => (FIRST.includes(metric) ? FIRST.indexOf(metric) : FIRST.length);
    const metrics = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    for (const metric of metrics) if (!this.charts.has(metric)) this.charts.set(metric, new Chart(metric));
    // In the page before they are drawn: a chart asks how wide it may be.
    arrange(
      this.place,
      metrics.map((metric) => /** @type {Chart} */ (this.charts.get(metric)).element),
    );
    for (const metric of metrics) {
      const keys = groups.get(metric) ?? [];
      this.charts.get(metric)?.show(
        keys.map((key) => [key, this.curves.points.get(key) ?? []]),
        this.view,
      );
    }
  }

  /** @param {Partial<import("./chart.js").View>} view */
  #look(view) {
    this.view = { ...this.view, ...view };
    this.#show();
  }

  #toggleLog() {
    this.#look({ log: !this.view.log });
    this.log.setAttribute("aria-pressed", String(this.view.log));
  }

  #smooth() {
    const memory = Number(this.memory.value);
    setText(this.memoryText, memory ? memory.toFixed(2) : "none");
    this.#look({ memory });
  }
}
