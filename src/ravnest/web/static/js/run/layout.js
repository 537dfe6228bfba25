/**
 * Where clusters, stages and links are drawn. Pure: a run and a width in, places out.
 *
 * Pipelines run to the right, one below the other; where that is too wide they run down, side by
 * side. `along` is the direction of the pipelines, `across` the other one. What clusters are called is
 * written before their first stage, where no line passes.
 */

/** @typedef {import("../types.js").RunView} RunView */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/**
 * @typedef {object} Edge
 * @property {string} key
 * @property {"pipeline"|"ring"} kind
 * @property {number} source
 * @property {number} target
 * @property {string} forward path of what flows to the target
 * @property {string} backward path of what flows back
 * @property {{x: number, y: number}} middle
 */
/**
 * @typedef {object} Layout
 * @property {boolean} down
 * @property {number} width
 * @property {number} height
 * @property {Map<number, Box>} boxes by provider
 * @property {{id: number, x: number, y: number}[]} lanes where the names of clusters are written
 * @property {Edge[]} edges
 */

const WIDE = { width: 184, height: 102, link: [104, 190], lane: 74, head: 126, side: 10 };
const NARROW = { width: 140, height: 102, link: [62, 62], lane: 26, head: 42, side: 6 };
const LOOP = 34;

/**
 * @param {RunView} run
 * @param {number} width available
 * @returns {Layout}
 */
export function layoutOf(run, width) {
  const longest = Math.max(1, ...run.clusters.map((cluster) => cluster.stages.length));
  const needed = longest * WIDE.width + (longest - 1) * (WIDE.link[0] ?? 0) + 2 * WIDE.side + WIDE.head;
  const down = needed > width && width < 720;
  const size = down ? NARROW : WIDE;
  const loops = run.clusters.length > 2 ? LOOP : 0;
  const [boxAlong, boxAcross] = down ? [size.height, size.width] : [size.width, size.height];
  const room = down ? 0 : (width - 2 * size.side - size.head - loops - longest * boxAlong) / Math.max(1, longest - 1);
  const [least, most] = /** @type {[number, number]} */ (size.link);
  const link = Math.max(least, Math.min(most, room));
  const whole = longest * boxAlong + (longest - 1) * link;

  /** @type {Map<number, Box>} */
  const boxes = new Map();
  /** @type {Layout["lanes"]} */
  const lanes = [];
  const begin = (down ? 0 : size.side) + size.head + loops;
  let across = size.side;
  for (const cluster of run.clusters) {
    lanes.push(
      down ? { id: cluster.id, x: across, y: 14 } : { id: cluster.id, x: size.side, y: across + size.height / 2 - 12 },
    );
    const stages = cluster.stages.length;
    // The first and the last stages of all clusters are in line.
    const step = stages > 1 ? (whole - boxAlong) / (stages - 1) : 0;
    cluster.stages.forEach((stage, index) => {
      const along = begin + (down ? index * (boxAlong + link) : index * step);
      boxes.set(
        stage.provider,
        down
          ? { x: across, y: along, width: size.width, height: size.height }
          : { x: along, y: across, width: size.width, height: size.height },
      );
    });
    across += boxAcross + size.lane;
  }
  across += size.side - size.lane;
  const alongEnd = begin + whole + size.side;
  return {
    down,
    width: down ? across : Math.max(alongEnd, 0),
    height: down ? alongEnd : across,
    boxes,
    lanes,
    edges: edgesOf(run, boxes, down),
  };
}

/**
 * @param {RunView} run
 * @param {Map<number, Box>} boxes
 * @param {boolean} down
 * @returns {Edge[]}
 */
function edgesOf(run, boxes, down) {
  /** @type {Edge[]} */
  const edges = [];
  for (const { kind, source, target } of pairsOf(run)) {
    const [from, to] = [boxes.get(source), boxes.get(target)];
    if (!from || !to) continue;
    const key = `${kind} ${source} ${target}`;
    const place = kind === "pipeline" ? pipelineEdge(from, to, down) : ringEdge(from, to, down, edges.length);
    edges.push({ key, kind, source, target, ...place });
  }
  return edges;
}

/**
 * Every pair of providers that talk, once for each purpose. Links of a ring go both ways in the
 * end; they are drawn once.
 * @param {RunView} run
 */
export function pairsOf(run) {
  /** @type {Map<string, {kind: "pipeline"|"ring", source: number, target: number}>} */
  const pairs = new Map();
  /** @param {"pipeline"|"ring"} kind @param {number} source @param {number} target */
  const add = (kind, source, target) => {
    if (source === target || pairs.has(`${kind} ${target} ${source}`)) return;
    pairs.set(`${kind} ${source} ${target}`, { kind, source, target });
  };
  for (const { stages } of run.clusters) {
    stages.slice(1).forEach((stage, index) => add("pipeline", stages[index]?.provider ?? 0, stage.provider));
  }
  for (const link of run.links) if (link.kind === "ring") add("ring", link.source, link.target);
  for (const { providers } of run.rings) {
    providers.forEach((provider, index) =>
      add("ring", provider, providers[(index + 1) % providers.length] ?? provider),
    );
  }
  return [...pairs.values()];
}

/** @param {Box} from @param {Box} to @param {boolean} down */
function pipelineEdge(from, to, down) {
  const apart = 6;
  if (down) {
    const x = from.x + from.width / 2;
    const [begin, end] = [from.y + from.height + 3, to.y - 3];
    return {
      forward: `M${x + apart} ${begin}V${end}`,
      backward: `M${x - apart} ${end}V${begin}`,
      middle: { x, y: (begin + end) / 2 },
    };
  }
  const y = from.y + from.height / 2;
  const [begin, end] = [from.x + from.width + 3, to.x - 3];
  return {
    forward: `M${begin} ${y - apart}H${end}`,
    backward: `M${end} ${y + apart}H${begin}`,
    middle: { x: (begin + end) / 2, y },
  };
}

/** @param {Box} from @param {Box} to @param {boolean} down @param {number} index */
function ringEdge(from, to, down, index) {
  const swapped = down ? to.x < from.x : to.y < from.y;
  const [first, second] = swapped ? [to, from] : [from, to];
  // Several rings at one machine do not share a point.
  const shift = ((index * 37) % 60) - 30;
  const near = down ? second.x - (first.x + first.width) < 80 : second.y - (first.y + first.height) < 120;
  let path;
  let middle;
  if (!near) {
    // To a cluster farther away: around the others, before the first stages.
    const [x1, y1] = down ? [first.x + first.width / 2, first.y] : [first.x, first.y + first.height / 2];
    const [x2, y2] = down ? [second.x + second.width / 2, second.y] : [second.x, second.y + second.height / 2];
    path = down
      ? `M${x1} ${y1}C${x1} ${y1 - LOOP} ${x2} ${y2 - LOOP} ${x2} ${y2}`
      : `M${x1} ${y1}C${x1 - LOOP} ${y1} ${x2 - LOOP} ${y2} ${x2} ${y2}`;
    middle = { x: (x1 + x2) / 2 - (down ? 0 : LOOP * 0.75), y: (y1 + y2) / 2 - (down ? LOOP * 0.75 : 0) };
  } else if (down) {
    const [x1, y1] = [first.x + first.width, first.y + first.height / 2 + shift];
    const [x2, y2] = [second.x, second.y + second.height / 2 + shift];
    const half = (x2 - x1) / 2;
    path = `M${x1} ${y1}C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}`;
    middle = { x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
  } else {
    const [x1, y1] = [first.x + first.width / 2 + shift, first.y + first.height];
    const [x2, y2] = [second.x + second.width / 2 + shift, second.y];
    const half = (y2 - y1) / 2;
    path = `M${x1} ${y1}C${x1} ${y1 + half} ${x2} ${y2 - half} ${x2} ${y2}`;
    middle = { x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
  }
  return { forward: path, backward: path, middle };
}
