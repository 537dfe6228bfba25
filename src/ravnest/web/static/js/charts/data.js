/** Points of curves: kept, thinned, smoothed, brought on one axis. Pure. */

/** @typedef {import("../types.js").CurvePoint} CurvePoint */
/** @typedef {"step"|"epoch"|"at"} Axis */

const MOST_POINTS = 20_000;
/** Of less than that no speed can be told. */
const LEAST_S = 1;
/** So long at least, and so many times what steps take there: a pause, or a long validation. */
const REST_S = 10;
const REST = 10;
/** @type {Record<Axis, 0|1|2>} */
const PLACE = { step: 0, epoch: 1, at: 2 };

/** @param {string} key `train/loss@1` */
export function partsOf(key) {
  const mark = key.lastIndexOf("@");
  const name = mark < 0 ? key : key.slice(0, mark);
  const slash = name.indexOf("/");
  return {
    name,
    phase: slash < 0 ? "" : name.slice(0, slash),
    metric: slash < 0 ? name : name.slice(slash + 1),
    cluster: mark < 0 ? 0 : Number(key.slice(mark + 1)),
  };
}

/** Curves of a job by key. */
export class Curves {
  constructor() {
    /** @type {Map<string, CurvePoint[]>} */
    this.points = new Map();
  }

  /** @param {Record<string, CurvePoint[]>} points */
  replace(points) {
    this.points = new Map(Object.entries(points).map(([key, list]) => [key, [...list]]));
  }

  /** @param {import("../types.js").NewPoint[]} fresh points that are there already are not added again */
  add(fresh) {
    for (const [series, cluster, step, epoch, at, value] of fresh) {
      const key = `${series}@${cluster}`;
      let list = this.points.get(key);
      if (!list) this.points.set(key, (list = []));
      const last = list.at(-1);
      if (last && at <= last[2]) continue;
      // What a run trained before it was lost is trained anew: as the server does with older points.
      for (let end = last; end && (end[1] > epoch || (end[1] === epoch && end[0] >= step)); end = list.at(-1)) list.pop();
      list.push([step, epoch, at, value]);
      if (list.length > MOST_POINTS) this.points.set(key, thinned(list));
    }
  }

  /** Of all clusters together, from the first step to the last, long rests left out; 0 if unknown. */
  stepsPerSecond() {
    let sum = 0;
    for (const [key, points] of this.points) if (partsOf(key).name === "train/loss") sum += paceOf(points);
    return sum;
  }

  /** Keys by metric: what belongs into one chart. */
  byMetric() {
    /** @type {Map<string, string[]>} */
    const groups = new Map();
    for (const key of [...this.points.keys()].sort()) {
      const { metric } = partsOf(key);
      groups.set(metric, [...(groups.get(metric) ?? []), key]);
    }
    return groups;
  }
}

/**
 * Steps per second of one cluster. `session/speed.py` has the same rule.
 * @param {CurvePoint[]} points
 */
function paceOf(points) {
  /** @type {{ steps: number, seconds: number }[]} */
  const gaps = [];
  points.forEach(([step, , at], index) => {
    const before = points[index - 1];
    if (before && step > before[0]) gaps.push({ steps: step - before[0], seconds: at - before[2] });
  });
  const paces = gaps.map(({ steps, seconds }) => seconds / steps).sort((a, b) => a - b);
  const usual = paces[(paces.length - 1) >> 1] ?? 0;
  let [steps, seconds] = [0, 0];
  for (const gap of gaps) {
    if (gap.seconds > Math.max(REST_S, REST * usual * gap.steps)) continue;
    steps += gap.steps;
    seconds += gap.seconds;
  }
  return seconds >= LEAST_S ? steps / seconds : 0;
}

/**
 * Every second point, and the last one.
 * @template T
 * @param {T[]} list
 */
export const thinned = (list) => list.filter((_, index) => index % 2 === 0 || index === list.length - 1);

/**
 * @param {CurvePoint[]} points
 * @param {Axis} axis
 * @returns {[xs: number[], ys: (number|null)[]]} in order of the axis, one value for each place
 */
export function onAxis(points, axis) {
  const place = PLACE[axis];
  const sorted = [...points].sort((a, b) => a[place] - b[place] || a[2] - b[2]);
  /** @type {number[]} */
  const xs = [];
  /** @type {(number|null)[]} */
  const ys = [];
  for (const point of sorted) {
    if (xs.at(-1) === point[place]) {
      ys[ys.length - 1] = point[3]; // a later run has been here again
    } else {
      xs.push(point[place]);
      ys.push(point[3]);
    }
  }
  return [xs, ys];
}

/**
 * A running mean whose memory fades, without the pull towards its beginning.
 * @param {(number|null)[]} values
 * @param {number} memory 0 is none, towards 1 is long
 * @returns {(number|null)[]}
 */
export function smoothed(values, memory) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * memory + value * (1 - memory);
    weight = weight * memory + (1 - memory);
    return sum / weight;
  });
}

/**
 * From where to where the axis goes: as the reader has zoomed, or over all points. A single one is in
 * the middle of something, not of an axis that begins with the first step, or in 1970.
 * @param {number[]} places of all points
 * @param {number|null} min null if there are none
 * @param {number|null} max
 * @param {Axis} axis
 * @returns {[number, number]}
 */
export function extent(places, min, max, axis) {
  if (min === null || max === null) return [0, 1];
  const only = places.length === 1 ? /** @type {number} */ (places[0]) : min;
  if (places.length > 1 && min < max) return [min, max];
  if (axis === "at") return [only - 60, only + 60];
  const around = axis === "epoch" ? 0.5 : Math.max(5, Math.round(only / 4));
  return [Math.max(0, only - around), only + around];
}
