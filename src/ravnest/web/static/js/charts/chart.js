/** One chart: the curves of one metric, drawn by uPlot, with a legend of our own. */

import { h, setText } from "../dom.js";
import { metric as formatMetric, timeOfDay } from "../format.js";
import { colours } from "../ui/theme.js";
import { extent, onAxis, partsOf, smoothed } from "./data.js";

const HEIGHT = 230;
const COLOURS = 8;
const CURVES = Array.from({ length: COLOURS }, (_, index) => `curve-${index}`);

/** @typedef {{axis: import("./data.js").Axis, log: boolean, memory: number}} View */

export class Chart {
  /** @param {string} metric */
  constructor(metric) {
    this.metric = metric;
    this.place = h("div", { class: "chart-place" });
    this.legend = h("ul", { class: "legend" });
    this.element = h(
      "figure",
      { class: "chart", "data-metric": metric },
      h("figcaption", {}, h("h3", {}, titleOf(metric)), this.legend),
      this.place,
    );
    /** @type {any} */
    this.plot = null;
    this.shape = "";
    /** @type {HTMLElement[]} */
    this.values = [];
    this.resizing = new ResizeObserver(() => this.plot?.setSize({ width: this.#width(), height: HEIGHT }));
    this.resizing.observe(this.place);
  }

  /**
   * @param {[key: string, points: import("../types.js").CurvePoint[]][]} curves
   * @param {View} view
   */
  show(curves, view) {
    const { data, smooth } = dataOf(curves, view);
    const shape = JSON.stringify([curves.map(([key]) => key), view.axis, view.log, smooth]);
    if (shape === this.shape) {
      this.plot.setData(data);
    } else {
      this.shape = shape;
      this.#rebuild(
        curves.map(([key]) => key),
        data,
        view,
        smooth,
      );
    }
    this.#showValues();
  }

  /** Colours have changed. */
  repaint() {
    this.shape = "";
  }

  close() {
    this.resizing.disconnect();
    this.plot?.destroy();
  }

  /**
   * @param {string[]} keys
   * @param {any[]} data
   * @param {View} view
   * @param {boolean} smooth
   */
  #rebuild(keys, data, view, smooth) {
    this.plot?.destroy();
    const paint = colours([...CURVES, "line", "text-faint", "surface"]);
    const names = keys.map((key) => labelOf(key, keys));
    const series = keys.flatMap((key, index) => {
      const stroke = paint[colourOf(key, index)];
      const few = {
        show: (/** @type {any} */ u, /** @type {number} */ i) =>
          u.data[i].filter((/** @type {any} */ y) => y != null).length <= 30,
      };
      const main = {
        stroke,
        width: 1.8,
        spanGaps: true,
        points: { ...few, size: 5, fill: stroke },
        dash: key.startsWith("eval/") ? [6, 4] : undefined,
      };
      return smooth ? [{ stroke, width: 1, alpha: 0.22, spanGaps: true, points: { show: false } }, main] : [main];
    });
    this.legend.replaceChildren();
    this.values = keys.map((key, index) => {
      const value = h("b", { class: "legend-value" });
      this.legend.append(
        h(
          "li",
          { class: `legend-item ${colourOf(key, index)}${key.startsWith("eval/") ? " dashed" : ""}` },
          h("i"),
          `${names[index]} `,
          value,
        ),
      );
      return value;
    });
    const grid = { stroke: paint.line, width: 1 };
    const axis = { stroke: paint["text-faint"], grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const uPlot = /** @type {any} */ (window).uPlot;
    this.plot = new uPlot(
      {
        width: this.#width(),
        height: HEIGHT,
        padding: [10, view.axis === "at" ? 28 : 12, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
        scales: {
          x: {
            time: false,
            range: (/** @type {any} */ u, /** @type {number|null} */ min, /** @type {number|null} */ max) =>
              extent(u.data[0], min, max, view.axis),
          },
          y: { distr: view.log ? 3 : 1 },
        },
        axes: [
          {
            ...axis,
            size: 30,
            values: (/** @type {any} */ _, /** @type {number[]} */ at) =>
              at.map((x) => formatX(x, view.axis, (at[1] ?? x) - (at[0] ?? x))),
          },
          {
            ...axis,
            size: 54,
            values: (/** @type {any} */ _, /** @type {number[]} */ at) =>
              at.map((y) => (y === null ? "" : formatY(this.metric, y))),
          },
        ],
        series: [{}, ...series],
        hooks: { setCursor: [() => this.#showValues()] },
      },
      data,
      this.place,
    );
    this.smooth = smooth;
    this.axis = view.axis;
  }

  /** Under the pointer, or the last ones. */
  #showValues() {
    if (!this.plot) return;
    const stride = this.smooth ? 2 : 1;
    const at = this.plot.cursor.idx;
    this.values.forEach((element, index) => {
      const ys = this.plot.data[1 + index * stride + (stride - 1)];
      let place = at ?? ys.length - 1;
      while (place > 0 && ys[place] == null) place -= 1;
      setText(element, formatMetric(this.metric, ys[place] ?? null));
    });
  }

  #width() {
    return Math.max(200, this.place.clientWidth);
  }
}

/**
 * @param {[key: string, points: import("../types.js").CurvePoint[]][]} curves
 * @param {View} view
 */
function dataOf(curves, view) {
  const smooth = view.memory > 0;
  const uPlot = /** @type {any} */ (window).uPlot;
  const tables = curves.map(([key, points]) => {
    const [xs, raw] = onAxis(points, view.axis);
    const ys = view.log ? raw.map((y) => (y !== null && y > 0 ? y : null)) : raw;
    return smooth ? [xs, ys, isSmoothed(key) ? smoothed(ys, view.memory) : ys] : [xs, ys];
  });
  return { data: uPlot.join(tables), smooth };
}

/**
 * Validations are few, and each is a mean already.
 * @param {string} key
 */
const isSmoothed = (key) => partsOf(key).phase !== "eval";

/**
 * Clusters have their colours in all charts; a validation has the colour after the last cluster.
 * @param {string} key
 * @param {number} index
 */
function colourOf(key, index) {
  const { phase, cluster } = partsOf(key);
  return `curve-${(phase === "eval" ? COLOURS - 4 : phase === "train" ? cluster : index) % COLOURS}`;
}

/**
 * @param {string} key
 * @param {string[]} all
 */
function labelOf(key, all) {
  const { phase, cluster, name } = partsOf(key);
  const phases = { train: "training", eval: "validation" };
  const words = phases[/** @type {"train"|"eval"} */ (phase)] ?? name;
  const alone = all.filter((other) => partsOf(other).name === name).length === 1;
  return alone ? words : `${words}, cluster ${cluster}`;
}

/** @param {string} metric */
const titleOf = (metric) => metric.charAt(0).toUpperCase() + metric.slice(1).replaceAll("_", " ");

/**
 * @param {number} x
 * @param {import("./data.js").Axis} axis
 * @param {number} apart to the next one that is written
 */
const formatX = (x, axis, apart) =>
  axis === "at"
    ? timeOfDay(x).slice(0, apart < 60 ? 8 : 5)
    : axis === "epoch"
      ? String(+x.toFixed(2))
      : x >= 10_000
        ? `${+(x / 1000).toFixed(1)}k`
        : String(x);

/**
 * @param {string} metric
 * @param {number} y
 */
const formatY = (metric, y) =>
  /accuracy/i.test(metric) && Math.abs(y) <= 1 ? `${+(y * 100).toFixed(1)} %` : String(+y.toPrecision(3));
