// Blocks, one block with its ranges, and a look into its records.
import { get } from "../api.js";
import { asHex, asJson, asText, batchNumber, bytes, count, fromBase64, plain, utc } from "../format.js";
import { Component, html } from "../html.js";
import { Age, Empty, Facts, Failure, Fetching, Moment, Name, State, rangeText, sizeOf } from "../parts.js";
import { href, refine } from "../route.js";
import { RangeTable } from "./batches.js";

const PAGE = 20;
const VALUE_BYTES = 4096;

export const blocks = {
  title: "Blocks",
  path: "/v1/blocks",
  list: "blocks",
  text: "Id contains",
  states: ["waiting", "queued", "completed"],
  filters: [
    { name: "batch", label: "Batch id" },
    { name: "topic", label: "Topic" },
    { name: "partition", label: "Partition" },
    { name: "offset", label: "Offset" },
  ],
  key: (row) => row.block_id,
  link: (row) => href("blocks", [row.block_id]),
  empty: html`The journal names no block. A receiver reports the first one when it has taken in records: produce some to the topic.`,
  columns: [
    { name: "id", title: "Block", sort: (row) => row.block_id, show: (row) => html`<${Name} text=${row.block_id} />` },
    { name: "state", title: "State", sort: (row) => row.state, show: (row) => html`<${State} state=${row.state} />` },
    { name: "created", title: "Created", sort: (row) => row.created_ms, show: (row, { now }) => html`<${Age} ms=${row.created_ms} now=${now} />` },
    { name: "records", title: "Records", numeric: true, sort: (row) => row.records, show: (row) => count(row.records) },
    { name: "bytes", title: "Bytes", numeric: true, wide: true, sort: (row) => row.bytes, show: (row) => sizeOf(row.bytes) },
    { name: "host", title: "Host", wide: true, sort: (row) => row.host, show: (row) => html`<${Name} text=${row.host} />` },
    { name: "batch", title: "Batch", numeric: true, sort: (row) => row.batch_id, show: (row) => (row.batch_id ? count(batchNumber(row.batch_id)) : "none yet") },
    { name: "ranges", title: "Ranges", wide: true, show: (row) => html`<${Name} text=${row.ranges.slice(0, 3).map(rangeText).join(", ") + (row.range_count > 3 ? ` and ${row.range_count - 3} more` : "")} />` },
  ],
};

export class BlockView extends Fetching {
  question() {
    return this.props.route.args[0];
  }

  async fetch() {
    return { block: await get(`/v1/blocks/${encodeURIComponent(this.question())}`) };
  }

  render({ store, route }, { block, error }) {
    const id = this.question();
    return html`
      <nav class="path" aria-label="Path"><a href=${href("blocks")}>Blocks</a>${block?.batch_id ? html` <a href=${href("batches", [block.batch_id])}>Batch ${count(batchNumber(block.batch_id))}</a>` : ""}</nav>
      <h1 tabindex="-1">Block <${Name} text=${id} /> ${block && html`<${State} state=${block.state} />`}</h1>
      ${error?.status === 404 ? html`<${Empty}>The journal does not name this block any more. Blocks leave it when nothing needs them.<//>` : error && html`<${Failure} error=${error} />`}
      ${block &&
      html`
        <${Facts}
          of=${{
            receiver: html`<a href=${href("receivers", [], { text: block.receiver_id, open: block.receiver_id })}><${Name} text=${block.receiver_id} /></a>`,
            host: plain(block.host),
            created: html`<${Moment} ms=${block.created_ms} now=${store.now()} />`,
            records: count(block.records),
            bytes: bytes(block.bytes),
            "stored at": block.tiers.length ? block.tiers.map(plain).join(", ") : "–",
            place: block.handle ? plain(block.handle) : "not in a WAL",
          }}
        />
        <h2>Ranges</h2>
        ${RangeTable(block.ranges)}
        ${block.range_count > block.ranges.length && html`<p class="muted">The first ${count(block.ranges.length)} of ${count(block.range_count)} are shown.</p>`}
        <${Records} key=${id} store=${store} route=${route} id=${id} />
      `}
    `;
  }
}

const FORMATS = ["text", "json", "hex"];

/** Records of a block. They are read only when a person asks for them. */
class Records extends Component {
  componentDidMount() {
    if (this.props.route.query.from !== undefined) this.load();
  }

  componentDidUpdate(before) {
    const { from } = this.props.route.query;
    if (from !== undefined && from !== before.route.query.from) this.load();
  }

  async load() {
    const { id, route, store } = this.props;
    if (!store.mayReadRecords) return;
    this.setState({ busy: true });
    try {
      const answer = await get(`/v1/blocks/${encodeURIComponent(id)}/records`, { from: route.query.from ?? 0, limit: PAGE, bytes_max: VALUE_BYTES });
      this.setState({ answer, error: null, busy: false });
    } catch (error) {
      if (error.status === 401) store.signOut("The driver no longer accepts this token.");
      else this.setState({ error, busy: false });
    }
  }

  render({ store, route }, { answer, error, busy }) {
    const format = FORMATS.includes(route.query.format) ? route.query.format : "text";
    const from = Number(route.query.from ?? 0);
    return html`
      <h2>Records</h2>
      ${!store.mayReadRecords
        ? html`<p class="empty">Records may hold personal data: this needs a token with the role query or operator.</p>`
        : html`
            <div class="filters">
              ${route.query.from === undefined && html`<button type="button" onClick=${() => refine(route, { from: 0 })}>Show records</button>`}
              ${answer && html`<span role="group" aria-label="Form of keys and values" class="ranges">${FORMATS.map((name) => html`<button type="button" class="small" aria-pressed=${name === format ? "true" : "false"} onClick=${() => refine(route, { format: name })}>${name === "json" ? "JSON" : name}</button>`)}</span>`}
              ${busy && html`<span class="muted">Reading…</span>`}
            </div>
          `}
      ${error && html`<${Failure} error=${error} />`}
      ${answer && answer.records.map((record) => html`<${Record} key=${`${record.topic}/${record.partition}/${record.offset}`} record=${record} format=${format} />`)}
      ${answer &&
      html`<nav class="pages" aria-label="Pages of records">
        <span>${answer.records.length ? `${count(from + 1)} to ${count(from + answer.records.length)}` : "none"} of ${count(answer.total)}${answer.tier ? `, read from ${plain(answer.tier)}` : ""}</span>
        ${from > 0 && html`<button type="button" class="small" onClick=${() => refine(route, { from: Math.max(0, from - PAGE) })}>Previous</button>`}
        ${from + answer.records.length < answer.total && html`<button type="button" class="small" onClick=${() => refine(route, { from: from + answer.records.length })}>Next</button>`}
      </nav>`}
    `;
  }
}

const Record = ({ record, format }) => html`
  <article class="record" aria-label=${plain(`Record ${record.topic}/${record.partition} offset ${record.offset}`)}>
    <header><${Name} text=${`${record.topic}/${record.partition}`} /> <b>${count(record.offset)}</b> <span class="muted">${utc(record.timestamp_ms)}</span>
      ${record.truncated && html` <span class="tag">cut off</span>`}</header>
    <dl>
      <div><dt>key <span class="muted">${bytes(record.key_bytes)}</span></dt><dd><${Value} data=${record.key} format=${format} /></dd></div>
      <div><dt>value <span class="muted">${bytes(record.value_bytes)}</span></dt><dd><${Value} data=${record.value} format=${format} /></dd></div>
      ${record.headers.map((header) => html`<div><dt>header <${Name} text=${header.name} /></dt><dd><${Value} data=${header.value} format=${format} /></dd></div>`)}
    </dl>
  </article>
`;

function Value({ data, format }) {
  if (data === null) return html`<span class="muted">null</span>`;
  const raw = fromBase64(data);
  if (raw.length === 0) return html`<span class="muted">empty</span>`;
  if (format === "hex") return html`<pre>${asHex(raw)}</pre>`;
  const json = format === "json" ? asJson(raw) : null;
  return html`<pre>${json ?? asText(raw)}</pre>${format === "json" && json === null ? html`<span class="muted">not JSON</span>` : ""}`;
}
