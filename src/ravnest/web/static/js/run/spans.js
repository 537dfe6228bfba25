/** Who computed what when: spans as they come in, and what can be read off them. Pure. */

/** @typedef {import("../types.js").Span} Span */
/** @typedef {{provider: number, cluster: number, stage: number, spans: Span[]}} Row */

export const KEPT_S = 60;

/** The last minute of a run, put together from answers that overlap. */
export class Spans {
  constructor() {
    /** @type {Map<number, Row>} */
    this.rows = new Map();
    this.ended = 0;
  }

  /** @param {import("../types.js").Timeline} timeline */
  merge(timeline) {
    this.ended = Math.max(this.ended, timeline.ended);
    for (const { provider, cluster, stage, spans } of timeline.rows) {
      const known = this.rows.get(provider)?.spans ?? [];
      const all = new Map(known.map((span) => [span[3], span]));
      for (const span of spans) all.set(span[3], span);
      const kept = [...all.values()].filter((span) => span[4] > this.ended - KEPT_S);
      this.rows.set(provider, { provider, cluster, stage, spans: kept.sort((a, b) => a[3] - b[3]) });
    }
  }

  /** Cluster by cluster, from the first stage to the last. */
  inOrder() {
    return [...this.rows.values()].sort((a, b) => a.cluster - b.cluster || a.stage - b.stage);
  }
}

/**
 * @param {Span[]} spans in order of their start
 * @param {number} at
 * @returns {number} index of the first span that ends after this moment
 */
export function firstAfter(spans, at) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (/** @type {Span} */ (spans[middle])[4] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * @param {Span[]} spans
 * @param {number} at
 * @returns {Span|null}
 */
export function spanAt(spans, at) {
  const span = spans[firstAfter(spans, at)];
  return span && span[3] <= at ? span : null;
}

/**
 * The gap around a moment at which nothing was computed.
 * @param {Span[]} spans
 * @param {number} at
 */
export function gapAt(spans, at) {
  const next = firstAfter(spans, at);
  return { begin: spans[next - 1]?.[4] ?? null, end: spans[next]?.[3] ?? null };
}

/**
 * Seconds by kind between two moments.
 * @param {Span[]} spans
 * @param {number} begin
 * @param {number} end
 */
export function secondsByKind(spans, begin, end) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (let index = firstAfter(spans, begin); index < spans.length; index += 1) {
    const [kind, , , start, stop] = /** @type {Span} */ (spans[index]);
    if (start >= end) break;
    sums.set(kind, (sums.get(kind) ?? 0) + Math.min(stop, end) - Math.max(start, begin));
  }
  return sums;
}

/**
 * Share of the time between two moments at which nothing was computed; counted from the first span,
 * since nobody waits before there is a run.
 * @param {Span[]} spans
 * @param {number} begin
 * @param {number} end
 */
export function waitShare(spans, begin, end) {
  const from = Math.max(begin, spans[0]?.[3] ?? end);
  if (end - from <= 0) return NaN;
  let busy = 0;
  for (const seconds of secondsByKind(spans, from, end).values()) busy += seconds;
  return Math.max(0, 1 - busy / (end - from));
}
