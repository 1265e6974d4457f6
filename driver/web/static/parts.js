// Small pieces of views: states, times, names, commands, key-value lists.
import { ago, bytes, plain, utc } from "./format.js";
import { Component, html } from "./html.js";

const TONES = {
  ok: ["active", "completed", "running", "live", "yes"],
  busy: ["claiming", "claimed", "queued", "registered", "starting", "scheduled", "waiting", "standby", "paused", "pending", "at work", "draining", "stopping"],
  bad: ["trouble", "failing", "failed", "unreadable", "lost", "fenced", "unclaimed", "silent", "expired", "dropped", "no"],
};
const TONE = Object.fromEntries(Object.entries(TONES).flatMap(([tone, states]) => states.map((state) => [state, tone])));

/** A state, with a sign besides its colour. */
export const State = ({ state }) => {
  const tone = TONE[state] ?? "plain";
  return html`<span class="state ${tone}">${plain(state)}</span>`;
};

/** A time as an age, with the UTC time as its title. */
export const Age = ({ ms, now }) =>
  ms > 0 ? html`<time datetime=${new Date(ms).toISOString()} title=${utc(ms)}>${ago(ms, now)}</time>` : html`<span>–</span>`;

/** A time in UTC, with its age. */
export const Moment = ({ ms, now }) =>
  ms > 0 ? html`<time datetime=${new Date(ms).toISOString()}>${utc(ms)}</time> <span class="muted">(${ago(ms, now)})</span>` : html`–`;

/** A foreign name. */
export const Name = ({ text }) => html`<bdi class="name" title=${plain(text)}>${plain(text)}</bdi>`;

export const TopicName = ({ of }) => html`<${Name} text=${`${of.topic}/${of.partition}`} />`;

export const rangeText = (range) => `${range.topic}/${range.partition}[${range.from}, ${range.until})`;

/** A command that a person can copy. */
export class Command extends Component {
  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      this.setState({ done: "copied" });
    } catch {
      this.setState({ done: "select the text to copy it" });
    }
  }

  render({ text }, { done = "" }) {
    return html`<span class="command"
      ><code>${plain(text)}</code
      ><button type="button" class="small" onClick=${() => this.copy(text)} aria-label=${`Copy: ${text}`}>Copy</button
      ><span role="status" class="muted">${done}</span></span
    >`;
  }
}

/** A sentence in which the parts in backticks are commands. */
export const Advice = ({ text }) => {
  if (text.startsWith("forebay ")) return html`<${Command} text=${text} />`;
  return text.split("`").map((part, place) => (place % 2 ? html`<${Command} text=${part} />` : plain(part)));
};

/** Names and values; entries with the value null are left out. */
export const Facts = ({ of }) => html`
  <dl class="facts">
    ${Object.entries(of)
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value === "" ? "–" : value}</dd></div>`)}
  </dl>
`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Failure = ({ error }) => html`<p class="failure" role="alert">${plain(error.message)}</p>`;

/** Numbers with their names, such as how many ranges each tier served. */
export const counters = (of) =>
  Object.entries(of ?? {}).length
    ? Object.entries(of)
        .map(([name, value]) => `${plain(name)} ${value}`)
        .join(", ")
    : "–";

export const sizeOf = (value) => html`<span title=${`${value} bytes`}>${bytes(value)}</span>`;

/** A part of the page that fetches `path` when it appears and whenever the overview changes, at most every `everyMs`. */
export class Fetching extends Component {
  #at = 0;
  #busy = false;
  #asked = "";

  componentDidMount() {
    this.tick = () => !document.hidden && this.load(false);
    this.props.store.addEventListener("tick", this.tick);
    this.load(true);
  }

  componentWillUnmount() {
    this.props.store.removeEventListener("tick", this.tick);
    this.ended = true;
  }

  componentDidUpdate() {
    if (this.question() !== this.#asked) this.load(true);
  }

  get everyMs() {
    return 2000;
  }

  /** Return what the answer depends on; another question is asked immediately. */
  question() {
    return "";
  }

  /** Return a promise of the new state. */
  async fetch() {
    return {};
  }

  async load(now) {
    const question = this.question();
    const fresh = question !== this.#asked;
    if (!now && !fresh && (this.#busy || Date.now() - this.#at < this.everyMs)) return;
    this.#asked = question;
    this.#at = Date.now();
    this.#busy = true;
    let state;
    try {
      state = { ...(await this.fetch()), error: null };
    } catch (error) {
      if (error.status === 401) this.props.store.signOut("The driver no longer accepts this token.");
      state = { error };
    }
    if (this.ended || question !== this.#asked) return;
    this.#busy = false;
    this.setState(state);
  }
}
