// Settings in force, the listeners, and the events since this page was opened.
import { get } from "../api.js";
import { count, plain, utc } from "../format.js";
import { html } from "../html.js";
import { Age, Empty, Failure, Fetching, Name } from "../parts.js";
import { refine } from "../route.js";

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

export class SettingsView extends Fetching {
  get everyMs() {
    return 60000;
  }

  async fetch() {
    return { answer: await get("/v1/settings") };
  }

  render({ route }, { answer, error }) {
    const { text = "", changed = "" } = route.query;
    const rows = (answer?.settings ?? []).filter((setting) => setting.key.includes(text.toLowerCase()) && (!changed || setting.origin !== "default"));
    return html`
      <h1 tabindex="-1">Settings in force</h1>
      <p class="intro">Secrets are hidden. To change a setting, change <code>forebay.toml</code> and restart the service.</p>
      <form class="filters" role="search" aria-label="Filter settings" onSubmit=${(event) => event.preventDefault()}>
        <label>Key contains<input type="search" value=${text} onInput=${(event) => refine(route, { text: event.target.value.trim() })} /></label>
        <label class="check"><input type="checkbox" checked=${changed === "true"} onChange=${(event) => refine(route, { changed: event.target.checked ? "true" : "" })} /> only those that are set</label>
      </form>
      ${error && html`<${Failure} error=${error} />`}
      ${answer && rows.length === 0 && html`<${Empty}>Nothing matches.<//>`}
      ${rows.length > 0 &&
      html`<div class="scroll" role="region" aria-label="Settings" tabindex="0"><table>
        <thead><tr><th scope="col">Key</th><th scope="col">Value</th><th scope="col">Origin</th></tr></thead>
        <tbody>${rows.map((setting) => html`<tr key=${setting.key}><th scope="row"><${Name} text=${setting.key} />${setting.description && html`<span class="note">${plain(setting.description)}</span>`}</th><td class="value"><code>${plain(written(setting.value))}</code></td><td class=${setting.origin === "default" ? "muted" : ""}>${plain(setting.origin)}</td></tr>`)}</tbody>
      </table></div>`}
    `;
  }
}

export class EventsView extends Fetching {
  async fetch() {
    return { answer: await get("/v1/listeners") };
  }

  render({ store, route }, { answer, error }) {
    const { kind = "" } = route.query;
    const kinds = [...new Set(store.happened.map((event) => event.kind))].sort();
    const shown = store.happened.filter((event) => !kind || event.kind === kind);
    return html`
      <h1 tabindex="-1">Events</h1>
      <p class="intro">What happened since this page was opened, the newest first. The newest 60 of each kind are kept.</p>
      <form class="filters" aria-label="Filter events" onSubmit=${(event) => event.preventDefault()}>
        <label>Kind<select onChange=${(event) => refine(route, { kind: event.target.value })}>
          <option value="">all</option>
          ${kinds.map((name) => html`<option value=${name} selected=${name === kind}>${name}</option>`)}
        </select></label>
      </form>
      ${shown.length === 0
        ? html`<${Empty}>Nothing has happened yet. Batches, receivers and gaps appear here as they begin, end or fail.<//>`
        : html`<ol class="events">${shown.map(({ kind: name, time_ms, ...fields }) => html`<li><time datetime=${new Date(time_ms).toISOString()} title=${utc(time_ms)}><${Age} ms=${time_ms} now=${store.now()} /></time> <b>${plain(name)}</b> <span>${Object.entries(fields).map(([field, value]) => `${field} ${written(value)}`).map(plain).join(" · ")}</span></li>`)}</ol>`}
      <h2>Listeners</h2>
      ${error && html`<${Failure} error=${error} />`}
      ${answer?.listeners.length === 0 && html`<${Empty}>No listener is configured. <code>driver.listeners</code> and <code>driver.web_hook</code> name some.<//>`}
      ${answer?.listeners.length > 0 &&
      html`<div class="scroll" role="region" aria-label="Listeners" tabindex="0"><table>
        <thead><tr><th scope="col">Listener</th><th scope="col" class="number">Delivered</th><th scope="col" class="number">Waiting</th><th scope="col" class="number">Dropped</th><th scope="col" class="number">Failures</th><th scope="col">Last error</th></tr></thead>
        <tbody>${answer.listeners.map((one) => html`<tr class=${one.dropped ? "bad" : ""}><th scope="row"><${Name} text=${one.name} /></th><td class="number">${count(one.delivered)}</td><td class="number">${count(one.waiting)}</td><td class="number">${count(one.dropped)}</td><td class="number">${count(one.failures)}</td><td>${plain(one.last_error) || "–"}</td></tr>`)}</tbody>
      </table></div>`}
    `;
  }
}
