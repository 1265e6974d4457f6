// Receivers, and the hosts with their agents.
import { Act } from "../actions.js";
import { bytes, count, plain, rate, seconds } from "../format.js";
import { html } from "../html.js";
import { Facts, Name, State, counters, sizeOf } from "../parts.js";
import { href } from "../route.js";

const HEARTBEATS = 2; // missed, before a process is shown as silent

/** Return the state, or "silent" if a process that should send heartbeats has missed some. */
export function seen(row, { store }) {
  const ended = ["lost", "fenced", "stopped"].includes(row.state);
  return !ended && row.silent_seconds > HEARTBEATS * store.overview.heartbeat_seconds ? "silent" : row.state;
}

const silence = (row) => (row.silent_seconds >= 0 ? seconds(row.silent_seconds) : "none yet");

export const receivers = {
  title: "Receivers",
  path: "/v1/receivers",
  list: "receivers",
  text: "Id contains",
  states: ["active", "waiting", "starting", "registered", "draining", "lost", "fenced"],
  key: (row) => row.receiver_id,
  tone: (row, context) => (["silent", "lost"].includes(seen(row, context)) ? "bad" : ""),
  empty: html`No receiver is registered. Start one with <code>forebay receiver</code>, or all services with <code>forebay up</code>.`,
  columns: [
    { name: "id", title: "Receiver", sort: (row) => row.receiver_id, show: (row) => html`<${Name} text=${row.receiver_id} />` },
    { name: "state", title: "State", sort: seen, show: (row, context) => html`<${State} state=${seen(row, context)} />` },
    { name: "heartbeat", title: "Last heartbeat", numeric: true, sort: (row) => row.silent_seconds, show: silence },
    { name: "host", title: "Host", sort: (row) => row.host, show: (row) => html`<${Name} text=${row.host} />` },
    { name: "records", title: "Records", numeric: true, sort: (row) => row.records, show: (row) => count(row.records) },
    { name: "rate", title: "Limit", numeric: true, wide: true, sort: (row) => row.rate, show: (row) => (row.rate > 0 ? rate(row.rate) : "none") },
    { name: "buffered", title: "Buffered", numeric: true, wide: true, sort: (row) => row.buffered_bytes, show: (row) => sizeOf(row.buffered_bytes) },
    { name: "detail", title: "Detail", wide: true, show: (row) => plain(row.detail) },
  ],
  detail: (row, { store, answer }) => {
    const managed = (answer.managed ?? []).find(({ receiver_id }) => receiver_id === row.receiver_id);
    return html`
      ${row.detail && html`<p>${plain(row.detail)}</p>`}
      ${managed?.trouble && html`<p class="failure">${plain(managed.trouble)}</p>`}
      <${Facts}
        of=${{
          "last heartbeat": row.silent_seconds >= 0 ? `${seconds(row.silent_seconds)} ago` : "none yet",
          epoch: row.epoch.toString(16),
          release: plain(row.release),
          counters: counters(row.counters),
          managed: managed ? `${managed.state}${managed.pid ? `, process ${managed.pid}` : ""}, ${managed.restarts} restarts` : "no: static",
          "last exit": managed?.exit_code ?? null,
          "moves to": managed?.moves_to ? plain(managed.moves_to) : null,
        }}
      />
      ${row.errors.length > 0 &&
      html`<h2>Recent errors</h2><ul class="errors">${row.errors.map((error) => html`<li>${plain(error.words)} <span class="muted">${error.count > 1 ? `${count(error.count)} times, last ` : ""}${seconds(error.seconds_ago)} ago</span></li>`)}</ul>`}
      <p class="acts">
        <${Act} store=${store} name="restart" target=${row.receiver_id} body=${{ receiver_id: row.receiver_id }} />
        ${seen(row, { store }) !== "active" && html`<${Act} store=${store} name="forget" target=${row.receiver_id} body=${{ name: row.receiver_id }} />`}
      </p>
    `;
  },
};

export const hosts = {
  title: "Hosts",
  path: "/v1/hosts",
  list: "hosts",
  text: "Host contains",
  key: (row) => row.host,
  tone: (row, context) => (seen(row, context) === "silent" ? "bad" : ""),
  empty: html`No agent sends heartbeats. Each host of Spark executors needs one: <code>forebay agent</code>.`,
  columns: [
    { name: "host", title: "Host", sort: (row) => row.host, show: (row) => html`<${Name} text=${row.host} />` },
    { name: "state", title: "State", sort: seen, show: (row, context) => html`<${State} state=${seen(row, context)} />` },
    { name: "heartbeat", title: "Last heartbeat", numeric: true, sort: (row) => row.silent_seconds, show: silence },
    { name: "blocks", title: "Blocks", numeric: true, sort: (row) => row.blocks, show: (row) => count(row.blocks) },
    { name: "used", title: "Used", numeric: true, sort: (row) => row.used_bytes, show: (row) => sizeOf(row.used_bytes) },
    { name: "free", title: "Free", numeric: true, sort: (row) => row.free_bytes, show: (row) => sizeOf(row.free_bytes) },
    { name: "load", title: "Load", numeric: true, wide: true, sort: (row) => row.load, show: (row) => row.load.toFixed(2) },
    { name: "damaged", title: "Damaged", numeric: true, wide: true, sort: (row) => row.damaged_blocks, show: (row) => count(row.damaged_blocks) },
  ],
  detail: (row, { store }) => html`
    <${Facts}
      of=${{
        url: plain(row.url),
        release: plain(row.release),
        "managed receivers": `at most ${row.capacity}`,
        labels: row.labels.map(plain).join(", "),
        requests: count(row.requests),
        "cached copies": count(row.copies),
        "damaged copies": row.damaged.length ? row.damaged.map(plain).join(", ") : "none",
        "blocks not deleted": row.undeleted_blocks ? `${count(row.undeleted_blocks)}: ${plain(row.undeleted_cause)}` : "none",
        space: `${bytes(row.used_bytes)} used, ${bytes(row.free_bytes)} free`,
      }}
    />
    <p class="acts">
      <a href=${href("receivers", [], { text: "" })}>Receivers</a>
      <${Act} store=${store} name="forget" target=${row.host} body=${{ name: row.host }} />
    </p>
  `,
};
