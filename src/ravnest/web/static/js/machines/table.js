/**
 * All machines as a table that can be sorted and filtered. Only one page of rows exists at a time,
 * and an update touches only the rows whose machine has changed: a pool of thousands stays light.
 */

import { arrange, h, setAttribute, setProperty, setText } from "../dom.js";
import { counted, whole } from "../format.js";
import { toneOf } from "../ui/badge.js";
import { arrangeMachines, countStates } from "./order.js";
import { machineRow } from "./row.js";

const PAGE = 25;
/** @type {[column: string, title: string, kind: string][]} */
const COLUMNS = [
  ["name", "Machine", ""],
  ["state", "State", ""],
  ["device", "Device", ""],
  ["memory", "Memory", ""],
  ["speed", "Compute", "number"],
  ["network", "Up / down", "number"],
  ["delay", "Delay", "number"],
  ["work", "At work on", ""],
];
const LARGEST_FIRST = new Set(["memory", "speed", "network"]);

export class MachineTable {
  /**
   * @param {import("../store.js").Store} store
   * @param {(id: number) => void} onOpen
   */
  constructor(store, onOpen) {
    this.store = store;
    this.onOpen = onOpen;
    /** @type {import("./order.js").Order} */
    this.order = { column: "state", down: false };
    this.filter = { text: "", state: "" };
    this.first = 0;
    /** @type {Map<number, ReturnType<typeof machineRow>>} */
    this.rows = new Map();

    this.search = h("input", {
      class: "input machine-search",
      type: "search",
      placeholder: "Filter by name, device, job",
      "aria-label": "Filter machines",
      on: { input: () => this.#filterBy({ text: this.search.value }) },
    });
    this.sorter = this.#makeSorter();
    this.tools = h("div", { class: "machine-tools" }, this.search, this.sorter);
    this.states = h("div", { class: "states" });
    this.heads = COLUMNS.map(([column, title, kind]) =>
      h(
        "th",
        { scope: "col", class: kind, "data-column": column },
        h("button", { class: "sort", type: "button", on: { click: () => this.#sortBy(column) } }, title),
      ),
    );
    this.body = h("tbody");
    this.none = h("p", { class: "empty", hidden: true }, "No machine fits this filter.");
    this.position = h("span", { class: "soft small" });
    this.back = h(
      "button",
      { class: "button compact", type: "button", on: { click: () => this.#turn(-PAGE) } },
      "Previous",
    );
    this.forth = h(
      "button",
      { class: "button compact", type: "button", on: { click: () => this.#turn(PAGE) } },
      "Next",
    );
    this.pager = h("nav", { class: "pager", "aria-label": "Pages of machines" }, this.position, this.back, this.forth);
    this.element = h(
      "div",
      {},
      this.states,
      h(
        "table",
        { class: "table machines" },
        h("caption", { class: "visually-hidden" }, "Machines of the pool"),
        h("thead", {}, h("tr", {}, this.heads)),
        this.body,
      ),
      this.none,
      this.pager,
    );
    this.#showOrder();
  }

  update() {
    this.#showStates();
    const all = arrangeMachines(this.store.providers.values(), this.filter, this.order);
    this.first = Math.max(0, Math.min(this.first, Math.floor((all.length - 1) / PAGE) * PAGE));
    const shown = all.slice(this.first, this.first + PAGE);
    /** @type {Map<number, ReturnType<typeof machineRow>>} */
    const rows = new Map();
    for (const view of shown) {
      const row = this.rows.get(view.id) ?? machineRow(view, this.onOpen, this.store);
      row.update(view);
      rows.set(view.id, row);
    }
    this.rows = rows;
    arrange(
      this.body,
      [...rows.values()].map((row) => row.element),
    );
    this.none.hidden = all.length > 0;
    this.pager.hidden = all.length <= PAGE;
    setText(
      this.position,
      `${whole(this.first + 1)} to ${whole(this.first + shown.length)} of ${counted(all.length, "machine")}`,
    );
    this.back.disabled = this.first === 0;
    this.forth.disabled = this.first + PAGE >= all.length;
  }

  /** On a phone there are no column heads. */
  #makeSorter() {
    const select = h(
      "select",
      { class: "input machine-sorter", "aria-label": "Sort machines by" },
      COLUMNS.map(([column, title]) => h("option", { value: column }, `By ${title.toLowerCase()}`)),
    );
    select.addEventListener("change", () => this.#sortBy(select.value));
    return select;
  }

  #showStates() {
    const counts = countStates(this.store.providers.values());
    const known = counts.map(([state]) => state).join();
    if (this.states.dataset.known !== known) {
      this.states.dataset.known = known;
      const parts = counts.map(([state]) =>
        h("i", { class: `tone-${toneOf(state)}${state === "away" ? " away" : ""}`, "data-state": state }),
      );
      const buttons = counts.map(([state]) =>
        h(
          "button",
          {
            type: "button",
            class: `state-filter tone-${toneOf(state)}`,
            "data-state": state,
            on: { click: () => this.#toggleState(state) },
          },
          h("i", { class: state === "away" ? "away" : "" }),
          h("b"),
          ` ${state}`,
        ),
      );
      this.states.replaceChildren(
        h("div", { class: "state-bar", "aria-hidden": "true" }, parts),
        h("div", { class: "state-filters", role: "group", "aria-label": "Show only machines that are" }, buttons),
      );
    }
    for (const [state, number] of counts) {
      const part = /** @type {HTMLElement} */ (this.states.querySelector(`.state-bar [data-state="${state}"]`));
      const button = /** @type {HTMLElement} */ (this.states.querySelector(`.state-filter[data-state="${state}"]`));
      setProperty(part, "--part", number);
      setText(/** @type {Element} */ (button.querySelector("b")), whole(number));
      setAttribute(button, "aria-pressed", this.filter.state === state ? "true" : "false");
    }
  }

  /** @param {string} state */
  #toggleState(state) {
    this.#filterBy({ state: this.filter.state === state ? "" : state });
  }

  /** @param {Partial<{text: string, state: string}>} filter */
  #filterBy(filter) {
    this.filter = { ...this.filter, ...filter };
    this.first = 0;
    this.update();
  }

  /** @param {string} column */
  #sortBy(column) {
    const down = this.order.column === column ? !this.order.down : LARGEST_FIRST.has(column);
    this.order = { column, down };
    this.first = 0;
    this.#showOrder();
    this.update();
  }

  #showOrder() {
    this.sorter.value = this.order.column;
    for (const head of this.heads) {
      const here = head.dataset.column === this.order.column;
      setAttribute(head, "aria-sort", here ? (this.order.down ? "descending" : "ascending") : null);
    }
  }

  /** @param {number} rows */
  #turn(rows) {
    this.first += rows;
    this.update();
  }
}
