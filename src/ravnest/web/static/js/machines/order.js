/** Which machines are shown, and in which order. Pure. */

/** @typedef {import("../types.js").ProviderView} ProviderView */
/** @typedef {{column: string, down: boolean}} Order */

const STATES = ["training", "returning", "ready", "preparing", "idle", "paused", "resting", "away"];

/** @type {Record<string, (view: ProviderView) => number|string>} */
const KEYS = {
  name: (view) => view.name.toLowerCase(),
  state: (view) => STATES.indexOf(view.state),
  device: (view) => (view.device_name || view.device).toLowerCase(),
  memory: (view) => view.worker_limit_bytes,
  speed: (view) => view.gflops,
  network: (view) => view.up_mbps,
  delay: (view) => view.latency_ms,
  work: (view) => (view.job ? `${view.job} ${pad(view.cluster)} ${pad(view.stage)}` : "\uffff"),
};

/** @param {number|null} value */
const pad = (value) => String(value ?? 0).padStart(6, "0");

/**
 * @param {Iterable<ProviderView>} views
 * @param {{text: string, state: string}} filter an empty state is all of them
 * @param {Order} order
 * @returns {ProviderView[]}
 */
export function arrangeMachines(views, filter, order) {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = [...views].filter(
    (view) => (!filter.state || view.state === filter.state) && words.every((word) => textOf(view).includes(word)),
  );
  const key = KEYS[order.column] ?? KEYS.name;
  const sign = order.down ? -1 : 1;
  return shown.sort((a, b) => {
    const [x, y] = [/** @type {any} */ (key)(a), /** @type {any} */ (key)(b)];
    return x < y ? -sign : x > y ? sign : a.id - b.id;
  });
}

/** @param {ProviderView} view */
const textOf = (view) =>
  `${view.name} ${view.hostname} ${view.device} ${view.device_name} ${view.system} ${view.job ?? ""} provider-${view.id}`.toLowerCase();

/**
 * @param {Iterable<ProviderView>} views
 * @returns {[state: string, number: number][]} in order, only states that occur
 */
export function countStates(views) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const view of views) counts.set(view.state, (counts.get(view.state) ?? 0) + 1);
  return STATES.filter((state) => counts.has(state)).map((state) => [state, counts.get(state) ?? 0]);
}
