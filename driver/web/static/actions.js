// What an operator can change: the request of each action, its fields, and the dialog that asks for reason and confirmation.
import { post } from "./api.js";
import { plain } from "./format.js";
import { Component, html } from "./html.js";
import { Failure } from "./parts.js";

const text = (name, label, more = {}) => ({ name, label, kind: "text", ...more });
const number = (name, label, more = {}) => ({ name, label, kind: "number", ...more });

/**
 * Each: title, path, text (its effect), fields, body (fixed parts of the request), reason (whether the request takes a cause),
 * plan (whether the driver answers first what it would do).
 */
export const ACTIONS = {
  pause: {
    title: "Pause batches",
    path: "/v1/operator/pause",
    text: "The driver begins no new batch. Running batches end, and receivers go on taking records in.",
    body: { paused: true },
    reason: true,
  },
  resume: {
    title: "Resume batches",
    path: "/v1/operator/pause",
    text: "The driver begins batches again, the oldest records first.",
    body: { paused: false },
    reason: true,
  },
  drain: {
    title: "Drain and stop",
    path: "/v1/operator/stop",
    text: "Receivers drain, batches complete all records that were taken in, and then the driver stops. A supervisor may start it again.",
    body: { drain: true },
    fields: [number("timeout_seconds", "Stop after this many seconds even if it is not drained (0: driver.stop_timeout)", { value: 0 })],
    reason: true,
  },
  stop: {
    title: "Stop now",
    path: "/v1/operator/stop",
    text: "The driver stops. Records that were taken in stay in the WAL, and the next driver goes on with them.",
    body: { drain: false },
    reason: true,
  },
  restart: {
    title: "Restart receiver",
    path: "/v1/operator/restart-receiver",
    text: "The receiver drains and ends. Its agent or supervisor starts it again. No record is lost or taken in twice.",
    reason: true,
  },
  fence: {
    title: "Fence receiver",
    path: "/v1/operator/fence",
    text: "Ends the epoch of a receiver whose host is lost for good, so that another one can take over its partition.",
    reason: true,
  },
  forget: {
    title: "Forget",
    path: "/v1/operator/forget",
    text: "The driver expects no heartbeats of it any more, and stops reporting it. If it sends one, it is known again.",
    reason: true,
  },
  reset: {
    title: "Reset offsets",
    path: "/v1/operator/reset",
    text: "Begins a new incarnation at another offset. Records between the position and this offset are skipped, or taken in again.",
    fields: [
      { name: "to", label: "To", kind: "choice", choices: ["earliest", "latest", "time", "offset"], value: "earliest" },
      number("value", "Time in milliseconds since 1970 UTC, or the offset", { value: 0 }),
    ],
    reason: true,
    plan: true,
  },
  acceptGap: {
    title: "Accept gap",
    path: "/v1/operator/accept-gap",
    text: "Continues after a gap. Write the range that the partition's fault shows, so that no loss is accepted unseen.",
    fields: [number("from", "From offset"), number("until", "Until offset (excluded)")],
    reason: true,
  },
  retry: {
    title: "Retry failed batches",
    path: "/v1/operator/retry",
    text: "Begins the next attempt at each failed or unreadable batch now, without waiting for its delay.",
    reason: true,
  },
  skip: {
    title: "Skip batch",
    path: "/v1/operator/skip",
    text: "Completes the failed batch without its records. The audit shows this loss permanently.",
    reason: true,
  },
  acceptLoss: {
    title: "Accept loss",
    path: "/v1/operator/accept-loss",
    text: "Completes the batch without the ranges that no tier can read. The audit shows this loss permanently.",
    fields: [text("ranges", "Ranges such as topic/0[10, 20), separated by semicolons (none: those that no tier can read)", { optional: true, list: true })],
    reason: true,
  },
  replay: {
    title: "Replay from here",
    path: "/v1/operator/replay",
    text: "Runs completed batches again, from this one on, with the same ids, rows and order.",
    reason: true,
  },
  dropCursor: {
    title: "Drop cursor",
    path: "/v1/operator/drop-cursor",
    text: "Ends the cursor and a query that uses it. The WAL then holds no records for it.",
    reason: true,
  },
};

/** A button that opens the dialog. `target`: what a person types to confirm; `body`: the parts of the request that are given. */
export const Act = ({ store, name, target, body = {} }) => html`
  <button type="button" class="act" onClick=${() => store.dispatchEvent(new CustomEvent("act", { detail: { name, target, body } }))}>${ACTIONS[name].title}…</button>
`;

/** The dialog of the action that was asked for last. */
export class ActionDialog extends Component {
  dialog = { current: null };

  componentDidMount() {
    this.open = ({ detail }) => this.setState({ asked: detail, values: initial(detail.name), typed: "", reason: "", error: null, plan: null, done: "", busy: false });
    this.props.store.addEventListener("act", this.open);
  }

  componentWillUnmount() {
    this.props.store.removeEventListener("act", this.open);
  }

  componentDidUpdate(_, before) {
    if (this.state.asked && before.asked !== this.state.asked) this.dialog.current.showModal();
  }

  request({ asked, values, reason }, apply) {
    const action = ACTIONS[asked.name];
    const given = Object.fromEntries((action.fields ?? []).map((field) => [field.name, sent(field, values[field.name])]));
    return { ...given, ...asked.body, ...action.body, cause: reason.trim(), ...(action.plan ? { apply } : {}) };
  }

  async submit(event) {
    event.preventDefault();
    const { asked, plan } = this.state;
    const action = ACTIONS[asked.name];
    const apply = !action.plan || plan !== null;
    this.setState({ busy: true, error: null });
    try {
      const answer = await post(action.path, this.request(this.state, apply));
      this.setState(apply ? { done: answer.message ?? "Done.", busy: false } : { plan: answer.partitions, busy: false });
    } catch (error) {
      this.setState({ error, busy: false });
    }
  }

  render({ store }, { asked, values, typed, reason, error, plan, done, busy }) {
    if (!asked) return null;
    const action = ACTIONS[asked.name];
    return html`
      <dialog ref=${this.dialog} aria-labelledby="action-title" onClose=${() => this.setState({ asked: null })}>
        <h2 id="action-title">${action.title}: <bdi>${plain(asked.target)}</bdi></h2>
        <p>${action.text}</p>
        ${!store.operator ? this.refused(store) : done ? this.finished(done) : this.form(action, { asked, values, typed, reason, plan, busy })}
        ${error && html`<${Failure} error=${error} />`}
      </dialog>
    `;
  }

  close() {
    this.dialog.current.close();
  }

  refused(store) {
    return html`
      <p role="alert">This needs the role operator. Your token has the role ${store.caller.roles.join(", ") || "none"}.
        Sign out, and sign in with a token of an operator, which <code>forebay token new operator</code> makes.</p>
      <p class="buttons"><button type="button" onClick=${() => this.close()}>Close</button></p>
    `;
  }

  finished(done) {
    return html`
      <p role="status" class="done">${plain(done)}</p>
      <p class="buttons"><button type="button" onClick=${() => this.close()}>Close</button></p>
    `;
  }

  form(action, { asked, values, typed, reason, plan, busy }) {
    const ready = [asked.target, plain(asked.target)].includes(typed.trim()) && reason.trim() && !busy;
    const change = (name, value) => this.setState({ values: { ...values, [name]: value }, plan: null });
    return html`
      <form onSubmit=${(event) => (ready ? this.submit(event) : event.preventDefault())} autocomplete="off">
        ${(action.fields ?? []).map((field) => html`<label key=${field.name}>${field.label}${control(field, values[field.name], change)}</label>`)}
        <label>Reason, for the journal and the log<input type="text" required maxlength="500" value=${reason} onInput=${(event) => this.setState({ reason: event.target.value })} /></label>
        ${plan && html`<div class="plan" role="status"><p>The driver would do this:</p><ul>
            ${plan.map((reset) => html`<li>${plain(`${reset.topic}/${reset.partition}`)}: position ${reset.position}, new incarnation ${reset.life} begins at ${reset.start}</li>`)}
          </ul></div>`}
        <label><span>Type <code>${plain(asked.target)}</code> to confirm</span><input type="text" required spellcheck="false" autocapitalize="off" value=${typed} onInput=${(event) => this.setState({ typed: event.target.value })} /></label>
        <p class="buttons">
          <button type="button" onClick=${() => this.close()}>Cancel</button>
          <button type="submit" class="danger" disabled=${!ready}>${busy ? "Waiting…" : action.plan && plan === null ? "Show the plan" : action.title}</button>
        </p>
      </form>
    `;
  }
}

const initial = (name) => Object.fromEntries((ACTIONS[name].fields ?? []).map((field) => [field.name, field.value ?? ""]));

function sent(field, value) {
  if (field.list) return value.split(";").map((part) => part.trim()).filter(Boolean);
  return field.kind === "number" ? Number(value) : value;
}

function control(field, value, change) {
  const onInput = (event) => change(field.name, event.target.value);
  if (field.kind === "choice") {
    return html`<select onChange=${onInput}>${field.choices.map((choice) => html`<option value=${choice} selected=${choice === value}>${choice}</option>`)}</select>`;
  }
  return html`<input type=${field.kind} required=${!field.optional} min=${field.kind === "number" ? 0 : undefined} value=${value} onInput=${onInput} />`;
}
