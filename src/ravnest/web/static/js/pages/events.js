/** Everything that happened, newest first. */

import { h, setText } from "../dom.js";
import { EventList } from "../ui/events.js";
import { card, choices } from "../ui/parts.js";
import { toast } from "../ui/toast.js";

const PAGE = 100;
/** @type {Record<string, number>} */
const LEVELS = { info: 0, warning: 1, error: 2 };

/**
 * @param {import("../types.js").Context} context
 * @returns {import("../types.js").Page}
 */
export function eventsPage(context) {
  const { store, http } = context;
  const closing = new AbortController();
  let level = "info";
  let limit = PAGE;
  const list = new EventList(store);
  const search = h("input", {
    class: "input event-search",
    type: "search",
    placeholder: "Filter by text",
    "aria-label": "Filter events",
    on: { input: show },
  });
  const more = h("button", { class: "button quiet jobs-more", type: "button" });
  more.addEventListener("click", () => {
    limit += PAGE;
    show();
  });
  const levels = choices(
    "Which events",
    [
      ["info", "All"],
      ["warning", "Warnings"],
      ["error", "Errors"],
    ],
    "info",
    (value) => {
      level = value;
      show();
    },
  );

  function show() {
    const words = search.value.toLowerCase();
    const fitting = store.events
      .filter((event) => (LEVELS[event.level] ?? 0) >= (LEVELS[level] ?? 0) && event.text.toLowerCase().includes(words))
      .reverse();
    list.show(fitting.slice(0, limit));
    setText(list.none, store.events.length ? "No event fits this filter." : "Nothing has happened yet.");
    more.hidden = fitting.length <= limit;
    setText(more, `Show ${Math.min(PAGE, fitting.length - limit)} older ones`);
  }

  async function fetchOlder() {
    try {
      store.addEvents(await http.get("/events", closing.signal));
      show();
    } catch (error) {
      if (!closing.signal.aborted)
        toast(`Older events could not be fetched: ${error instanceof Error ? error.message : error}`, "bad");
    }
  }

  show();
  fetchOlder();
  return {
    title: "Events",
    element: h(
      "div",
      { class: "page" },
      h("h1", { class: "visually-hidden" }, "Events"),
      card("Events", { tools: [levels.element, search], body: [list.element, more] }),
    ),
    update(change) {
      if (change.everything || change.events.length) show();
    },
    close: () => closing.abort(),
  };
}
