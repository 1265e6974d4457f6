// Partitions with their watermarks and lag.
import { Act } from "../actions.js";
import { compact, count, plain, rate, seconds } from "../format.js";
import { html } from "../html.js";
import { Advice, Facts, Name, State, TopicName } from "../parts.js";
import { href } from "../route.js";

const known = (offset) => (offset >= 0 ? count(offset) : "–");

export const partitions = {
  title: "Partitions",
  path: "/v1/partitions",
  list: "partitions",
  text: "Topic contains",
  states: ["active", "claiming", "claimed", "paused", "trouble", "unclaimed"],
  key: (row) => `${row.topic}/${row.partition}`,
  tone: (row) => (row.trouble ? "bad" : ""),
  empty: html`No partition yet. A receiver claims the partitions of the topics in <code>kafka.topics</code>; start one with <code>forebay receiver</code>, or all services with <code>forebay up</code>.`,
  columns: [
    { name: "partition", title: "Partition", sort: (row) => `${row.topic}/${String(row.partition).padStart(9, "0")}`, show: (row) => html`<${TopicName} of=${row} />` },
    { name: "state", title: "State", sort: (row) => row.state, show: (row) => html`<${State} state=${row.state} />` },
    { name: "lag", title: "Lag", numeric: true, sort: (row) => row.lag, show: (row) => count(row.lag) },
    { name: "age", title: "Lag, time", numeric: true, sort: (row) => row.lag_seconds, show: (row) => seconds(row.lag_seconds) },
    { name: "rate", title: "Limit", numeric: true, wide: true, sort: (row) => row.rate, show: (row) => (row.rate > 0 ? rate(row.rate) : "none") },
    { name: "low", title: "Low watermark", numeric: true, wide: true, sort: (row) => row.low_watermark, show: (row) => known(row.low_watermark) },
    { name: "completed", title: "Completed", numeric: true, wide: true, sort: (row) => row.completed, show: (row) => known(row.completed) },
    { name: "position", title: "Position", numeric: true, sort: (row) => row.position, show: (row) => known(row.position) },
    { name: "high", title: "High watermark", numeric: true, wide: true, sort: (row) => row.high_watermark, show: (row) => known(row.high_watermark) },
    { name: "receiver", title: "Receiver", wide: true, sort: (row) => row.receiver_id, show: (row) => html`<${Name} text=${row.receiver_id || "–"} />` },
  ],
  detail: (row, { store }) => html`
    ${row.trouble && html`<p class="failure"><${Advice} text=${row.trouble} /></p>`}
    ${row.foreign && html`<p class="warning">${plain(row.foreign)}</p>`}
    <${Facts}
      of=${{
        "low watermark": known(row.low_watermark),
        completed: known(row.completed),
        position: known(row.position),
        "high watermark": `${known(row.high_watermark)}${row.end_age_seconds >= 0 ? `, ${seconds(row.end_age_seconds)} old` : ""}`,
        "not completed": compact(row.position - row.completed),
        lag: row.lag === null ? "unknown: no recent end offset" : `${count(row.lag)} records, ${seconds(row.lag_seconds)}`,
        receiver: row.receiver_id ? html`<a href=${href("receivers", [], { text: row.receiver_id, open: row.receiver_id })}><${Name} text=${row.receiver_id} /></a>` : "none",
        token: row.token,
        incarnation: row.life,
        "topic id": plain(row.topic_id),
      }}
    />
    <p class="acts">
      <a href=${href("blocks", [], { topic: row.topic, partition: row.partition })}>Blocks of this partition</a>
      <${Act} store=${store} name="reset" target=${`${row.topic}/${row.partition}`} body=${{ topic: row.topic, partition: row.partition }} />
      ${row.trouble && html`<${Act} store=${store} name="acceptGap" target=${`${row.topic}/${row.partition}`} body=${{ topic: row.topic, partition: row.partition }} />`}
      ${row.receiver_id && html`<${Act} store=${store} name="fence" target=${row.receiver_id} body=${{ topic: row.topic, partition: row.partition, receiver_id: row.receiver_id }} />`}
    </p>
  `,
};
