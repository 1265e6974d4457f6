// The way of a record as one live picture: each step with its rate, its waiting records, and the age of the oldest of them.
import { bytes, compact, count, plain, rate, seconds } from "./format.js";
import { html } from "./html.js";
import { href } from "./route.js";
import { slowest } from "./verdict.js";

const STEPS = {
  kafka: ["Kafka", "partitions"],
  blocks: ["Blocks", "receivers"],
  wal: ["WAL", "wal"],
  tracker: ["Tracker", "blocks"],
  batches: ["Batches", "batches"],
  committed: ["Committed", "cursors"],
};

/** Return the driver's sentence with its numbers as the rest of the page has them. */
const units = (text) => text.replace(/\b(\d+) bytes/g, (_, size) => bytes(Number(size))).replace(/\b\d{4,}\b/g, (number) => count(Number(number)));

/** `intervalMs`: the batch interval; records that wait for more than some of them are marked. */
export function Way({ steps, intervalMs }) {
  const late = Math.max(10, (3 * intervalMs) / 1000);
  const most = slowest(steps);
  return html`
    <ol class="way">
      ${steps.map((step) => {
        const [title, view] = STEPS[step.name] ?? [step.name, "overview"];
        const isLate = step.oldest_seconds !== null && step.oldest_seconds > late;
        const flows = step.records_per_second > 0 ? "flows" : "";
        return html`
          <li key=${step.name} class=${`${flows} ${isLate ? "late" : ""}`}>
            <a href=${href(view)}>
              <span class="step">${plain(title)}</span>
              <span class="rate">${rate(step.records_per_second)}</span>
              <span class="fact"><span class="label">waiting</span> <b>${compact(step.waiting_records)}</b></span>
              <span class="fact"><span class="label">oldest</span> <b>${step.waiting_records === 0 ? "–" : seconds(step.oldest_seconds)}</b></span>
              <span class="fact"><span class="label">delay</span> <b>${seconds(step.delay_seconds)}</b></span>
              ${isLate && step.name === most && html`<span class="mark">Most wait here</span>`}
              ${step.detail && html`<span class="note">${plain(units(step.detail))}</span>`}
            </a>
          </li>
        `;
      })}
    </ol>
  `;
}
