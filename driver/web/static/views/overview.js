// The first view: what needs a person, the way of a record, the numbers, a day of charts, and the newest batches.
import { Act } from "../actions.js";
import { get } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, compact, count, millis, plain, rate, seconds } from "../format.js";
import { html } from "../html.js";
import { Listing } from "../listing.js";
import { Advice, Fetching, State } from "../parts.js";
import { href, refine } from "../route.js";
import { verdict } from "../verdict.js";
import { Way } from "../way.js";
import { newest } from "./batches.js";

const RANGES = { "15 min": 900, "1 h": 3600, "6 h": 21600, "24 h": 86400 };
const POINTS = 300;

const CHARTS = [
  {
    title: "Throughput",
    format: rate,
    lines: [
      { name: "records_in_per_second", label: "taken in", color: "--line-1" },
      { name: "records_completed_per_second", label: "completed", color: "--line-2" },
    ],
  },
  {
    title: "Behind Kafka",
    format: compact,
    lines: [
      { name: "lag_records", label: "not taken in", color: "--line-1" },
      { name: "waiting_records", label: "wait for a batch", color: "--line-2" },
    ],
  },
  {
    title: "Batches",
    format: millis,
    lines: [
      { name: "scheduling_delay_ms", label: "scheduling delay", color: "--line-2" },
      { name: "processing_ms", label: "processing", color: "--line-1" },
      { name: "total_delay_ms", label: "total delay", color: "--line-3" },
    ],
  },
  { title: "From Kafka's timestamp to completion", format: millis, lines: [{ name: "end_to_end_ms", label: "end to end", color: "--line-1" }] },
];

const KIND_VIEWS = {
  partition: ["partitions", { state: "trouble" }],
  "partitions-without-receiver": ["partitions", {}],
  "receiver-gone": ["receivers", {}],
  "receiver-waiting": ["receivers", {}],
  "receiver-not-running": ["receivers", {}],
  "receiver-without-host": ["hosts", {}],
  "agent-gone": ["hosts", {}],
  "blocks-not-deleted": ["hosts", {}],
  job: ["batches", { failed: "true" }],
  "batch-unreadable": ["batches", { failed: "true" }],
  cursor: ["cursors", {}],
  wal: ["wal", {}],
  journal: ["journal", {}],
};

const ProblemItem = ({ problem }) => {
  const [view, query] = KIND_VIEWS[problem.kind] ?? ["overview", {}];
  return html`
    <li>
      <a class="kind" href=${href(view, [], query)}>${plain(problem.kind)}</a>
      <span class="cause">${plain(problem.cause)}</span>
      ${problem.seconds > 0 && html`<span class="muted since">for ${seconds(problem.seconds)}</span>`}
      ${problem.command && html`<div class="advice"><${Advice} text=${problem.command} /></div>`}
    </li>
  `;
};

const Problems = ({ overview }) => html`
  ${overview.problems.length > 0 &&
  html`<section class="problems" aria-labelledby="problems">
    <h2 id="problems">Needs a person <span class="count">${overview.problem_count || overview.problems.length}</span></h2>
    <ul>${overview.problems.map((problem) => html`<${ProblemItem} problem=${problem} />`)}</ul>
    ${overview.problem_count > overview.problems.length && html`<p class="muted">The first ${overview.problems.length} of ${overview.problem_count} are shown.</p>`}
  </section>`}
  ${overview.pending.length > 0 &&
  html`<details class="pending">
    <summary>${overview.pending_count || overview.pending.length} not yet a problem</summary>
    <ul>${overview.pending.map((problem) => html`<${ProblemItem} problem=${problem} />`)}</ul>
  </details>`}
`;

/** How many are in each state, each with a link to its list. */
const States = ({ title, view, of }) => {
  const entries = Object.entries(of);
  return html`
    <div class="tile">
      <a class="label" href=${href(view)}>${title}</a>
      ${entries.length === 0
        ? html`<b>0</b>`
        : html`<span class="states">${entries.map(([state, number]) => html`<a key=${state} href=${href(view, [], state === "silent" ? {} : { state })}><b>${count(number)}</b> <${State} state=${state} /></a>`)}</span>`}
    </div>
  `;
};

const Tile = ({ label, value, note }) => html`
  <div class="tile"><span class="label">${label}</span><b>${value}</b>${note && html`<span class="muted">${note}</span>`}</div>
`;

export class Overview extends Fetching {
  get everyMs() {
    return 10000;
  }

  question() {
    return this.props.route.query.range ?? "1 h";
  }

  async fetch() {
    const length = RANGES[this.question()] ?? RANGES["1 h"];
    const since = Math.round(this.props.store.now() - length * 1000);
    return { series: await get("/v1/series", { since_ms: since, points_max: POINTS }) };
  }

  render({ store, route }, { series = null, error }) {
    const { overview } = store;
    const { tone, text } = verdict(overview, series);
    const last = overview.last_batch;
    return html`
      <h1 tabindex="-1" class=${`verdict ${tone}`}>${text}</h1>
      ${overview.leader ? this.leader(overview) : null}
      ${!overview.leader && overview.problems.length === 0 && html`<p class="calm">Nothing needs a person.</p>`}
      <${Problems} overview=${overview} />
      ${!overview.leader &&
      html`
        <section aria-labelledby="way"><h2 id="way">The way of a record</h2><${Way} steps=${overview.steps} intervalMs=${overview.batch_interval_ms} /></section>
        <section class="tiles" aria-label="Numbers">
          <${Tile} label="Behind Kafka" value=${overview.lag_records === null ? "unknown" : `${compact(overview.lag_records)} records`} note=${overview.lag_seconds !== null ? `oldest not completed: ${seconds(overview.lag_seconds)}` : "age unknown"} />
          <${Tile} label="Processing of the last batch" value=${last ? (last.processing_ms === null ? last.state : millis(last.processing_ms)) : "none yet"} note=${last ? `${overview.batch_interval_ms ? `every ${millis(overview.batch_interval_ms)}` : "one after the other"}, delay ${millis(last.scheduling_delay_ms)}` : null} />
          <${Tile} label="Completed" value=${compact(overview.totals.records_completed)} note=${`records in ${count(overview.totals.batches_completed)} batches`} />
          <${Tile} label="In the WAL" value=${bytes(overview.totals.bytes)} note=${`${compact(overview.waiting_records)} records wait`} />
          <${States} title="Receivers" view="receivers" of=${overview.receivers} />
          <${States} title="Partitions" view="partitions" of=${overview.partitions} />
          <${States} title="Hosts" view="hosts" of=${overview.hosts} />
          <${States} title="Batches" view="batches" of=${overview.batches} />
        </section>
        ${this.charts(route, series, error)}
        <section aria-labelledby="newest">
          <h2 id="newest">Newest batches <a class="more" href=${href("batches")}>All batches</a></h2>
          <${Listing} spec=${newest} route=${{ name: "overview", args: [], query: {} }} store=${store} label="Newest batches" />
        </section>
        <section aria-labelledby="operate">
          <h2 id="operate">Operate</h2>
          <p class="acts">
            <${Act} store=${store} name=${overview.paused ? "resume" : "pause"} target=${overview.stream} />
            <${Act} store=${store} name="retry" target=${overview.stream} />
            <${Act} store=${store} name="drain" target=${overview.stream} />
            <${Act} store=${store} name="stop" target=${overview.stream} />
            ${!store.operator && html`<span class="muted">These need the role operator.</span>`}
          </p>
        </section>
      `}
    `;
  }

  leader({ leader }) {
    const isUrl = /^https?:\/\//.test(leader);
    return html`<p class="banner">${isUrl ? html`<a href=${leader} rel="noreferrer"><${"bdi"}>${plain(leader)}<//></a> leads this stream.` : "No driver that leads is known."}</p>`;
  }

  charts(route, series, error) {
    const chosen = this.question();
    return html`
      <section aria-labelledby="history">
        <h2 id="history">History
          <span class="ranges" role="group" aria-label="Time range">
            ${Object.keys(RANGES).map((range) => html`<button type="button" key=${range} class="small" aria-pressed=${range === chosen ? "true" : "false"} onClick=${() => refine(route, { range })}>${range}</button>`)}
          </span>
        </h2>
        ${error && html`<p class="muted">${plain(error.message)}</p>`}
        ${series && (series.times_ms.length > 1
          ? html`<div class="charts">${CHARTS.map((chart) => html`<${Chart} key=${chart.title} ...${chart} series=${series} />`)}</div>`
          : html`<p class="empty">The first values appear here within a minute after the driver has started.</p>`)}
      </section>
    `;
  }
}
