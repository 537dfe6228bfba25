/** The top of a job's page: what it is, how it stands, how far it is, what may be done. */

import { h, setText } from "../dom.js";
import { count, counted, digits, duration, metric, passed, percent, whole } from "../format.js";
import { badge, setBadge } from "../ui/badge.js";
import { timeElement } from "../ui/clock.js";
import { bar, figure } from "../ui/parts.js";
import { jobControls } from "./controls.js";
import { resultParts } from "./result.js";

export class JobHead {
  /**
   * @param {import("../types.js").Context} context
   * @param {string} id
   */
  constructor(context, id) {
    this.context = context;
    this.id = id;
    this.name = h("h1");
    this.state = badge("waiting");
    this.controls = h("div", { class: "job-controls" });
    this.facts = h("p", { class: "soft small job-about" });
    this.reason = h("p", { class: "job-why" });
    this.result = h("div", { class: "job-result" });
    this.progress = bar("Progress of the training");
    this.far = figure("Epoch");
    this.step = figure("Step");
    this.rate = figure("Speed");
    this.loss = figure("Loss");
    this.metric = figure("Last validation");
    this.left = figure("Time left");
    const figures = [this.far, this.step, this.rate, this.loss, this.metric, this.left];
    this.element = h(
      "section",
      { class: "card job-head", "aria-label": "Job" },
      h("div", { class: "job-top" }, h("div", { class: "page-title" }, this.name, this.state), this.controls),
      this.facts,
      this.reason,
      this.result,
      h("div", { class: "job-bar" }, this.progress.element),
      h(
        "div",
        { class: "figures" },
        figures.map((one) => one.element),
      ),
    );
    /** @type {import("../types.js").JobView|null} */
    this.known = null;
    this.mean = 0;
    this.shown = "";
  }

  update() {
    const job = this.context.store.jobs.get(this.id);
    if (!job || job === this.known) return;
    this.known = job;
    setText(this.name, job.name);
    setBadge(this.state, job.state);
    setText(this.reason, job.reason);
    this.reason.hidden = !job.reason;
    this.reason.className = `job-why tone-${job.state === "failed" ? "bad" : job.state === "waiting" ? "wait" : "calm"}`;
    this.#showNumbers(job);
    // Buttons and links only when they differ: a reader may be about to press one.
    const shown = JSON.stringify([job.state, job.run, job.result_bytes, job.owner, job.owner_role, job.began_at, job.ended_at]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.controls.replaceChildren(...(this.context.session.maySteer(job) ? jobControls(this.context, job) : []));
    const result = resultParts(this.context, job);
    this.result.replaceChildren(...result);
    this.result.hidden = !result.length;
    this.facts.replaceChildren(...factsOf(job));
  }

  /** @param {number} mean samples/s of a job that has ended; 0 if nobody knows */
  setMean(mean) {
    this.mean = mean;
    if (this.known) this.#showNumbers(this.known);
  }

  /** @param {import("../types.js").JobView} job */
  #showNumbers(job) {
    const share = job.epochs ? Math.min(1, job.epoch / job.epochs) : 0;
    this.progress.set(share, job.state === "running" ? undefined : "calm");
    this.far.set(passed(job.epoch), `of ${whole(job.epochs)}`, percent(share));
    this.step.set(whole(job.step), "", "batches so far");
    const running = job.state === "running";
    const rate = running ? job.samples_per_second : this.mean;
    this.rate.set(running || rate ? digits(rate) : "–", running || rate ? "samples/s" : "", this.mean ? "on average" : "");
    this.loss.set(metric("loss", job.loss), "", "training");
    const metrics = Object.entries(job.metrics).sort(
      ([a], [b]) => Number(a.endsWith("loss")) - Number(b.endsWith("loss")),
    );
    const [first, ...rest] = metrics;
    this.metric.element.hidden = !first;
    if (first)
      this.metric.set(
        metric(...first),
        "",
        [first[0], ...rest.map(([name, value]) => `${name} ${metric(name, value)}`)].join(" · "),
      );
    const left = running ? timeLeft(job, this.context.store.now()) : NaN;
    this.left.element.hidden = !Number.isFinite(left);
    this.left.set(duration(left), "", "at the speed so far");
  }
}

/**
 * @param {import("../types.js").JobView} job
 * @param {number} now
 */
function timeLeft(job, now) {
  if (!job.began_at || job.epoch <= 0.02 || job.run > 1) return NaN;
  return ((now - job.began_at) / job.epoch) * (job.epochs - job.epoch);
}

/** @param {import("../types.js").JobView} job */
function factsOf(job) {
  const facts = [h("span", {}, `by ${job.owner}`)];
  if (job.parameters) facts.push(h("span", {}, `${count(job.parameters)} parameters`));
  facts.push(h("span", {}, "submitted ", timeElement(job.submitted_at)));
  if (job.run) facts.push(h("span", {}, `run ${job.run}`));
  if (job.began_at && job.ended_at) facts.push(h("span", {}, `took ${duration(job.ended_at - job.began_at)}`));
  else if (job.began_at) facts.push(h("span", {}, "at work ", timeElement(job.began_at, "for")));
  if (job.epochs) facts.push(h("span", {}, counted(job.epochs, "epoch")));
  return facts;
}
