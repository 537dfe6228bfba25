/** Paints spans on a canvas: one row for each provider, time to the right. */

import { timeOfDay } from "../format.js";
import { colours } from "../ui/theme.js";
import { firstAfter } from "./spans.js";

export const KINDS = ["forward", "backward", "update", "average", "evaluate"];
export const ROW = 30;
export const AXIS = 24;
const BAR = 20;
const STEPS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];

/** @param {string} kind */
export const kindName = (kind) => (KINDS.includes(kind) ? kind : "other");

export class Painter {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.readColours();
  }

  readColours() {
    this.paint = colours([
      ...KINDS.map((kind) => `kind-${kind}`),
      "kind-other",
      "sunken",
      "line",
      "text-faint",
      "surface",
      "text",
    ]);
  }

  /**
   * @param {import("./spans.js").Row[]} rows
   * @param {number} begin
   * @param {number} end
   */
  draw(rows, begin, end) {
    const { canvas, context, paint } = this;
    if (!paint) return;
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = AXIS + rows.length * ROW;
    const [w, hgt] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== hgt) {
      canvas.width = w;
      canvas.height = hgt;
      canvas.style.setProperty("height", `${height}px`);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const scale = width / (end - begin);
    this.#axis(begin, end, scale, height);
    rows.forEach((row, index) => this.#row(row.spans, AXIS + index * ROW + (ROW - BAR) / 2, begin, end, scale, width));
  }

  /** @param {number} begin @param {number} end @param {number} scale @param {number} height */
  #axis(begin, end, scale, height) {
    const { context, paint } = this;
    const step = STEPS.find((one) => one * scale >= 64) ?? 20;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.lineWidth = 1;
    for (let number = Math.ceil(begin / step); number * step <= end; number += 1) {
      const at = number * step;
      const x = Math.round((at - begin) * scale) + 0.5;
      context.strokeStyle = paint?.line ?? "";
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, height);
      context.stroke();
      context.fillStyle = paint?.["text-faint"] ?? "";
      const fraction = step < 1 ? (at % 1).toFixed(2).slice(1).replace(/0$/, "") : "";
      context.fillText(timeOfDay(at + 1e-6) + fraction, x, AXIS / 2 - 1);
    }
  }

  /**
   * @param {import("../types.js").Span[]} spans
   * @param {number} y @param {number} begin @param {number} end @param {number} scale @param {number} width
   */
  #row(spans, y, begin, end, scale, width) {
    const { context, paint } = this;
    if (!paint) return;
    // The ground is what waiting looks like.
    context.fillStyle = paint.sunken ?? "";
    context.fillRect(0, y, width, BAR);
    context.textAlign = "center";
    context.font = "10.5px system-ui, sans-serif";
    for (let index = firstAfter(spans, begin); index < spans.length; index += 1) {
      const [kind, batch, , start, stop] = /** @type {import("../types.js").Span} */ (spans[index]);
      if (start >= end) break;
      const x = (start - begin) * scale;
      const wide = Math.max(0.8, (stop - start) * scale);
      context.fillStyle = paint[`kind-${kindName(kind)}`] ?? "";
      // A hair between neighbours, as long as there is room for it.
      context.fillRect(x, y, wide > 3 ? wide - 0.8 : wide, BAR);
      if (wide > 30 && batch >= 0) {
        context.fillStyle = paint.surface ?? "";
        context.fillText(String(batch), x + wide / 2, y + BAR / 2 + 0.5);
      }
    }
  }
}
