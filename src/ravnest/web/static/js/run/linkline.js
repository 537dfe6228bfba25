/** One link in the drawing of a run: traffic each way, and the path it takes. */

import { setAttribute, setText, svg } from "../dom.js";
import { bytesPerSecond, mbps } from "../format.js";

const QUIET = 100;

/**
 * What a speed looks like: 0 is still, 4 is tens of megabytes each second.
 * @param {number} speed bytes/s
 */
export const paceOf = (speed) => (speed < QUIET ? 0 : Math.max(1, Math.min(4, Math.floor(Math.log10(speed) - 3))));

/**
 * @param {import("./layout.js").Edge} edge
 * @param {boolean} down
 */
export function linkLine(edge, down) {
  return edge.kind === "pipeline" ? pipelineLine(edge, down) : ringLine(edge, down);
}

/** @param {import("./layout.js").Edge} edge @param {boolean} down */
function pipelineLine(edge, down) {
  const { x, y } = edge.middle;
  const forward = svg("path", { class: "flow", d: edge.forward });
  const backward = svg("path", { class: "flow", d: edge.backward });
  const forwardText = down
    ? svg("text", { class: "link-text", x: x + 14, y: y - 13 })
    : svg("text", { class: "link-text", x, y: y - 15, "text-anchor": "middle" });
  const backwardText = down
    ? svg("text", { class: "link-text", x: x - 14, y: y + 21, "text-anchor": "end" })
    : svg("text", { class: "link-text", x, y: y + 24, "text-anchor": "middle" });
  const pill = svg("rect", { x: x - 21, y: y - 8.5, width: 42, height: 17, rx: 8.5 });
  const pillText = svg("text", { class: "pill-text", x, y: y + 4, "text-anchor": "middle" });
  const path = svg("g", { class: "pill" }, pill, pillText);
  const title = svg("title");
  return {
    element: svg(
      "g",
      { class: "link", "data-link": `${edge.source}-${edge.target}` },
      title,
      forward,
      backward,
      path,
      forwardText,
      backwardText,
    ),
    /**
     * @param {import("../types.js").LinkView|undefined} link as seen from the source of the edge
     * @param {boolean} over nothing goes over it any more
     */
    update(link, over) {
      const [there, back] = [link?.forward_bytes_per_s ?? 0, link?.backward_bytes_per_s ?? 0];
      setAttribute(forward, "data-pace", paceOf(there));
      setAttribute(backward, "data-pace", paceOf(back));
      setText(forwardText, over ? "" : `${bytesPerSecond(there)} ${down ? "↓" : "→"}`);
      setText(backwardText, over ? "" : `${down ? "↑" : "←"} ${bytesPerSecond(back)}`);
      const kind = link?.path ?? "unknown";
      for (const part of [path, forward, backward]) setAttribute(part, "data-path", kind);
      setText(pillText, kind);
      path.toggleAttribute("hidden", kind === "unknown");
      const measured = link?.measured_mbps ? `, measured ${mbps(link.measured_mbps)}` : "";
      setText(
        title,
        (kind === "relay" ? "through the server's relay" : kind) +
          (over ? "" : `: ${bytesPerSecond(there)} forward, ${bytesPerSecond(back)} back`) +
          measured,
      );
    },
  };
}

/** @param {import("./layout.js").Edge} edge @param {boolean} down */
function ringLine(edge, down) {
  const line = svg("path", { class: "flow ring", d: edge.forward });
  const text = svg("text", {
    class: "link-text ring-text",
    x: edge.middle.x,
    y: edge.middle.y + 4,
    "text-anchor": "middle",
  });
  const title = svg("title");
  return {
    element: svg("g", { class: "link", "data-link": `${edge.source}-${edge.target}` }, title, line, text),
    /** @param {import("../types.js").LinkView|undefined} link @param {boolean} over */
    update(link, over) {
      const speed = (link?.forward_bytes_per_s ?? 0) + (link?.backward_bytes_per_s ?? 0);
      setAttribute(line, "data-pace", paceOf(speed));
      for (const part of [line, text]) setAttribute(part, "data-path", link?.path ?? "unknown");
      // Between columns there is no room for words.
      setText(text, speed >= QUIET && !down ? bytesPerSecond(speed) : "");
      setText(
        title,
        `averaging${link && link.path !== "unknown" ? `, ${link.path}` : ""}` +
          (over ? "" : `: ${bytesPerSecond(speed)} both ways`),
      );
    },
  };
}
