/** What the plan promises, beside what happens. */

import { h, setProperty, setText } from "../dom.js";
import { count, counted, digits, percent } from "../format.js";
import { card } from "../ui/parts.js";

export class PlanCard {
  /** @param {import("../store.js").Store} store */
  constructor(store) {
    this.store = store;
    /** @type {import("../types.js").PlanView|null} */
    this.plan = null;
    this.bars = {
      alone: speedBar("One machine alone", "alone"),
      promised: speedBar("Promised by the plan", "promised"),
      now: speedBar("Now", "now"),
    };
    this.verdict = h("p", { class: "plan-verdict" });
    this.about = h("p", { class: "soft small" });
    this.notes = h("ul", { class: "plan-notes" });
    this.report = h("pre", { tabindex: 0 });
    this.element = card("Plan", {
      class: "plan",
      body: h(
        "div",
        { class: "card-body plan-body" },
        h(
          "div",
          { class: "plan-speeds" },
          Object.values(this.bars).map((one) => one.element),
        ),
        h(
          "div",
          { class: "plan-words" },
          this.verdict,
          this.about,
          this.notes,
          h("details", {}, h("summary", {}, "The whole plan"), this.report),
        ),
      ),
    });
    this.element.hidden = true;
  }

  /**
   * @param {import("../types.js").PlanView|null} plan
   * @param {string} state
   */
  setPlan(plan, state) {
    this.plan = plan;
    this.element.hidden = !plan;
    if (!plan) return;
    setText(
      this.about,
      `${plan.model}: ${count(plan.parameters)} parameters in ${counted(plan.clusters, "cluster")} with ${counted(plan.providers, "machine")}, ${counted(plan.batch_size, "row")} per batch.`,
    );
    const notes = [
      ...plan.warnings.map((text) => h("li", {}, text)),
      ...plan.idle.map(([id, why]) =>
        h("li", {}, h("b", {}, this.store.nameOf(id)), ` is not used: ${why}`),
      ),
    ];
    this.notes.replaceChildren(...notes);
    setText(this.report, plan.report);
    /** @type {HTMLElement} */ (this.report.parentElement).hidden = !plan.report;
    if (state === "planned") /** @type {HTMLDetailsElement} */ (this.report.parentElement).open = true;
  }

  /**
   * @param {import("../types.js").JobView|undefined} job
   * @param {import("../types.js").RunView|null} run
   * @param {number} mean samples/s of a job that has ended; 0 if nobody knows
   */
  update(job, run, mean) {
    if (!this.plan || !job) return;
    const promised = this.plan.steps_per_s * this.plan.batch_size;
    // One machine is not compared with itself.
    const alone = this.plan.providers > 1 ? this.plan.single_machine_steps_per_s * this.plan.batch_size : 0;
    const now = job.state === "running" && run ? job.samples_per_second : mean;
    this.bars.now.call(mean ? "On average" : "Now");
    const most = Math.max(promised, alone, now) || 1;
    this.bars.alone.set(alone, most);
    this.bars.promised.set(promised, most);
    this.bars.now.set(now, most);
    this.bars.now.element.hidden = !now;
    this.bars.alone.element.hidden = !alone;
    const times =
      this.plan.providers === 1
        ? "one machine trains the whole model"
        : alone
          ? `${digits(promised / alone)} times as fast as the fastest machine alone`
          : "no machine could train it alone";
    setText(
      this.verdict,
      now
        ? `${mean ? "On average " : ""}${percent(now / promised)} of what the plan ${mean ? "promised" : "promises"}${alone ? `, ${digits(now / alone)} times one machine` : ""}.`
        : `The plan promises ${digits(promised)} samples/s: ${times}.`,
    );
  }
}

/**
 * @param {string} label
 * @param {string} kind
 */
function speedBar(label, kind) {
  const name = h("span", { class: "speed-label" }, label);
  const value = h("span", { class: "speed-value" });
  const fill = h("i", { class: `speed-fill ${kind}` });
  return {
    element: h(
      "div",
      { class: "speed" },
      name,
      h("span", { class: "speed-track" }, fill),
      value,
    ),
    /** @param {string} label */
    call: (label) => setText(name, label),
    /**
     * @param {number} rate
     * @param {number} most
     */
    set(rate, most) {
      setProperty(fill, "--share", (rate / most).toFixed(3));
      setText(value, `${digits(rate)} samples/s`);
    },
  };
}
