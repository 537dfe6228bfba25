/** What the page knows of the server: an overview, kept current by changes. */

/** @typedef {import("./types.js").Overview} Overview */

const EVENTS_KEPT = 1000;

/**
 * What is different, for those who show it.
 * @typedef {object} Change
 * @property {boolean} everything a new overview: forget what you know
 * @property {Set<number>} providers ids, also of those that are gone
 * @property {Set<string>} jobs
 * @property {Set<string>} runs job ids
 * @property {import("./types.js").EventView[]} events new ones
 * @property {Record<string, import("./types.js").NewPoint[]>} points
 */

export class Store {
  constructor() {
    /** @type {import("./types.js").ServerView|null} */
    this.server = null;
    /** @type {Map<number, import("./types.js").ProviderView>} */
    this.providers = new Map();
    /** @type {Map<string, import("./types.js").JobView>} */
    this.jobs = new Map();
    /** @type {Map<string, import("./types.js").RunView>} */
    this.runs = new Map();
    /** @type {import("./types.js").EventView[]} oldest first */
    this.events = [];
    /** @type {Map<string, number>} how many machines have this name */
    this.namesakes = new Map();
    /** What to add to this machine's clock to have the server's, in seconds. */
    this.clockOffset = 0;
  }

  /** Seconds since 1970 by the server's clock. */
  now() {
    return Date.now() / 1000 + this.clockOffset;
  }

  /**
   * What people call a machine; of several with one name, each with its number.
   * @param {number} id
   * @param {string} [otherwise] if it is not known here any more
   */
  nameOf(id, otherwise = `provider-${id}`) {
    const name = this.providers.get(id)?.name ?? otherwise;
    return (this.namesakes.get(name) ?? 0) > 1 ? `${name} #${id}` : name;
  }

  /**
   * @param {Overview} overview
   * @returns {Change}
   */
  replace(overview) {
    this.providers = new Map(overview.providers.map((view) => [view.id, view]));
    this.#countNames();
    this.jobs = new Map(overview.jobs.map((view) => [view.id, view]));
    this.runs = new Map(overview.runs.map((view) => [view.job, view]));
    const last = this.events.at(-1)?.number ?? -1;
    const fresh = overview.events.filter((event) => event.number > last);
    // A server with an empty database counts from the beginning again.
    const restarted = (overview.events.at(-1)?.number ?? 0) < last;
    this.events = restarted ? [...overview.events] : [...this.events, ...fresh].slice(-EVENTS_KEPT);
    this.#hear(overview.server);
    return {
      everything: true,
      providers: new Set(this.providers.keys()),
      jobs: new Set(this.jobs.keys()),
      runs: new Set(this.runs.keys()),
      events: fresh,
      points: {},
    };
  }

  /**
   * @param {import("./types.js").Changes} changes
   * @returns {Change}
   */
  apply(changes) {
    for (const view of changes.providers ?? []) this.providers.set(view.id, view);
    for (const id of changes.gone_providers ?? []) this.providers.delete(id);
    if (changes.providers?.length || changes.gone_providers?.length) this.#countNames();
    for (const view of changes.jobs ?? []) this.jobs.set(view.id, view);
    for (const id of changes.gone_jobs ?? []) this.jobs.delete(id);
    for (const view of changes.runs ?? []) this.runs.set(view.job, view);
    for (const id of changes.gone_runs ?? []) this.runs.delete(id);
    this.addEvents(changes.events ?? []);
    this.#hear(changes.server);
    return {
      everything: false,
      providers: new Set([...(changes.providers ?? []).map((view) => view.id), ...(changes.gone_providers ?? [])]),
      jobs: new Set([...(changes.jobs ?? []).map((view) => view.id), ...(changes.gone_jobs ?? [])]),
      runs: new Set([...(changes.runs ?? []).map((view) => view.job), ...(changes.gone_runs ?? [])]),
      events: changes.events ?? [],
      points: changes.points ?? {},
    };
  }

  /**
   * Also older ones, fetched later.
   * @param {import("./types.js").EventView[]} events
   */
  addEvents(events) {
    if (!events.length) return;
    const all = new Map(this.events.map((event) => [event.number, event]));
    for (const event of events) all.set(event.number, event);
    this.events = [...all.values()].sort((a, b) => a.number - b.number).slice(-EVENTS_KEPT);
  }

  #countNames() {
    this.namesakes = new Map();
    for (const { name } of this.providers.values()) this.namesakes.set(name, (this.namesakes.get(name) ?? 0) + 1);
  }

  /** @param {import("./types.js").ServerView} server */
  #hear(server) {
    this.server = server;
    this.clockOffset = server.now - Date.now() / 1000;
  }
}
