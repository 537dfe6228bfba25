/** Numbers and times as people read them. Pure: what is passed in decides what comes out. */

/** Between a number and its unit: thin, and no line ends there. */
const THIN = "\u202f";
const NOTHING = "–";
/** From here on a number is a loss that has run away, and its digits say nothing. */
const BEYOND = 1e7;

/**
 * About three digits, without pretending to know more.
 * @param {number|null|undefined} value
 */
export function digits(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size >= BEYOND) return value.toExponential(1);
  if (size >= 100 || value === 0) return Math.round(value).toLocaleString("en-GB");
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.01) return value.toFixed(2);
  return value.toExponential(1);
}

/**
 * The same without digits that say nothing: 42, not 42.0.
 * @param {number} value
 */
export const short = (value) => (Math.abs(value) >= 100 ? whole(value) : String(+value.toPrecision(3)));

/** @param {number} value */
export const whole = (value) => Math.round(value).toLocaleString("en-GB");

/**
 * @param {number} value
 * @param {string[]} units smallest first, each a thousand times the one before
 */
function scaled(value, units) {
  let index = 0;
  while (Math.abs(value) >= 999.5 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  const text = index === 0 ? whole(value) : value < 9.995 ? value.toFixed(1) : whole(value);
  return { text, unit: units[index] ?? "" };
}

/** @param {{text: string, unit: string}} quantity */
const joined = ({ text, unit }) => (unit ? `${text}${THIN}${unit}` : text);

/** @param {number} value */
export const bytesParts = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]);
/** @param {number} value */
export const bytes = (value) => joined(bytesParts(value));
/** @param {number} value */
export const bytesPerSecond = (value) => `${bytes(value)}/s`;
/** @param {number} value */
export const count = (value) => joined(scaled(value, ["", "k", "M", "G", "T"]));
/** @param {number} value */
export const gflopsParts = (value) => {
  const { text, unit } = scaled(value, ["G", "T", "P", "E"]);
  return { text, unit: `${unit}FLOP/s` };
};
/** @param {number} value */
export const gflops = (value) => joined(gflopsParts(value));
/** @param {number} value */
export const mbps = (value) =>
  value >= 999.5 ? `${(value / 1000).toFixed(1)}${THIN}Gbit/s` : `${short(value)}${THIN}Mbit/s`;

/**
 * Epochs so far, to the hundredth; never rounded up to one that has not ended.
 * @param {number} epochs
 */
export const passed = (epochs) => String(Math.floor(epochs * 100 + 1e-6) / 100);

/** @param {number} share of one */
export const percent = (share) => `${Math.round(share * 100)}${THIN}%`;

/** @param {number} seconds */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NOTHING;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)}${THIN}µs`;
  if (seconds < 1) return `${digits(seconds * 1000)}${THIN}ms`;
  if (seconds < 10) return `${seconds.toFixed(1)}${THIN}s`;
  if (seconds < 90) return `${Math.round(seconds)}${THIN}s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes}${THIN}min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}${THIN}h ${minutes % 60}${THIN}min`;
  return `${Math.round(hours / 24)}${THIN}days`;
}

/**
 * @param {number} at
 * @param {number} now
 */
export function ago(at, now) {
  const seconds = now - at;
  if (seconds < 5) return "just now";
  if (seconds < 5400) return `${duration(seconds)} ago`;
  const hours = Math.round(seconds / 3600);
  return hours < 48 ? `${hours}${THIN}h ago` : `${Math.round(hours / 24)}${THIN}days ago`;
}

/** @param {number} at seconds since 1970 */
export const moment = (at) => new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** @param {number} at seconds since 1970 */
export const timeOfDay = (at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour12: false });

/**
 * @param {number} number
 * @param {string} one
 * @param {string} [many]
 */
export const counted = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;

/**
 * A metric of unknown nature: shares of one as percent if the name says so.
 * @param {string} name
 * @param {number|null} value
 */
export function metric(name, value) {
  if (value === null || !Number.isFinite(value)) return NOTHING;
  if (/accuracy|precision|recall|f1/i.test(name) && value >= 0 && value <= 1) {
    return `${(value * 100).toFixed(1)}${THIN}%`;
  }
  return Math.abs(value) < 100 && Math.abs(value) >= 0.001 ? value.toPrecision(3) : digits(value);
}
