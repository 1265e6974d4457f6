// A list with filters, order, pages and rows that open. Each list of the page is a value of the form that `Listing` takes.
import { get } from "./api.js";
import { count, plain } from "./format.js";
import { html } from "./html.js";
import { Empty, Failure, Fetching } from "./parts.js";
import { href, refine } from "./route.js";

const PAGE = 100;
const SORTED = 1000; // an order is that of all these rows
const TYPING_MS = 300;

/**
 * `spec`: path and list (the answer's field), key(row), columns, states (for the filter), filters (further ones: name, label, kind),
 * detail(row, context), empty (what to do if there is no row), note(answer, context).
 * A column: name, title, show(row, context), sort(row, context), numeric, wide (hidden on a phone).
 */
export class Listing extends Fetching {
  question() {
    const { query } = this.props.route;
    const filters = Object.fromEntries((this.props.spec.filters ?? []).map(({ name }) => [name, query[name]]));
    const order = query.sort ? { limit: SORTED } : { limit: this.props.spec.short ?? PAGE, after: query.after };
    return JSON.stringify({ ...order, state: query.state, text: query.text, ...filters });
  }

  get everyMs() {
    return this.props.route.query.sort ? 5000 : 900; // each overview, or the cost of a thousand rows
  }

  async fetch() {
    return { answer: await get(this.props.spec.path, JSON.parse(this.question())) };
  }

  filter(changes) {
    refine(this.props.route, { after: undefined, ...changes });
  }

  typed(name, value) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.filter({ [name]: value.trim() }), TYPING_MS);
  }

  render({ spec, route, store, label }, { answer, error }) {
    const context = { store, now: store.now(), route, answer };
    const rows = answer ? this.ordered(answer[spec.list], context) : [];
    const isShort = spec.short !== undefined;
    return html`
      ${!isShort && this.filters()}
      ${error && html`<${Failure} error=${error} />`}
      ${answer && spec.note?.(answer, context)}
      ${answer && rows.length > 0 && this.table(rows, context, label)}
      ${answer && rows.length === 0 && html`<${Empty}>${this.isFiltered() ? this.nothing() : spec.empty}<//>`}
      ${!answer && !error && html`<p class="muted">Loading…</p>`}
      ${answer && !isShort && this.pages(answer, rows)}
    `;
  }

  isFiltered() {
    const { query } = this.props.route;
    return Object.entries(query).some(([name, value]) => value && !["sort", "open"].includes(name));
  }

  nothing() {
    return html`Nothing matches. <button type="button" class="small" onClick=${() => this.clear()}>Clear the filters</button>`;
  }

  clear() {
    const { route } = this.props;
    refine(route, Object.fromEntries(Object.keys(route.query).map((name) => [name, undefined])));
  }

  ordered(rows, context) {
    const sort = this.props.route.query.sort ?? "";
    const column = this.props.spec.columns.find(({ name }) => name === sort.replace(/^-/, ""));
    if (!column?.sort) return rows;
    const sign = sort.startsWith("-") ? -1 : 1;
    const rank = (row) => column.sort(row, context) ?? -Infinity;
    return [...rows].sort((a, b) => {
      const [left, right] = [rank(a), rank(b)];
      return sign * (typeof left === "string" && typeof right === "string" ? left.localeCompare(right) : left < right ? -1 : left > right ? 1 : 0);
    });
  }

  filters() {
    const { spec, route } = this.props;
    const { query } = route;
    const further = (spec.filters ?? []).map(({ name, label, kind }) =>
      kind === "check"
        ? html`<label class="check"><input type="checkbox" checked=${query[name] === "true"} onChange=${(event) => this.filter({ [name]: event.target.checked ? "true" : "" })} /> ${label}</label>`
        : html`<label>${label}<input type="text" size="12" value=${query[name] ?? ""} onInput=${(event) => this.typed(name, event.target.value)} /></label>`,
    );
    return html`
      <form class="filters" role="search" aria-label=${`Filter ${spec.title}`} onSubmit=${(event) => event.preventDefault()}>
        ${spec.text !== false && html`<label>${spec.text ?? "Name contains"}<input type="search" value=${query.text ?? ""} onInput=${(event) => this.typed("text", event.target.value)} /></label>`}
        ${spec.states && html`<label>State<select value=${query.state ?? ""} onChange=${(event) => this.filter({ state: event.target.value })}>
            <option value="">all</option>
            ${spec.states.map((state) => html`<option value=${state} selected=${state === query.state}>${state}</option>`)}
          </select></label>`}
        ${further}
      </form>
    `;
  }

  table(rows, context, label) {
    const { spec, route } = this.props;
    const sort = route.query.sort ?? "";
    const heading = ({ name, title, sort: by, numeric, wide }) => {
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined;
      const next = order === "descending" ? name : order === "ascending" ? "" : numeric ? `-${name}` : name;
      return html`<th scope="col" class=${classes(numeric, wide)} aria-sort=${order}>
        ${by ? html`<button type="button" class="sort" onClick=${() => refine(route, { sort: next, after: undefined })}>${title}</button>` : title}
      </th>`;
    };
    return html`
      <div class="scroll" role="region" aria-label=${label ?? spec.title} tabindex="0">
        <table>
          <thead><tr>${spec.columns.map(heading)}</tr></thead>
          <tbody>${rows.map((row) => this.row(row, context))}</tbody>
        </table>
      </div>
    `;
  }

  row(row, context) {
    const { spec, route } = this.props;
    const key = spec.key(row);
    const open = spec.detail && route.query.open === key;
    const first = (column) => {
      const shown = column.show(row, context);
      if (spec.link) return html`<a href=${spec.link(row)}>${shown}</a>`;
      if (!spec.detail) return shown;
      return html`<button type="button" class="open" aria-expanded=${open ? "true" : "false"} onClick=${() => refine(route, { open: open ? "" : key })}>${shown}</button>`;
    };
    return html`
      <tr key=${key} class=${spec.tone?.(row, context) ?? ""}>
        ${spec.columns.map((column, place) =>
          place === 0
            ? html`<th scope="row">${first(column)}</th>`
            : html`<td class=${classes(column.numeric, column.wide)}>${column.show(row, context)}</td>`,
        )}
      </tr>
      ${open && html`<tr key=${`${key} detail`} class="detail"><td colspan=${spec.columns.length}>${spec.detail(row, context)}</td></tr>`}
    `;
  }

  pages(answer, rows) {
    const { route } = this.props;
    const { query } = route;
    const total = answer.total ?? null;
    const all = total === null ? "" : ` of ${count(total)}`;
    const rest = answer.next && query.sort ? `, ordered among the first ${count(SORTED)}` : "";
    return html`
      <nav class="pages" aria-label="Pages">
        <span>${count(rows.length)} shown${all}${rest}</span>
        ${query.after && html`<a href=${href(route.name, route.args, { ...query, after: "" })}>First page</a>`}
        ${answer.next && !query.sort && html`<a rel="next" href=${href(route.name, route.args, { ...query, after: answer.next })}>Next page</a>`}
      </nav>
    `;
  }
}

const classes = (numeric, wide) => `${numeric ? "number" : ""} ${wide ? "wide" : ""}`.trim();

/** The heading of a view that is one list. */
export const ListView = ({ spec, route, store }) => html`
  <h1 tabindex="-1">${plain(spec.title)}</h1>
  ${spec.intro && html`<p class="intro">${spec.intro}</p>`}
  <${Listing} key=${spec.title} spec=${spec} route=${route} store=${store} />
`;
