/** One job: its state, the run drawn as pipelines, curves, timeline, rounds, events. */

import { jobPath } from "../api/http.js";
import { CurveCard } from "../charts/curves.js";
import { h } from "../dom.js";
import { JobHead } from "../jobs/head.js";
import { PlanCard } from "../jobs/plan.js";
import { RoundsCard } from "../run/rounds.js";
import { TimelineCard } from "../run/timeline.js";
import { TopologyCard } from "../run/topology.js";
import { EventList } from "../ui/events.js";
import { card, empty } from "../ui/parts.js";

const EVENTS_SHOWN = 100;
const ENDED = new Set(["done", "stopped", "failed"]);

/**
 * @param {import("../types.js").Context} context
 * @param {string} id
 * @returns {import("../types.js").Page}
 */
export function jobPage(context, id) {
  const { store, http } = context;
  const closing = new AbortController();
  const head = new JobHead(context, id);
  const plan = new PlanCard(store);
  const topology = new TopologyCard(store);
  const curves = new CurveCard();
  const timeline = new TimelineCard(context, id, closing.signal);
  const rounds = new RoundsCard(store);
  const events = new EventList(store, { withJob: false });
  const problem = h("p", { class: "dialog-problem", role: "alert", hidden: true });
  const parts = [plan.element, topology.element, curves.element, timeline.element, rounds.element];
  const element = h("div", { class: "page" }, head.element, problem, parts, card("Events", { body: events.element }));
  /** @type {import("../types.js").RunView|null} */
  let run = store.runs.get(id) ?? null;
  let known = "";
  /** @type {import("../types.js").NewPoint[]|null} points that come while the curves are fetched */
  let early = null;

  /** A new plan, a new run or a new state may change what only the details know. */
  function fetchWhenDifferent() {
    const job = store.jobs.get(id);
    const now = job ? `${job.run} ${job.state}` : "gone";
    if (now === known || !job) return;
    known = now;
    fetchDetails();
  }

  async function fetchDetails() {
    const asked = known;
    try {
      const detail = await http.get(jobPath(id), closing.signal);
      if (known !== asked) return; // of a state that is over; the next answer is on its way
      problem.hidden = true;
      run = store.runs.get(id) ?? detail.run;
      plan.setPlan(detail.plan, detail.job.state);
      showRun();
    } catch (error) {
      if (closing.signal.aborted || known !== asked) return;
      problem.hidden = false;
      problem.textContent = `Details could not be fetched: ${error instanceof Error ? error.message : error}`;
    }
  }

  async function fetchCurves() {
    // A new connection may ask again before the first answer is there: the last one counts.
    const mine = (early = [...(early ?? [])]);
    let points = null;
    try {
      points = (await http.get(`${jobPath(id)}/series`, closing.signal)).points;
    } catch {
      // Live points are shown in any case; the next connection asks again.
    }
    if (early !== mine || closing.signal.aborted) return;
    early = null;
    if (points) curves.replace(points, mine);
    else curves.add(mine);
    showRun();
  }

  async function fetchEvents() {
    try {
      store.addEvents(await http.get(`${jobPath(id)}/events`, closing.signal));
      showEvents();
    } catch {
      // What the overview has told is shown in any case.
    }
  }

  /**
   * Samples/s of a job that has ended. How long one was stopped that was taken up again, nobody says;
   * nor how large the steps of a script are, if they are not what was planned for.
   * @param {import("../types.js").JobView} job
   */
  function meanSpeed(job) {
    const known = ENDED.has(job.state) && job.run === 1 && job.batch_size === plan.plan?.batch_size;
    return known ? curves.curves.stepsPerSecond() * job.batch_size : 0;
  }

  function showRun() {
    const job = store.jobs.get(id);
    const mean = job ? meanSpeed(job) : 0;
    topology.update(run, job);
    rounds.update(run);
    head.setMean(mean);
    plan.update(job, run, mean);
    timeline.setRun(run, job);
  }

  function showEvents() {
    events.show(
      store.events
        .filter((event) => event.job === id)
        .slice(-EVENTS_SHOWN)
        .reverse(),
    );
  }

  /** @param {import("../store.js").Change} change */
  function update(change) {
    const job = store.jobs.get(id);
    if (!job) {
      element.replaceChildren(
        empty(
          "There is no such job",
          h("p", {}, "It may have been deleted."),
          h("a", { class: "button", href: "#/" }, "To the overview"),
        ),
      );
      return;
    }
    run = store.runs.get(id) ?? run;
    head.update();
    if (change.everything) {
      known = "";
      fetchCurves();
      fetchEvents();
    }
    fetchWhenDifferent();
    if (change.everything || change.runs.has(id) || change.jobs.has(id)) showRun();
    const fresh = change.points[id] ?? [];
    if (early) early.push(...fresh);
    else if (fresh.length) curves.add(fresh);
    if (change.everything || change.events.length) showEvents();
    timeline.tick();
  }

  update({ everything: true, providers: new Set(), jobs: new Set(), runs: new Set(), events: [], points: {} });
  return {
    title: store.jobs.get(id)?.name ?? "Job",
    element,
    update,
    close() {
      closing.abort();
      curves.close();
      timeline.close();
      topology.close();
    },
  };
}
