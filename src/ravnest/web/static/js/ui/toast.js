/** Short messages about what the reader has just done. */

import { h } from "../dom.js";

const SHOWN_MS = 8000;
const place = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

/**
 * @param {string} text
 * @param {"good"|"bad"} [tone]
 */
export function toast(text, tone = "good") {
  if (!place.isConnected) document.body.append(place);
  const element = h("div", { class: `toast tone-${tone}` }, text);
  place.append(element);
  setTimeout(() => element.remove(), SHOWN_MS);
}

/**
 * Do it, and say what came of it.
 * @param {() => Promise<unknown>} action
 * @param {string} done
 * @returns {Promise<boolean>}
 */
export async function attempt(action, done) {
  try {
    await action();
    toast(done);
    return true;
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
    return false;
  }
}
