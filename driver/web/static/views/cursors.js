// Cursors of queries, and direct streams that read through the intake.
import { Act } from "../actions.js";
import { get } from "../api.js";
import { bytes, compact, count, plain, seconds } from "../format.js";
import { html } from "../html.js";
import { Empty, Facts, Failure, Fetching, Moment, Name, State, TopicName } from "../parts.js";

const detail = (row, { store, now }) => html`
  ${row.detail && html`<p>${plain(row.detail)}</p>`}
  <${Facts} of=${{ user: plain(row.user), opened: html`<${Moment} ms=${row.opened_ms} now=${now} />`, behind: `${count(row.behind)} offsets` }} />
  ${row.places.length > 0 &&
  html`<div class="scroll" role="region" aria-label="Positions" tabindex="0"><table>
    <thead><tr><th scope="col">Partition</th><th scope="col" class="number">Next offset</th><th scope="col" class="number">Incarnation</th></tr></thead>
    <tbody>${row.places.map((place) => html`<tr><th scope="row"><${TopicName} of=${place} /></th><td class="number">${count(place.offset)}</td><td class="number">${place.life}</td></tr>`)}</tbody>
  </table></div>`}
  ${row.state !== "dropped" && html`<p class="acts"><${Act} store=${store} name="dropCursor" target=${row.cursor} body=${{ cursor: row.cursor }} /></p>`}
`;

export const cursors = {
  title: "Cursors",
  path: "/v1/cursors",
  list: "cursors",
  states: ["at work", "silent", "expired", "dropped"],
  key: (row) => row.cursor,
  tone: (row) => (row.state === "expired" ? "bad" : ""),
  empty: html`No query reads over this intake. One begins with <code>spark.readStream.format("forebay").option("intake", …)</code>, and keeps its position here.`,
  note: (answer) => html`<p class="muted">The WAL holds ${bytes(answer.held_bytes)} only for cursors.</p>`,
  columns: [
    { name: "cursor", title: "Cursor", sort: (row) => row.cursor, show: (row) => html`<${Name} text=${row.cursor} />` },
    { name: "state", title: "State", sort: (row) => row.state, show: (row) => html`<${State} state=${row.state} />` },
    { name: "behind", title: "Behind", numeric: true, sort: (row) => row.behind, show: (row) => compact(row.behind) },
    { name: "silent", title: "Last heartbeat", numeric: true, sort: (row) => row.silent_seconds, show: (row) => `${seconds(row.silent_seconds)} ago` },
    { name: "user", title: "User", wide: true, sort: (row) => row.user, show: (row) => html`<${Name} text=${row.user} />` },
    { name: "detail", title: "Detail", wide: true, show: (row) => plain(row.detail) },
  ],
  detail,
};

export class DirectView extends Fetching {
  async fetch() {
    return { answer: await get("/v1/direct") };
  }

  render({ store }, { answer, error }) {
    return html`
      <h1 tabindex="-1">Direct streams</h1>
      <p class="intro">Direct streams that read through this intake. A direct stream that reads only Kafka is unknown to the driver: its own log and the Spark UI show it.</p>
      ${error && html`<${Failure} error=${error} />`}
      ${answer?.streams.length === 0 && html`<${Empty}>No direct stream reads through this intake.<//>`}
      ${answer?.streams.map((stream) => html`<section><h2><${Name} text=${stream.name} /> <${State} state=${stream.cursor.state} /></h2>${detail(stream.cursor, { store, now: store.now() })}</section>`)}
    `;
  }
}
