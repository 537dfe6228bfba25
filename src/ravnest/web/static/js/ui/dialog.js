/** Dialogs: the browser's own element, so that focus, Escape and screen readers work. */

import { h } from "../dom.js";

/**
 * @param {string} title
 * @param {import("../dom.js").Child[]} content
 * @param {{wide?: boolean}} [options]
 */
export function openDialog(title, content, { wide = false } = {}) {
  const element = h(
    "dialog",
    { class: wide ? "dialog wide" : "dialog", "aria-label": title },
    h("div", { class: "dialog-body" }, h("h2", {}, title), content),
  );
  element.addEventListener("close", () => element.remove());
  element.addEventListener("click", (event) => {
    if (event.target === element) element.close(); // the backdrop
  });
  document.body.append(element);
  element.showModal();
  return element;
}

/**
 * Ask before something that cannot be taken back.
 * @param {object} question
 * @param {string} question.title
 * @param {string} question.text what will happen
 * @param {string} question.yes the verb, not "OK"
 * @returns {Promise<boolean>}
 */
export function confirmDialog({ title, text, yes }) {
  return new Promise((resolve) => {
    const no = h("button", { class: "button", type: "button" }, "Cancel");
    const go = h("button", { class: "button danger", type: "button" }, yes);
    const dialog = openDialog(title, [h("p", { class: "soft" }, text), h("div", { class: "dialog-actions" }, no, go)]);
    no.focus();
    no.addEventListener("click", () => dialog.close());
    go.addEventListener("click", () => dialog.close("yes"));
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
  });
}
