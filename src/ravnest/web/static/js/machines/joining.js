/** How another machine comes into the pool. */

import { h, setText } from "../dom.js";
import { moment } from "../format.js";
import { openDialog } from "../ui/dialog.js";
import { command, empty } from "../ui/parts.js";

/**
 * @param {import("../types.js").Context} context
 * @param {string} token
 */
const joinCommand = (context, token) => `ravnest join ${context.session.server} --token ${token}`;

/**
 * The server's address is not always one that others can reach.
 * @param {import("../types.js").Context} context
 */
function addressHint(context) {
  const name = new URL(context.session.server).hostname;
  return /^(localhost|127\.|\[::1\])/.test(name)
    ? h("p", { class: "small" }, `On another machine, put this machine's name or address in place of ${name}.`)
    : null;
}

/**
 * Shown while there are no machines.
 * @param {import("../types.js").Context} context
 */
export function joinHint(context) {
  const make = context.session.mayMakeTokens
    ? h(
        "button",
        { class: "button primary", type: "button", on: { click: () => addMachineDialog(context) } },
        "Make a join command",
      )
    : h(
        "p",
        { class: "small" },
        "The server printed this command with its token when it started; an operator can make more.",
      );
  return empty(
    "No machines yet",
    h("p", {}, "On each machine that is to help, install Ravnest and run:"),
    command(joinCommand(context, "TOKEN")),
    addressHint(context),
    make,
  );
}

/** @param {import("../types.js").Context} context */
export function addMachineDialog(context) {
  const hours = h("input", { class: "input", type: "number", min: 1, max: 8760, value: 24, required: true });
  const uses = h("input", { class: "input", type: "number", min: 1, max: 100000, value: 1, required: true });
  const problem = h("p", { class: "dialog-problem", role: "alert", hidden: true });
  const result = h("div", { class: "page", hidden: true });
  const submit = h("button", { class: "button primary", type: "submit" }, "Make a join command");
  const close = h("button", { class: "button", type: "button" }, "Close");
  const form = h(
    "form",
    { class: "page" },
    h(
      "p",
      { class: "soft" },
      "A new token lets machines join, and nothing else. Whoever has the command can add a machine to this pool.",
    ),
    h(
      "div",
      { class: "two" },
      h("label", { class: "field" }, h("span", {}, "How many machines"), uses),
      h("label", { class: "field" }, h("span", {}, "For how many hours"), hours),
    ),
    problem,
    result,
    h("div", { class: "dialog-actions" }, close, submit),
  );
  const dialog = openDialog("Add a machine", [form], { wide: true });
  close.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    try {
      const made = await context.http.post("/tokens", {
        role: "provider",
        name: "dashboard",
        hours: Number(hours.value),
        uses: Number(uses.value),
      });
      result.hidden = false;
      result.replaceChildren(
        h("p", {}, "Run this on the machine. It is shown only once."),
        command(joinCommand(context, made.token)),
        addressHint(context) ?? "",
        h("p", { class: "small soft" }, `Good until ${moment(made.expires_at)}.`),
      );
      setText(submit, "Make another");
    } catch (error) {
      problem.hidden = false;
      setText(problem, error instanceof Error ? error.message : String(error));
    }
  });
}
