/** What surrounds every page: name, navigation, connection, colours, sign-in. */

import { h, setAttribute, setText } from "./dom.js";
import { bytes, bytesPerSecond } from "./format.js";
import { signInDialog } from "./signin.js";
import { setTime, timeElement } from "./ui/clock.js";
import { empty } from "./ui/parts.js";
import { themeButton } from "./ui/theme.js";

export class Frame {
  /**
   * @param {import("./types.js").Context} context
   * @param {() => void} onTryNow
   */
  constructor(context, onTryNow) {
    this.context = context;
    this.connectionText = h("span", { class: "connection-text" }, "connecting…");
    this.connection = h(
      "span",
      { class: "connection", role: "status", "data-state": "connecting" },
      this.connectionText,
    );
    this.bannerText = h("span");
    this.banner = h(
      "div",
      { class: "banner", role: "alert", hidden: true },
      this.bannerText,
      h("button", { class: "button compact", type: "button", on: { click: onTryNow } }, "Try now"),
    );
    this.links = [h("a", { href: "#/" }, "Overview"), h("a", { href: "#/events" }, "Events")];
    this.sign = h("button", { class: "button compact", type: "button", on: { click: () => this.#sign() } });
    this.role = h("span", { class: "badge plain tone-busy role", hidden: true });
    this.main = h("main", { class: "main", id: "main", tabindex: -1 });
    this.footer = h("footer", { class: "footer" });
    this.name = h("span");
    this.since = timeElement(Date.now() / 1000);
    this.relayed = h("span");
    this.noSandbox = h("strong", { class: "no-sandbox", hidden: true });
    const since = h("span", { hidden: true }, "started ", this.since);
    this.footer.append(this.name, since, this.relayed, this.noSandbox);
    document.body.prepend(
      h(
        "a",
        { class: "skip button", href: "#main", on: { click: (/** @type {Event} */ event) => this.#skip(event) } },
        "Skip to content",
      ),
      h(
        "header",
        { class: "header" },
        h(
          "div",
          { class: "header-row" },
          h("a", { class: "brand", href: "#/" }, h("img", { src: "/static/icon.svg", alt: "" }), "Ravnest"),
          h("nav", { class: "nav", "aria-label": "Pages" }, this.links),
          h("div", { class: "header-end" }, this.connection, themeButton(), this.role, this.sign),
        ),
        this.banner,
      ),
      this.main,
      this.footer,
    );
    context.session.addEventListener("change", () => this.#showRole());
    this.#showRole();
    setInterval(() => this.#countDown(), 500);
    /** @type {import("./api/live.js").LiveState} */
    this.state = { kind: "connecting" };
  }

  /** @param {import("./types.js").Page} page */
  show(page) {
    document.title = `${page.title} · Ravnest`;
    this.main.replaceChildren(page.element);
    const events = location.hash.startsWith("#/events");
    setAttribute(/** @type {Element} */ (this.links[0]), "aria-current", events ? null : "page");
    setAttribute(/** @type {Element} */ (this.links[1]), "aria-current", events ? "page" : null);
  }

  toTop() {
    scrollTo(0, 0);
    this.main.focus({ preventScroll: true });
  }

  update() {
    const server = this.context.store.server;
    if (!server) return;
    setText(this.name, `${server.name} · Ravnest ${server.version}`);
    setTime(this.since, server.started_at);
    /** @type {HTMLElement} */ (this.since.parentElement).hidden = false;
    setText(
      this.relayed,
      server.relayed_bytes
        ? `relayed ${bytes(server.relayed_bytes)}, now ${bytesPerSecond(server.relayed_bytes_per_s)}`
        : "",
    );
    this.noSandbox.hidden = !server.no_sandbox;
    setText(this.noSandbox, `this server looks at models without a sandbox: ${server.no_sandbox}`);
  }

  /** @param {import("./api/live.js").LiveState} state */
  showConnection(state) {
    const wasLost = this.state.kind === "lost" || !this.banner.hidden;
    this.state = state;
    setAttribute(this.connection, "data-state", state.kind);
    const words = { connecting: "connecting…", live: "live", lost: "connection lost", refused: "not signed in" };
    setText(this.connectionText, words[state.kind]);
    // While it is being tried again nothing has been won yet.
    this.banner.hidden = !(state.kind === "lost" || (state.kind === "connecting" && wasLost));
    this.#countDown();
    if (state.kind === "connecting" && !this.context.store.server) {
      this.main.replaceChildren(empty("Connecting to the server…"));
    }
    if (state.kind === "lost" && !this.context.store.server) {
      this.main.replaceChildren(empty("The server does not answer", h("p", {}, "This page tries again by itself.")));
    }
    if (state.kind === "refused") this.#showRefusal(state.message);
  }

  /** @param {string} message */
  #showRefusal(message) {
    const button = h(
      "button",
      { class: "button primary", type: "button", on: { click: () => this.#signIn() } },
      "Sign in",
    );
    this.main.replaceChildren(
      empty(
        this.context.session.token ? "This token is not accepted" : "Sign in to see this pool",
        h("p", {}, message),
        h(
          "p",
          { class: "small" },
          "Tokens are made on the server's machine with ",
          h("code", {}, "ravnest token"),
          ". On a machine that has one, ",
          h("code", {}, "ravnest dashboard"),
          " opens this page without asking for it.",
        ),
        button,
      ),
    );
  }

  #countDown() {
    if (!this.state || this.banner.hidden) return;
    const seconds = this.state.kind === "lost" ? Math.ceil((this.state.retryAt - Date.now()) / 1000) : 0;
    const when = seconds > 0 ? `in ${seconds} s` : "now";
    setText(this.bannerText, `Connection lost, trying again ${when}. What you see may be out of date.`);
  }

  #showRole() {
    const { role, name } = this.context.session;
    this.role.hidden = !role;
    setText(this.role, role);
    setAttribute(this.role, "title", name ? `signed in as ${name}` : null);
    setText(this.sign, this.context.session.token ? "Sign out" : "Sign in");
  }

  #sign() {
    if (this.context.session.token) this.context.session.signOut();
    else this.#signIn();
  }

  #signIn() {
    signInDialog(this.context.session);
  }

  /** @param {Event} event */
  #skip(event) {
    event.preventDefault(); // the address after # belongs to the pages
    this.main.focus();
  }
}
