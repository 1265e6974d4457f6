// Numbers, units, times and foreign text, as people read them. Pure functions.

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Return `value` with separators of thousands; "–" if it is unknown. */
export const count = (value) => (isNumber(value) ? whole.format(value) : UNKNOWN);

/** Return a large count with a prefix, such as `12.3 M`. */
export function compact(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (Math.abs(value) >= size) return `${short.format(value / size)} ${unit}`;
  }
  return whole.format(value);
}

/** Return records per second. */
export function rate(value) {
  if (!isNumber(value)) return UNKNOWN;
  return `${value > 0 && value < 10 ? short.format(value) : compact(Math.round(value))}/s`;
}

export function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${short.format(value / size)} ${unit}`;
  }
  return `${whole.format(value)} B`;
}

/** Return a duration in seconds with at most two units. */
export function seconds(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 0) return UNKNOWN;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${short.format(value)} s`;
  const parts = [];
  let left = Math.round(value);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const number = Math.floor(left / size);
    left -= number * size;
    if (number > 0) parts.push(`${number} ${unit}`);
    else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ");
}

export const millis = (value) => (isNumber(value) ? seconds(value / 1000) : UNKNOWN);

/** Return a time as ISO date and time with its zone, to the second. */
export const utc = (ms) => (isNumber(ms) && ms > 0 ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC` : UNKNOWN);

/** Return how long before `now` the time `ms` is. */
export function ago(ms, now) {
  if (!isNumber(ms) || ms <= 0) return UNKNOWN;
  const age = (now - ms) / 1000;
  return age < 1 ? "now" : `${seconds(age < 60 ? Math.floor(age) : age)} ago`;
}

// control characters, and those that change the direction of the text around them or are invisible
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Return foreign text with each invisible or direction-changing character as an escape. */
export const plain = (text) =>
  String(text).replace(HIDDEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Return the bytes of base64. */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** Return bytes as UTF-8 text, with escapes for what is not text. */
export const asText = (data) => plain(new TextDecoder().decode(data));

/** Return bytes as indented JSON; null if they are not JSON. Numbers, strings and repeated names stay as written. */
export function asJson(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    JSON.parse(text); // throws if it is not JSON; its values would lose digits and repeated names
    return plain(indented(text));
  } catch {
    return null;
  }
}

// a string, a sign of the structure, or a number or word
const TOKEN = /"(?:[^"\\]|\\.)*"|[[\]{}:,]|[^\s"[\]{}:,]+/g;

/** Return valid JSON with one item per line. */
function indented(text) {
  const out = [];
  let depth = 0;
  let opened = false; // whether the last token opened an array or object
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(TOKEN)) {
    const closes = token === "]" || token === "}";
    if (closes) depth -= 1;
    if (closes !== opened) out.push(line());
    out.push(token);
    opened = token === "[" || token === "{";
    if (opened) depth += 1;
    else if (token === ",") out.push(line());
    else if (token === ":") out.push(" ");
  }
  return out.join("");
}

/** Return lines of 16 bytes: place, hexadecimal, and printable ASCII. */
export function asHex(data) {
  const lines = [];
  for (let start = 0; start < data.length; start += 16) {
    const row = [...data.subarray(start, start + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

/** Return the number of a batch in its timeline: the low 40 bits of its id. */
export const batchNumber = (id) => id % 2 ** 40;
