// The frame of the page: header, navigation, the view that the address names, sign-in, and the state of the connection.
import { ActionDialog } from "./actions.js";
import { plain, seconds } from "./format.js";
import { Component, html, render } from "./html.js";
import { ListView } from "./listing.js";
import { State } from "./parts.js";
import { current, href } from "./route.js";
import { Store } from "./store.js";
import { BatchView, batches } from "./views/batches.js";
import { BlockView, blocks } from "./views/blocks.js";
import { DirectView, cursors } from "./views/cursors.js";
import { Overview } from "./views/overview.js";
import { partitions } from "./views/partitions.js";
import { hosts, receivers } from "./views/receivers.js";
import { EventsView, SettingsView } from "./views/settings.js";
import { JournalView, WalView } from "./views/storage.js";

const list = (spec) => ({ title: spec.title, show: (props) => html`<${ListView} key=${spec.title} spec=${spec} ...${props} />` });
const view = (title, Type) => ({ title, show: (props) => html`<${Type} key=${title} ...${props} />` });
const withOne = (listing, Type) => ({ title: listing.title, show: (props) => (props.route.args.length ? html`<${Type} key=${props.route.args[0]} ...${props} />` : listing.show(props)) });

const VIEWS = {
  overview: view("Overview", Overview),
  partitions: list(partitions),
  receivers: list(receivers),
  batches: withOne(list(batches), BatchView),
  blocks: withOne(list(blocks), BlockView),
  hosts: list(hosts),
  wal: view("WAL", WalView),
  journal: view("Journal", JournalView),
  cursors: list(cursors),
  direct: view("Direct streams", DirectView),
  events: view("Events", EventsView),
  settings: view("Settings", SettingsView),
};
const THEMES = ["auto", "light", "dark"];
const OLD_MS = 3000;

const store = new Store();

class Page extends Component {
  constructor() {
    super();
    this.state = { route: current(), theme: localStorage.getItem("forebay.theme") ?? "auto" };
  }

  componentDidMount() {
    store.addEventListener("change", () => this.setState({}));
    window.addEventListener("hashchange", () => this.setState({ route: current() }));
    setInterval(() => !store.live && this.setState({}), 1000); // the age of the data
  }

  componentDidUpdate(_, { route }) {
    const now = this.state.route;
    document.title = [VIEWS[now.name]?.title ?? "Not found", store.overview?.stream, "Forebay"].filter(Boolean).map(plain).join(" · ");
    if (route.name !== now.name || route.args[0] !== now.args[0]) {
      document.querySelector("main h1")?.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
  }

  theme() {
    const theme = THEMES[(THEMES.indexOf(this.state.theme) + 1) % THEMES.length];
    localStorage.setItem("forebay.theme", theme);
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    window.dispatchEvent(new Event("theme"));
    this.setState({ theme });
  }

  render(_, { route, theme }) {
    const { overview, phase } = store;
    const isIn = phase === "ready" && overview !== null;
    const shown = VIEWS[route.name];
    return html`
      <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main h1")?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href="#/overview">Forebay</a>
        ${isIn && html`<span class="stream"><bdi>${plain(overview.stream)}</bdi> <${State} state=${overview.leader ? "standby" : overview.paused ? "paused" : overview.state} /></span>`}
        ${isIn && html`<span class="muted release">${plain(overview.release)}</span>`}
        <span class="space"></span>
        ${isIn && /^https?:\/\//.test(overview.spark_ui) && html`<a href=${overview.spark_ui} target="_blank" rel="noreferrer noopener">Spark's UI</a>`}
        <a href="/docs">API</a>
        <button type="button" class="small" onClick=${() => this.theme()} aria-label=${`Theme: ${theme}`}>${theme}</button>
        ${isIn && store.caller.guarded && html`<span class="muted">${store.caller.roles.length > 1 ? "all roles" : store.caller.roles[0]}</span><button type="button" class="small" onClick=${() => store.signOut()}>Sign out</button>`}
      </header>
      <${Connection} />
      ${isIn && html`<nav class="views" aria-label="Views"><ul>${Object.entries(VIEWS).map(([name, { title }]) => html`<li key=${name}><a href=${href(name)} aria-current=${name === route.name ? "page" : undefined}>${title}</a></li>`)}</ul></nav>`}
      <main id="main">
        ${phase === "signed-out" ? html`<${SignIn} />` : !isIn ? this.starting() : shown ? shown.show({ store, route }) : html`<h1 tabindex="-1">Not found</h1><p>There is no view <code>${plain(route.name)}</code>. <a href="#/overview">Overview</a></p>`}
      </main>
      <${ActionDialog} store=${store} />
    `;
  }

  starting() {
    return html`<h1 tabindex="-1">Forebay</h1><p class="muted">${store.failure ? "The driver does not answer. The page tries again by itself." : "Connecting…"}</p>`;
  }
}

/** Says when the data shown is not live, how old it is, and when the page tries again. */
const Connection = () => {
  if (!store.failure) return html`<div role="status"></div>`;
  const age = store.receivedAt ? Date.now() - store.receivedAt : 0;
  const left = Math.max(0, Math.ceil((store.retryAt - Date.now()) / 1000));
  return html`
    <div class="offline">
      <span role="status"><b>Not live:</b> ${plain(store.failure)}.${age > OLD_MS ? " The data below is old." : ""}</span>
      ${age > 0 && html` <span>Its age is ${seconds(Math.floor(age / 1000))}.</span>`}
      <span class="muted">${left ? `Next attempt in ${left} s.` : "Trying…"}</span>
      <button type="button" class="small" onClick=${() => store.retry()}>Try now</button>
    </div>
  `;
};

class SignIn extends Component {
  async submit(event) {
    event.preventDefault();
    this.setState({ busy: true });
    await store.signIn(this.state.token.trim());
    this.setState({ busy: false, token: "" });
  }

  render(_, { token = "", busy }) {
    return html`
      <form class="sign-in" onSubmit=${(event) => this.submit(event)}>
        <h1 tabindex="-1">Sign in</h1>
        <p>This driver requires an access token. <code>forebay token new reader</code> makes one to watch, <code>forebay token new operator</code> one to act.</p>
        <label>Token<input type="password" required autocomplete="off" spellcheck="false" value=${token} onInput=${(event) => this.setState({ token: event.target.value })} /></label>
        ${store.why && html`<p class="failure" role="alert">${plain(store.why)}</p>`}
        <p class="muted">The token stays in this tab and ends with it.</p>
        <p class="buttons"><button type="submit" disabled=${busy || !token.trim()}>Sign in</button></p>
      </form>
    `;
  }
}

render(html`<${Page} />`, document.getElementById("page"));
store.start();
