/** The field for a token, checked with the server before it is kept; and links that stand for one. */

import { refusalOf } from "./api/http.js";
import { h, setText } from "./dom.js";
import { openDialog } from "./ui/dialog.js";
import { toast } from "./ui/toast.js";

/**
 * What `ravnest dashboard` has opened: its link is good once, so it is taken out of the address.
 * @param {import("./api/session.js").Session} session
 */
export async function signInByLink(session) {
  const code = /^#login=([\w-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, "", "#/");
  try {
    const response = await fetch("/login", { method: "POST", body: JSON.stringify({ code }), cache: "no-store" });
    if (!response.ok) throw await refusalOf(response);
    const { server, ...reader } = await response.json();
    session.server = server;
    session.signIn(reader);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
  }
}

/** @param {import("./api/session.js").Session} session */
export function signInDialog(session) {
  const input = h("input", {
    class: "input",
    type: "password",
    name: "token",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "rav1_…",
    required: true,
    "aria-describedby": "token-hint",
  });
  const problem = h("p", { class: "dialog-problem", role: "alert", hidden: true });
  const submit = h("button", { class: "button primary", type: "submit" }, "Sign in");
  const cancel = h("button", { class: "button", type: "button" }, "Cancel");
  const form = h(
    "form",
    { class: "page" },
    h("label", { class: "field" }, h("span", {}, "Token"), input),
    h(
      "p",
      { class: "soft small", id: "token-hint" },
      "An operator token shows controls, a requester token those of its own jobs; a viewer token only lets you look. It stays in this tab, and is forgotten when you close it.",
    ),
    problem,
    h("div", { class: "dialog-actions" }, cancel, submit),
  );
  const dialog = openDialog("Sign in", [form]);
  cancel.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    const token = input.value.trim();
    const { role, name, trouble } = await whois(token);
    submit.disabled = false;
    problem.hidden = !trouble;
    setText(problem, trouble);
    if (trouble) return;
    dialog.close();
    session.signIn({ token, role, name });
  });
}

/**
 * @param {string} token
 * @returns {Promise<{role: string, name: string, trouble: string}>} no trouble if it is one to look with
 */
async function whois(token) {
  const refused = (/** @type {string} */ trouble) => ({ role: "", name: "", trouble });
  if (!token.startsWith("rav1_")) {
    return refused("This is no token: one begins with rav1_. Was it copied completely?");
  }
  try {
    const response = await fetch("/api/v1/whoami", {
      headers: { Authorization: `Bearer ${token}` },
      cache: "no-store",
      signal: AbortSignal.timeout(15_000),
    });
    if (!response.ok) return refused((await refusalOf(response)).message);
    const { role, name } = await response.json();
    return role === "provider"
      ? refused(
          "This token is for machines that join. To look at the pool, ask for a viewer, requester or operator token.",
        )
      : { role, name, trouble: "" };
  } catch {
    return refused("The server does not answer. Try again in a moment.");
  }
}
