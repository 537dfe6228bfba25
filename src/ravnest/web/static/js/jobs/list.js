/** All jobs in a list: which, how far, how fast. Rows are kept and changed in place. */

import { arrange, h, setText } from "../dom.js";
import { count, digits, metric, passed, percent } from "../format.js";
import { badge, setBadge } from "../ui/badge.js";
import { setTime, timeElement } from "../ui/clock.js";
import { bar, command, empty, jobLink } from "../ui/parts.js";

const ORDER = [
  "running",
  "fusing",
  "stopping",
  "preparing",
  "paused",
  "planning",
  "planned",
  "waiting",
  "failed",
  "stopped",
  "done",
];
const SHOWN = 50;

export class JobList {
  /** @param {import("../store.js").Store} store */
  constructor(store) {
    this.store = store;
    /** @type {Map<string, ReturnType<typeof jobRow>>} */
    this.rows = new Map();
    this.list = h("ul", { class: "jobs" });
    this.none = empty(
      "No jobs yet",
      h("p", {}, "Hand one over from the machine where your model is:"),
      command("ravnest submit --help"),
    );
    this.more = h("button", {
      class: "button quiet jobs-more",
      type: "button",
      hidden: true,
      on: { click: () => this.#showAll() },
    });
    this.limit = SHOWN;
    this.element = h("div", {}, this.list, this.more, this.none);
  }

  update() {
    const jobs = [...this.store.jobs.values()].sort(
      (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || b.submitted_at - a.submitted_at,
    );
    const shown = jobs.slice(0, this.limit);
    const elements = shown.map((job) => {
      let row = this.rows.get(job.id);
      if (!row) this.rows.set(job.id, (row = jobRow(job)));
      row.update(job);
      return row.element;
    });
    for (const id of this.rows.keys()) if (!this.store.jobs.has(id)) this.rows.delete(id);
    arrange(this.list, elements);
    this.none.hidden = jobs.length > 0;
    this.more.hidden = jobs.length <= this.limit;
    setText(this.more, `Show all ${jobs.length} jobs`);
  }

  #showAll() {
    this.limit = Infinity;
    this.update();
  }
}

/** @param {import("../types.js").JobView} first */
function jobRow(first) {
  const name = h("a", { class: "job-name", href: jobLink(first.id) });
  const state = badge(first.state);
  const reason = h("p", { class: "job-reason soft small" });
  const progress = bar("Progress");
  const far = h("span", { class: "small nowrap" });
  const facts = h("span", { class: "small soft" });
  const when = timeElement(first.submitted_at);
  const element = h(
    "li",
    { class: "job", "data-job": first.id },
    h("div", { class: "job-title" }, name, state),
    h("div", { class: "job-progress" }, progress.element, far),
    h("div", { class: "job-facts" }, facts),
    h("div", { class: "job-when small faint" }, when),
    reason,
  );
  /** @type {import("../types.js").JobView|null} */
  let known = null;
  return {
    element,
    /** @param {import("../types.js").JobView} job */
    update(job) {
      if (job === known) return;
      known = job;
      setText(name, job.name);
      setBadge(state, job.state);
      const share = job.epochs ? Math.min(1, job.epoch / job.epochs) : 0;
      const moving = job.state !== "done" && job.state !== "stopped" && job.state !== "failed";
      progress.set(share, moving ? undefined : "calm");
      setText(far, job.run ? `epoch ${passed(job.epoch)} of ${job.epochs} · ${percent(share)}` : "not started");
      setText(facts, factsOf(job).join(" · "));
      setTime(when, job.ended_at ?? job.began_at ?? job.submitted_at);
      setText(reason, job.state === "running" || job.state === "done" ? "" : job.reason);
      reason.hidden = !reason.textContent;
    },
  };
}

/** @param {import("../types.js").JobView} job */
function factsOf(job) {
  const facts = [];
  if (job.state === "running") facts.push(`${digits(job.samples_per_second)} samples/s`);
  if (job.loss !== null) facts.push(`loss ${metric("loss", job.loss)}`);
  for (const [name, value] of Object.entries(job.metrics)) {
    if (!name.endsWith("loss")) facts.push(`${name} ${metric(name, value)}`);
  }
  if (job.parameters) facts.push(`${count(job.parameters)} parameters`);
  facts.push(`by ${job.owner}`);
  return facts;
}
