// The answer to "am I falling behind, where, and why", from the overview and the last minutes of the series. Pure.
import { compact, plain, seconds } from "./format.js";

const GROWTH = 0.2; // of the lag in the time looked at, before it counts as growing
const WINDOW_MS = 5 * 60 * 1000;
const PLACES = {
  kafka: "in Kafka: receivers take in less than producers send",
  blocks: "at the receivers, in blocks that are not stored yet",
  wal: "at the WAL: storing is slow",
  tracker: "in blocks that wait for a batch",
  batches: "in batches: the job is slower than the intake",
  committed: "before their commit",
};

/** Return `{tone, text}`. `series` may be null. */
export function verdict(overview, series) {
  if (overview.leader) return { tone: "busy", text: "Standby: this driver takes over if the driver that leads ends." };
  if (overview.state === "failed") return { tone: "bad", text: overview.problem_count > 0 ? "The stream stands still, and needs a person." : sentence("The driver failed", overview.detail) };
  if (overview.state !== "running") return { tone: "busy", text: sentence(`The driver is ${overview.state}`, overview.detail) };
  if (overview.paused) return { tone: "busy", text: sentence("Paused: the driver begins no batch", overview.pause_cause) };
  const trend = change(series);
  const age = overview.lag_seconds > 0 ? `; the oldest one not completed is ${seconds(overview.lag_seconds)} old` : "";
  const behind = `${compact(overview.lag_records)} records behind Kafka${age}.`;
  if (trend > 0) {
    const step = slowest(overview.steps);
    return { tone: "bad", text: `Falling behind by ${compact(trend)} records in ${seconds(WINDOW_MS / 1000)}. Most wait ${PLACES[step] ?? "in Kafka"}.` };
  }
  if (overview.problem_count > 0) return { tone: "bad", text: "The stream runs, and needs a person." };
  if (overview.lag_records === null) return { tone: "busy", text: "The stream runs. How far it is behind Kafka is not known yet." };
  return { tone: "ok", text: trend < 0 ? `Catching up: ${behind}` : `Keeping up: ${behind}` };
}

const sentence = (text, detail) => (detail ? `${text}: ${plain(detail)}` : `${text}.`);

/** Return by how many records lag and waiting records have grown; 0 if the change is small. */
function change(series) {
  if (!series) return 0;
  const first = series.times_ms.findIndex((ms) => ms >= series.times_ms.at(-1) - WINDOW_MS);
  const totals = series.times_ms
    .map((_, place) => sum(series.values.lag_records?.[place], series.values.waiting_records?.[place]))
    .slice(Math.max(first, 0))
    .filter((total) => total !== null);
  if (totals.length < 6) return 0;
  const third = Math.floor(totals.length / 3);
  const [before, after] = [mean(totals.slice(0, third)), mean(totals.slice(-third))];
  const taken = mean((series.values.records_in_per_second ?? []).filter((value) => value !== null)) || 0;
  const large = Math.max(GROWTH * Math.max(before, after), 10 * taken, 1);
  return Math.abs(after - before) >= large ? after - before : 0;
}

const sum = (lag, waiting) => (lag === null || lag === undefined ? null : lag + (waiting ?? 0));
const mean = (values) => values.reduce((total, value) => total + value, 0) / (values.length || 1);

/** Return the name of the step at which most records wait. */
export const slowest = (steps) =>
  steps.reduce((most, step) => ((step.waiting_records ?? 0) > (most?.waiting_records ?? 0) ? step : most), null)?.name;
