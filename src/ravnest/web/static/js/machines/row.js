/** One machine in the table. Built once, changed in place. */

import { h, setText } from "../dom.js";
import { bytes, gflops, short, whole } from "../format.js";
import { badge, setBadge } from "../ui/badge.js";
import { setTime, timeElement } from "../ui/clock.js";
import { bar, jobLink } from "../ui/parts.js";

/** @typedef {import("../types.js").ProviderView} ProviderView */

/**
 * @param {ProviderView} first
 * @param {(id: number) => void} onOpen
 * @param {import("../store.js").Store} store
 */
export function machineRow(first, onOpen, store) {
  const name = h("button", { class: "machine-name", type: "button", on: { click: () => onOpen(first.id) } });
  const host = h("span", { class: "small faint" });
  const state = badge(first.state);
  const since = timeElement(first.since, "for");
  since.classList.add("small", "faint");
  const device = h("span");
  const cores = h("span", { class: "small faint" });
  const memory = bar("Memory of its worker, of what is offered to one");
  const memoryText = h("span", { class: "small nowrap" });
  const speed = h("span");
  const network = h("span", { class: "nowrap" });
  const delay = h("span", { class: "nowrap" });
  const path = h("span", { class: "small faint nowrap" });
  const work = h("span");
  const element = h(
    "tr",
    { "data-provider": first.id },
    cell("Machine", "machine-cell", name, host),
    cell("State", "", state, since),
    cell("Device", "", device, cores),
    cell("Memory", "memory-cell", memory.element, memoryText),
    cell("Compute", "number", speed),
    cell("Up / down", "number", network),
    cell("Delay", "number", delay, path),
    cell("At work on", "", work),
  );
  /** @type {ProviderView|null} */
  let known = null;
  const jobName = (/** @type {string} */ id) => store.jobs.get(id)?.name ?? id;
  return {
    element,
    /** @param {ProviderView} view */
    update(view) {
      setText(name, store.nameOf(view.id)); // another one may have taken the same
      if (view === known) return;
      known = view;
      setText(host, view.hostname === view.name ? "" : view.hostname);
      setBadge(state, view.state, doing(view));
      setTime(since, view.since);
      setText(device, view.device_name || view.device);
      const count = view.cores ? `${whole(view.cores)} cores` : "";
      setText(cores, [view.device_name ? view.device : "", count].filter(Boolean).join(" · "));
      const share = view.worker_limit_bytes ? view.worker_memory_bytes / view.worker_limit_bytes : 0;
      memory.set(share, share > 0.95 ? "bad" : share > 0.85 ? "wait" : undefined);
      setText(
        memoryText,
        `${view.worker_memory_bytes ? `${bytes(view.worker_memory_bytes)} of ` : ""}${bytes(view.worker_limit_bytes)}`,
      );
      setText(speed, view.measured ? gflops(view.gflops) : "measuring…");
      setText(network, view.measured ? `${short(view.up_mbps)} / ${short(view.down_mbps)} Mbit/s` : "–");
      setText(delay, view.measured ? `${short(view.latency_ms)} ms` : "–");
      setText(path, view.reachable ? "direct" : "relay only");
      path.title = view.reachable
        ? "Others have reached it directly"
        : "Not reached directly yet: others talk to it through the server";
      showWork(work, view, jobName);
    },
  };
}

const AT_WORK = new Set(["preparing", "ready", "training", "returning"]);

/**
 * A machine that is paused at work ends that first.
 * @param {ProviderView} view
 */
export const doing = (view) => (view.paused && AT_WORK.has(view.state) ? `${view.state}, then paused` : view.state);

/**
 * @param {string} label
 * @param {string} name
 * @param {...Node} content
 */
const cell = (label, name, ...content) =>
  h("td", { class: name, "data-label": label }, h("div", { class: "cell" }, content));

/**
 * @param {HTMLElement} place
 * @param {ProviderView} view
 * @param {(job: string) => string} jobName
 */
function showWork(place, view, jobName) {
  if (!view.job) {
    setText(place, "–");
    place.classList.add("faint");
    return;
  }
  place.classList.remove("faint");
  const where = view.stage === null ? "" : `cluster ${view.cluster} · stage ${view.stage}`;
  place.replaceChildren(
    h("a", { href: jobLink(view.job) }, jobName(view.job)),
    h("span", { class: "small faint block" }, where),
  );
}
