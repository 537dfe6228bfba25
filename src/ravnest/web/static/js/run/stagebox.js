/** One stage in the drawing of a run: who has it, what it holds, how busy it is. */

import { setAttribute, setText, svg } from "../dom.js";
import { bytesParts, bytes, count, percent } from "../format.js";
import { toneOf } from "../ui/badge.js";

const PAD = 11;
const measuring = document.createElement("canvas").getContext("2d");

/**
 * @param {string} text
 * @param {number} width
 * @param {string} font
 */
export function fitted(text, width, font) {
  if (!measuring) return text;
  measuring.font = font;
  if (measuring.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && measuring.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

/** @param {import("./layout.js").Box} box */
export function stageBox(box) {
  const inner = box.width - 2 * PAD;
  const title = svg("title");
  const name = svg("text", { class: "stage-name", x: PAD, y: 21 });
  const dot = svg("circle", { cx: box.width - PAD - 4, cy: 17, r: 4 });
  const about = svg("text", { class: "stage-about", x: PAD, y: 37 });
  const narrow = inner < 140;
  const memory = meter(narrow ? "Mem." : "Memory", 55, inner);
  const busy = meter("Busy", 80, inner);
  const element = svg(
    "g",
    { class: "stage", tabindex: 0, role: "img", transform: `translate(${box.x} ${box.y})` },
    title,
    svg("rect", { class: "stage-box", width: box.width, height: box.height, rx: 9 }),
    name,
    dot,
    about,
    memory.element,
    busy.element,
  );
  return {
    element,
    /**
     * @param {import("../types.js").StageView} stage
     * @param {boolean} over it has worked, and does not any more
     */
    update(stage, over) {
      setAttribute(element, "data-stage", `${stage.provider}`);
      setText(name, fitted(stage.name, inner - 16, "600 13px system-ui, sans-serif"));
      setAttribute(dot, "class", `stage-dot tone-${toneOf(stage.state)}`);
      setText(
        about,
        fitted(
          narrow
            ? `${stage.role} ${stage.stage} · ${count(stage.parameters)} par.`
            : `${stage.role} · stage ${stage.stage} · ${count(stage.parameters)} par.`,
          inner,
          "11px system-ui, sans-serif",
        ),
      );
      const share = stage.memory_bytes ? stage.memory_used_bytes / stage.memory_bytes : 0;
      memory.set(share, sizes(stage.memory_used_bytes, stage.memory_bytes), share > 1.05 ? "bad" : "busy");
      busy.set(over ? 0 : stage.busy, over ? "–" : percent(stage.busy), "good");
      const words =
        `${stage.name}: ${stage.role}, stage ${stage.stage}, ${count(stage.parameters)} parameters\n` +
        `${stage.state || "planned"}${over ? "" : `, busy ${percent(stage.busy)}, ${stage.in_flight} in flight`}, staleness ${stage.staleness.toFixed(1)}\n` +
        `memory ${bytes(stage.memory_used_bytes)}, predicted ${bytes(stage.memory_bytes)}`;
      setText(title, words);
      setAttribute(element, "aria-label", words);
    },
  };
}

/** @param {number} used @param {number} predicted */
function sizes(used, predicted) {
  const [a, b] = [bytesParts(used), bytesParts(predicted)];
  if (!used) return `${b.text} ${b.unit}`;
  return a.unit === b.unit ? `${a.text} / ${b.text} ${b.unit}` : `${a.text} ${a.unit} / ${b.text} ${b.unit}`;
}

/** @param {string} label @param {number} y @param {number} width */
function meter(label, y, width) {
  const value = svg("text", { class: "stage-value", x: PAD + width, y, "text-anchor": "end" });
  const fill = svg("rect", { x: PAD, y: y + 5, height: 4, rx: 2, width: 0 });
  return {
    element: svg(
      "g",
      {},
      svg("text", { class: "stage-label", x: PAD, y }, label),
      value,
      svg("rect", { class: "stage-track", x: PAD, y: y + 5, width, height: 4, rx: 2 }),
      fill,
    ),
    /** @param {number} share @param {string} text @param {string} tone */
    set(share, text, tone) {
      setText(value, text);
      setAttribute(fill, "width", (Math.max(0, Math.min(1, share)) * width).toFixed(1));
      setAttribute(fill, "class", `stage-fill tone-${tone}`);
    },
  };
}
