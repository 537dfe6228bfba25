/** Everything about one machine, and what an operator may do with it. */

import { append, h } from "../dom.js";
import { bytes, gflops, mbps, percent, short, whole } from "../format.js";
import { badge, setBadge } from "../ui/badge.js";
import { setTime, timeElement } from "../ui/clock.js";
import { confirmDialog, openDialog } from "../ui/dialog.js";
import { jobLink } from "../ui/parts.js";
import { attempt } from "../ui/toast.js";
import { doing } from "./row.js";

/**
 * In single precision, and in those that jobs may ask for.
 * @param {import("../types.js").ProviderView} view
 */
function speeds(view) {
  const others = Object.entries(view.rates ?? {}).map(([name, rate]) => `${gflops(rate)} in ${name}`);
  return [gflops(view.gflops), ...others].join(", ");
}

/**
 * Follows the machine while it is open, if `update` is called whenever something has changed.
 * @param {import("../types.js").Context} context
 * @param {number} id
 */
export function machineDialog(context, id) {
  const first = context.store.providers.get(id);
  if (!first) return null;
  const state = badge(first.state, doing(first));
  const since = timeElement(first.since, "for");
  const facts = h("dl", { class: "facts" });
  const actions = h("span");
  const close = h("button", { class: "button", type: "button" }, "Close");
  const dialog = openDialog(
    context.store.nameOf(id),
    [h("p", {}, state, " ", since), facts, h("div", { class: "dialog-actions" }, actions, close)],
    { wide: true },
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target instanceof HTMLAnchorElement) dialog.close();
  });
  close.focus();
  /** @type {import("../types.js").ProviderView|null} */
  let known = null;
  /** @type {boolean|null|undefined} */
  let paused = null;

  function update() {
    if (!dialog.open) return;
    const view = context.store.providers.get(id);
    if (!view) dialog.close();
    if (!view || view === known) return;
    known = view;
    setBadge(state, view.state, doing(view));
    setTime(since, view.since);
    facts.replaceChildren();
    append(
      facts,
      factsOf(context, view).map(([term, fact]) => [h("dt", {}, term), h("dd", {}, fact)]),
    );
    // Buttons only when they differ: a reader may be about to press one.
    if (view.paused === paused) return;
    paused = view.paused;
    actions.replaceChildren(...controls(context, view, () => dialog.close()));
  }

  update();
  return { update };
}

/**
 * @param {import("../types.js").Context} context
 * @param {import("../types.js").ProviderView} view
 * @returns {[string, import("../dom.js").Child][]}
 */
function factsOf(context, view) {
  const measured = view.measured;
  // Facts about the host are for operators, and for the owner of the job that it works on.
  const detailed = view.hostname !== "";
  /** @type {[string, import("../dom.js").Child][]} */
  const facts = [
    ["Known as", `provider-${view.id}${view.hostname ? ` on ${view.hostname}` : ""}`],
    ["Last heard", timeElement(view.seen_at)],
    [
      "Device",
      detailed ? `${view.device_name || view.device} (${view.device}), ${whole(view.cores)} cores` : view.device,
    ],
    [
      "Memory",
      `${bytes(view.worker_limit_bytes)} offered; ${view.worker_memory_bytes ? `a worker uses ${bytes(view.worker_memory_bytes)}` : "no worker at present"}${detailed ? `; ${bytes(view.memory_free_bytes)} free` : ""}`,
    ],
    ["Compute", measured ? speeds(view) : "being measured"],
    [
      "To the server",
      measured
        ? `${mbps(view.up_mbps)} up, ${mbps(view.down_mbps)} down, ${short(view.latency_ms)} ms`
        : "being measured",
    ],
    ["Reachable", view.reachable ? "directly" : "through the server's relay"],
    [
      "Scripts",
      { never: "never runs foreign code", sandboxed: "only in a sandbox", always: "allowed" }[view.scripts] ??
        view.scripts,
    ],
    ["Sandbox", view.no_sandbox ? `none: ${view.no_sandbox}` : "foreign graphs run in one"],
  ];
  if (detailed) {
    facts.push(
      ["Processor", `${percent(view.cpu)} busy`],
      ["Hours", view.hours ?? "any time"],
      ["System", view.system],
      ["Versions", `Ravnest ${view.ravnest}, torch ${view.torch}`],
    );
  }
  if (view.job) {
    const name = context.store.jobs.get(view.job)?.name ?? view.job;
    facts.splice(1, 0, [
      "At work on",
      [
        h("a", { href: jobLink(view.job) }, name),
        view.stage === null ? "" : `, cluster ${view.cluster}, stage ${view.stage}`,
      ],
    ]);
  }
  return facts;
}

/**
 * @param {import("../types.js").Context} context
 * @param {import("../types.js").ProviderView} view
 * @param {() => void} done
 */
function controls(context, view, done) {
  if (!context.session.maySteerProviders) return [];
  const name = context.store.nameOf(view.id);
  /** @param {string} action @param {string} words */
  const act = async (action, words) => {
    const path = `/providers/${view.id}/action`;
    if (await attempt(() => context.http.post(path, { action }), words)) done();
  };
  const toggle = view.paused
    ? h(
        "button",
        { class: "button", type: "button", on: { click: () => act("resume", `${name} takes work again`) } },
        "Resume",
      )
    : h(
        "button",
        { class: "button", type: "button", on: { click: () => act("pause", `${name} is paused`) } },
        "Pause",
      );
  const remove = h("button", { class: "button danger", type: "button" }, "Remove");
  remove.addEventListener("click", async () => {
    const sure = await confirmDialog({
      title: `Remove ${name}?`,
      text: "It is forgotten here, and its identity is refused from now on. To come back it has to join with a new token.",
      yes: "Remove it",
    });
    if (sure) await act("remove", `${name} has been removed`);
  });
  return [remove, toggle];
}
