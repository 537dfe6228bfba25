/** Times that say how long ago something was, and keep saying it. */

import { h, setText } from "../dom.js";
import { ago, duration, moment } from "../format.js";

/** @type {() => number} */
let serverNow = () => Date.now() / 1000;

/** @param {HTMLElement} element */
function refresh(element) {
  const at = Number(element.dataset.at);
  const now = serverNow();
  setText(element, element.dataset.words === "for" ? `for ${duration(Math.max(0, now - at))}` : ago(at, now));
}

/**
 * @param {HTMLElement} element
 * @param {number} at seconds since 1970 by the server's clock
 */
export function setTime(element, at) {
  if (element.dataset.at !== String(at)) {
    element.dataset.at = String(at);
    element.setAttribute("datetime", new Date(at * 1000).toISOString());
    element.title = moment(at);
  }
  refresh(element);
}

/**
 * @param {number} at
 * @param {"ago"|"for"} [words] "3 min ago", or "for 3 min"
 */
export function timeElement(at, words = "ago") {
  const element = h("time", { "data-words": words, class: "nowrap" });
  setTime(element, at);
  return element;
}

/** @param {() => number} now by the server's clock */
export function startClock(now) {
  serverNow = now;
  setInterval(() => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("time[data-at]")) {
      refresh(/** @type {HTMLElement} */ (element));
    }
  }, 1000);
}
