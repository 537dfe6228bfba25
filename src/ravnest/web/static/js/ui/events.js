/** Events in a list, each kept as long as it is shown. */

import { arrange, h } from "../dom.js";
import { badge } from "./badge.js";
import { timeElement } from "./clock.js";
import { jobLink } from "./parts.js";

export class EventList {
  /**
   * @param {import("../store.js").Store} store
   * @param {{withJob?: boolean}} [options]
   */
  constructor(store, { withJob = true } = {}) {
    this.store = store;
    this.withJob = withJob;
    this.list = h("ol", { class: "events" });
    this.none = h("p", { class: "empty" }, "Nothing has happened yet.");
    this.element = h("div", {}, this.list, this.none);
    /** @type {Map<number, HTMLElement>} */
    this.items = new Map();
  }

  /** @param {import("../types.js").EventView[]} events newest first */
  show(events) {
    /** @type {Map<number, HTMLElement>} */
    const items = new Map();
    for (const event of events) items.set(event.number, this.items.get(event.number) ?? this.#item(event));
    this.items = items;
    arrange(this.list, [...items.values()]);
    this.none.hidden = events.length > 0;
  }

  /** @param {import("../types.js").EventView} event */
  #item(event) {
    const time = timeElement(event.at);
    time.classList.add("small", "faint", "event-time");
    const job = this.withJob && event.job ? (this.store.jobs.get(event.job)?.name ?? event.job) : null;
    return h(
      "li",
      { class: `event ${event.level}`, "data-number": event.number },
      time,
      event.level === "info" ? null : badge(event.level),
      h("span", { class: "event-text" }, event.text),
      event.job && job ? h("a", { class: "small event-job", href: jobLink(event.job) }, job) : null,
    );
  }
}
