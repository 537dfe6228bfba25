/** Light or dark: the system's choice, until the reader makes another. */

import { h, setAttribute, setText } from "../dom.js";

const KEY = "ravnest.theme";
const CHOICES = ["auto", "light", "dark"];
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

/** Says "change" when colours are different from now on. */
export const themeChanges = new EventTarget();

/** @returns {"auto"|"light"|"dark"} */
function chosen() {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "auto";
}

function applyTheme() {
  const choice = chosen();
  setAttribute(document.documentElement, "data-theme", choice === "auto" ? null : choice);
  themeChanges.dispatchEvent(new Event("change"));
}

export function themeButton() {
  const sign = h("span", { "aria-hidden": "true" });
  const button = h("button", { class: "button quiet compact", type: "button" }, sign);
  const show = () => {
    const choice = chosen();
    const words = choice === "auto" ? "Colours: as the system" : `Colours: ${choice}`;
    setText(sign, SIGNS[choice]);
    setAttribute(button, "aria-label", words);
    setAttribute(button, "title", words);
  };
  button.addEventListener("click", () => {
    const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length] ?? "auto";
    localStorage.setItem(KEY, next);
    applyTheme();
    show();
  });
  show();
  return button;
}

export function startTheme() {
  applyTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    themeChanges.dispatchEvent(new Event("change")),
  );
}

/**
 * What a colour of the style sheet is now, for canvases.
 * @param {string[]} names
 * @returns {Record<string, string>}
 */
export function colours(names) {
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  /** @type {Record<string, string>} */
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}
