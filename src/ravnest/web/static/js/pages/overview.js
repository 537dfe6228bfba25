/** The pool at a glance: figures, jobs, machines, what happened last. */

import { h } from "../dom.js";
import { bytesParts, counted, gflopsParts, whole } from "../format.js";
import { addMachineDialog, joinHint } from "../machines/joining.js";
import { machineDialog } from "../machines/dialog.js";
import { MachineTable } from "../machines/table.js";
import { JobList } from "../jobs/list.js";
import { EventList } from "../ui/events.js";
import { card, figure } from "../ui/parts.js";

const EVENTS_SHOWN = 12;
const AT_WORK = new Set(["planning", "preparing", "running", "paused", "stopping", "fusing"]);

/**
 * @param {import("../types.js").Context} context
 * @returns {import("../types.js").Page}
 */
export function overviewPage(context) {
  const { store, session } = context;
  const figures = poolFigures();
  const jobs = new JobList(store);
  /** @type {ReturnType<typeof machineDialog>} */
  let opened = null;
  const machines = new MachineTable(store, (id) => (opened = machineDialog(context, id)));
  const noMachines = joinHint(context);
  const events = new EventList(store);
  const recent = card("Last events", {
    tools: h("a", { href: "#/events" }, "All events"),
    body: events.element,
  });
  const add = session.mayMakeTokens
    ? h(
        "button",
        { class: "button compact", type: "button", on: { click: () => addMachineDialog(context) } },
        "Add a machine",
      )
    : null;
  const machineCard = card("Machines", { tools: [machines.tools, add], body: [machines.element, noMachines] });

  /** @param {import("../store.js").Change} change */
  function update(change) {
    figures.update(store);
    if (change.everything || change.jobs.size) jobs.update();
    if (change.everything || change.providers.size) {
      machines.update();
      opened?.update();
      const none = store.providers.size === 0;
      machines.element.hidden = machines.tools.hidden = none;
      noMachines.hidden = !none;
    }
    if (change.everything || change.events.length) events.show(store.events.slice(-EVENTS_SHOWN).reverse());
  }

  update({ everything: true, providers: new Set(), jobs: new Set(), runs: new Set(), events: [], points: {} });
  return {
    title: "Overview",
    element: h(
      "div",
      { class: "page" },
      h("h1", { class: "visually-hidden" }, "Overview"),
      figures.element,
      card("Jobs", { body: jobs.element }),
      machineCard,
      recent,
    ),
    update,
    close() {},
  };
}

function poolFigures() {
  const machines = figure("Machines");
  const memory = figure("Memory offered");
  const speed = figure("Compute");
  const jobs = figure("Jobs at work");
  return {
    element: h(
      "section",
      { class: "figures card", "aria-label": "The pool" },
      machines.element,
      memory.element,
      speed.element,
      jobs.element,
    ),
    /** @param {import("../store.js").Store} store */
    update(store) {
      const server = store.server;
      if (!server) return;
      const away = server.providers - server.heard;
      machines.set(
        whole(server.heard),
        `of ${whole(server.providers)}`,
        !server.providers ? "none has joined yet" : away ? `${whole(away)} away` : "all connected",
      );
      let [limit, used] = [0, 0];
      for (const provider of store.providers.values()) {
        if (provider.state === "away") continue;
        limit += provider.worker_limit_bytes;
        used += provider.worker_memory_bytes;
      }
      const offered = bytesParts(limit);
      const usedParts = bytesParts(used);
      memory.set(offered.text, offered.unit, `${usedParts.text} ${usedParts.unit} in use`);
      const compute = gflopsParts(server.gflops);
      speed.set(compute.text, compute.unit, "measured on a short real workload");
      const all = [...store.jobs.values()];
      const waiting = all.filter((job) => job.state === "waiting" || job.state === "planned").length;
      jobs.set(
        whole(all.filter((job) => AT_WORK.has(job.state)).length),
        "",
        waiting ? `${whole(waiting)} waiting` : counted(all.length, "job") + " in all",
      );
    },
  };
}
