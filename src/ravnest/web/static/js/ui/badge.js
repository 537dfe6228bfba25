/** States as words with a colour; the same colour means the same everywhere. */

import { h, setText } from "../dom.js";

/** @type {Record<string, string>} */
const TONES = {
  // machines
  idle: "calm",
  ready: "busy",
  training: "good",
  returning: "work",
  resting: "calm",
  away: "calm",
  // both
  preparing: "busy",
  paused: "wait",
  // jobs
  waiting: "wait",
  planning: "busy",
  planned: "busy",
  running: "good",
  stopping: "wait",
  fusing: "work",
  stopped: "calm",
  done: "good",
  failed: "bad",
  // assignments
  assigned: "calm",
  prepared: "busy",
  ended: "calm",
  // events
  info: "calm",
  warning: "wait",
  error: "bad",
  // rounds
  applied: "good",
  "given up": "bad",
  skipped: "calm",
};

const HOLLOW = new Set(["away", "done", "stopped", "resting", "ended"]);

/** @param {string} state */
export const toneOf = (state) => TONES[state] ?? "calm";

/**
 * @param {HTMLElement} badge
 * @param {string} state
 * @param {string} [text]
 */
export function setBadge(badge, state, text = state) {
  const wanted = `badge tone-${toneOf(state)}${HOLLOW.has(state) ? " hollow" : ""}`;
  if (badge.className !== wanted) badge.className = wanted;
  setText(badge, text);
}

/**
 * @param {string} state
 * @param {string} [text]
 */
export function badge(state, text = state) {
  const element = h("span", {});
  setBadge(element, state, text);
  return element;
}
