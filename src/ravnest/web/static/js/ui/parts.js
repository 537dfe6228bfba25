/** Small parts that several pages are made of. */

import { h, setAttribute, setProperty, setText } from "../dom.js";

/**
 * A bar that is filled to a share of one.
 * @param {string} label what it measures, for those who do not see it
 */
export function bar(label) {
  const element = h(
    "span",
    { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 },
    h("i"),
  );
  return {
    element,
    /**
     * @param {number} share
     * @param {string} [tone]
     */
    set(share, tone) {
      const within = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
      setProperty(element, "--share", within.toFixed(3));
      setAttribute(element, "aria-valuenow", Math.round(within * 100));
      const wanted = tone ? `bar tone-${tone}` : "bar";
      if (element.className !== wanted) element.className = wanted;
    },
  };
}

/**
 * A figure with its name: what a glance is for.
 * @param {string} label
 */
export function figure(label) {
  const value = h("span", { class: "figure-value" });
  const unit = h("span", { class: "unit" });
  const note = h("span", { class: "figure-note" });
  const element = h(
    "div",
    { class: "figure" },
    h("span", { class: "figure-label" }, label),
    h("span", { class: "figure-line" }, value, " ", unit),
    note,
  );
  return {
    element,
    note,
    /**
     * @param {string} text
     * @param {string} [unitText]
     * @param {string} [noteText]
     */
    set(text, unitText = "", noteText) {
      setText(value, text);
      setText(unit, unitText);
      if (noteText !== undefined) setText(note, noteText);
    },
  };
}

/**
 * One of a few.
 * @template {string} T
 * @param {string} label
 * @param {[value: T, text: string][]} options
 * @param {T} initial
 * @param {(value: T) => void} onChoose
 */
export function choices(label, options, initial, onChoose) {
  const buttons = options.map(([value, text]) =>
    h(
      "button",
      { type: "button", "aria-pressed": value === initial, "data-value": value, on: { click: () => choose(value) } },
      text,
    ),
  );
  /** @param {T} value */
  function show(value) {
    for (const button of buttons)
      setAttribute(button, "aria-pressed", button.dataset.value === value ? "true" : "false");
  }
  /** @param {T} value */
  function choose(value) {
    show(value);
    onChoose(value);
  }
  show(initial);
  return { element: h("div", { class: "choices", role: "group", "aria-label": label }, buttons), show };
}

/**
 * A command to be typed elsewhere.
 * @param {string} text
 */
export function command(text) {
  const button = h("button", { class: "button compact", type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      setText(button, "Copied");
    } catch {
      // No clipboard without HTTPS: select it, the reader copies.
      getSelection()?.selectAllChildren(code);
      setText(button, "Selected");
    }
  });
  const code = h("code", {}, text);
  return h("div", { class: "command" }, h("pre", { tabindex: 0, "aria-label": "command" }, code), button);
}

/**
 * Nothing here yet, and what to do about it.
 * @param {string} title
 * @param {...import("../dom.js").Child} rest
 */
export const empty = (title, ...rest) => h("div", { class: "empty" }, h("strong", {}, title), rest);

/**
 * @param {string} title
 * @param {{tools?: import("../dom.js").Child, body?: import("../dom.js").Child, class?: string}} [parts]
 */
export function card(title, { tools, body, class: name = "" } = {}) {
  return h(
    "section",
    { class: `card ${name}`.trim(), "aria-label": title },
    h("div", { class: "card-head" }, h("h2", {}, title), tools),
    body,
  );
}

/** @param {string} id */
export const jobLink = (id) => `#/jobs/${encodeURIComponent(id)}`;
