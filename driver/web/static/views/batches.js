// Batches, and one batch with its ranges and blocks.
import { Act } from "../actions.js";
import { get } from "../api.js";
import { bytes, count, millis, plain } from "../format.js";
import { html } from "../html.js";
import { Age, Empty, Facts, Failure, Fetching, Moment, State, TopicName, counters, sizeOf } from "../parts.js";
import { href } from "../route.js";

const base = {
  title: "Batches",
  path: "/v1/batches",
  list: "batches",
  key: (row) => String(row.batch_id),
  link: (row) => href("batches", [row.batch_id]),
  tone: (row) => (["failing", "failed", "unreadable"].includes(row.state) ? "bad" : ""),
  empty: html`No batch yet. The driver makes one as soon as a block has arrived: produce records to the topic, and see that a <a href="#/receivers">receiver</a> is active.`,
  columns: [
    { name: "number", title: "Batch", show: (row) => count(row.number) },
    { name: "state", title: "State", sort: (row) => row.state, show: (row) => html`<${State} state=${row.state} />${row.rerun || row.replay ? html` <span class="tag">${row.replay ? `replay ${row.replay}` : "rerun"}</span>` : ""}` },
    { name: "time", title: "Time", sort: (row) => row.time_ms, show: (row, { now }) => html`<${Age} ms=${row.time_ms} now=${now} />` },
    { name: "records", title: "Records", numeric: true, sort: (row) => row.records, show: (row) => count(row.records) },
    { name: "bytes", title: "Input", numeric: true, wide: true, sort: (row) => row.bytes, show: (row) => sizeOf(row.bytes) },
    { name: "scheduling", title: "Scheduling delay", numeric: true, wide: true, sort: (row) => row.scheduling_delay_ms, show: (row) => millis(row.scheduling_delay_ms) },
    { name: "processing", title: "Processing", numeric: true, sort: (row) => row.processing_ms, show: (row) => millis(row.processing_ms) },
    { name: "total", title: "Total delay", numeric: true, wide: true, sort: (row) => row.total_delay_ms, show: (row) => millis(row.total_delay_ms) },
    { name: "end", title: "End to end", numeric: true, wide: true, sort: (row) => row.end_to_end_ms, show: (row) => millis(row.end_to_end_ms) },
    { name: "tiers", title: "Tiers", wide: true, show: (row) => counters(row.tiers) },
    { name: "attempts", title: "Attempts", numeric: true, wide: true, sort: (row) => row.attempts, show: (row) => count(row.attempts) },
  ],
};

export const batches = {
  ...base,
  text: "Id, number or error contains",
  states: ["queued", "running", "failing", "failed", "unreadable", "completed"],
  filters: [{ name: "failed", label: "failed only", kind: "check" }],
};

/** The list in the first view, without filters. */
export const newest = { ...base, columns: base.columns.filter(({ name }) => !["end", "attempts"].includes(name)).map(({ sort, ...column }) => column), short: 8 };

const ranges = (rows) => html`
  <div class="scroll" role="region" aria-label="Ranges" tabindex="0">
    <table>
      <thead><tr><th scope="col">Partition</th><th scope="col" class="number">From</th><th scope="col" class="number">Until</th><th scope="col" class="number">Records</th><th scope="col" class="number wide">Bytes</th><th scope="col" class="number wide">Incarnation</th></tr></thead>
      <tbody>
        ${rows.map((range) => html`<tr><th scope="row"><a href=${href("blocks", [], { topic: range.topic, partition: range.partition })}><${TopicName} of=${range} /></a></th>
          <td class="number">${count(range.from)}</td><td class="number">${count(range.until)}</td><td class="number">${count(range.records)}</td>
          <td class="number wide">${bytes(range.bytes)}</td><td class="number wide">${range.life}</td></tr>`)}
      </tbody>
    </table>
  </div>
`;
export { ranges as RangeTable };

/** Scheduling delay and processing time as parts of the total delay. */
const Timeline = ({ batch }) => {
  if (!batch.total_delay_ms || batch.processing_ms === null) return null;
  const total = batch.total_delay_ms;
  const part = (name, label, value) =>
    value > 0 ? html`<span class=${`part ${name}`} style=${{ flexGrow: value / total }} title=${`${label} ${millis(value)}`}><span>${label} ${millis(value)}</span></span>` : null;
  const rest = total - (batch.scheduling_delay_ms ?? 0) - (batch.processing_ms ?? 0);
  return html`<div class="timeline">${part("scheduling", "waited", batch.scheduling_delay_ms)}${part("processing", "processing", batch.processing_ms)}${part("rest", "other", rest)}</div>`;
};

function tasks(blocks) {
  if (!blocks.length) return "–";
  const [least, most] = [Math.min(...blocks), Math.max(...blocks)];
  return `${count(blocks.length)}, with ${least === most ? least : `${least} to ${most}`} blocks each`;
}

export class BatchView extends Fetching {
  question() {
    return this.props.route.args[0];
  }

  async fetch() {
    return { detail: await get(`/v1/batches/${encodeURIComponent(this.question())}`) };
  }

  render({ store }, { detail, error }) {
    if (error?.status === 404) {
      return html`<h1 tabindex="-1">Batch</h1><${Empty}>The driver does not know this batch any more. <a href=${href("batches")}>All batches</a>; older ones are in the history, which <code>forebay audit</code> reads.<//>`;
    }
    if (!detail) return error ? html`<h1 tabindex="-1">Batch</h1><${Failure} error=${error} />` : html`<h1 tabindex="-1">Batch</h1><p class="muted">Loading…</p>`;
    const { batch } = detail;
    const id = String(batch.batch_id);
    return html`
      <nav class="path" aria-label="Path"><a href=${href("batches")}>Batches</a></nav>
      <h1 tabindex="-1">Batch ${count(batch.number)} <${State} state=${batch.state} /></h1>
      ${error && html`<${Failure} error=${error} />`}
      ${batch.detail && html`<section class="failure-box" aria-label="Error"><pre>${plain(batch.detail)}</pre>${batch.place && html`<p>in your code: <code>${plain(batch.place)}</code></p>`}</section>`}
      <${Timeline} batch=${batch} />
      <${Facts}
        of=${{
          id,
          time: html`<${Moment} ms=${batch.time_ms} now=${store.now()} />`,
          completed: batch.completed_ms ? html`<${Moment} ms=${batch.completed_ms} now=${store.now()} />` : "not yet",
          records: count(batch.records),
          input: `${bytes(batch.bytes)} in ${count(batch.blocks)} blocks`,
          "scheduling delay": millis(batch.scheduling_delay_ms),
          processing: millis(batch.processing_ms),
          "total delay": millis(batch.total_delay_ms),
          "end to end": millis(batch.end_to_end_ms),
          attempts: batch.attempts,
          "tiers read": counters(batch.tiers),
          tasks: tasks(detail.tasks),
          run: batch.replay ? `replay ${batch.replay}` : batch.rerun ? "rerun: an earlier attempt may have run it" : "first",
          "outputs done": batch.outputs.length ? batch.outputs.map(plain).join(", ") : null,
          written: batch.written.length ? batch.written.map(plain).join("; ") : null,
        }}
      />
      <p class="acts">
        ${batch.state === "failing" && html`<span class="muted">The driver tries again by itself. After <code>driver.job_max_failures</code> attempts the batch is failed, and an operator can retry or skip it.</span>`}
        ${["failed", "unreadable"].includes(batch.state) &&
        html`<${Act} store=${store} name="retry" target=${store.overview.stream} /><${Act} store=${store} name="skip" target=${id} body=${{ batch_id: batch.batch_id }} />`}
        ${batch.state === "unreadable" && html`<${Act} store=${store} name="acceptLoss" target=${id} body=${{ batch_id: batch.batch_id }} />`}
        ${batch.state === "completed" && html`<${Act} store=${store} name="replay" target=${id} body=${{ batch: batch.batch_id }} />`}
      </p>
      <h2>Ranges</h2>
      ${detail.ranges.length ? ranges(detail.ranges) : html`<p class="muted">No range is known any more.</p>`}
      <h2>Blocks</h2>
      ${detail.block_ids.length
        ? html`<ul class="links">${detail.block_ids.map((block) => html`<li><a href=${href("blocks", [block])}>${plain(block)}</a></li>`)}</ul>`
        : html`<p class="muted">No block is known any more.</p>`}
      ${batch.blocks > detail.block_ids.length && detail.block_ids.length > 0 && html`<p class="muted">The first ${count(detail.block_ids.length)} of ${count(batch.blocks)} are shown.</p>`}
    `;
  }
}
