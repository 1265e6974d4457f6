// The state of the page: who is signed in, the newest overview, the events, and the connection. Views only read it.
import { ApiError, events, get, keepToken, token } from "./api.js";

const SILENCE_MS = 8000; // the driver sends an overview each second
const DELAY_MS_MIN = 1000;
const DELAY_MS_MAX = 30000;
const POLL_MS = 5000; // of a driver that offers no events, such as a standby
const EVENTS_PER_KIND = 60;

export class Store extends EventTarget {
  phase = "starting"; // starting | signed-out | ready
  why = ""; // the refusal that a person sees at the sign-in
  caller = { roles: [], guarded: false };
  overview = null;
  receivedAt = 0; // when the overview came, on this machine's clock
  live = false;
  failure = ""; // why the page is not live
  retryAt = 0;
  happened = []; // events, the newest first
  #newest = 0;
  #attempt = 0;
  #skew = 0; // the driver's clock minus this machine's
  #abort = null;
  #timer = 0;

  /** Return the driver's present time, in milliseconds. */
  now() {
    return Date.now() + this.#skew;
  }

  get operator() {
    return this.caller.roles.includes("operator");
  }

  get mayReadRecords() {
    return this.operator || this.caller.roles.includes("query");
  }

  /** Begin with the token of this tab, if there is one. */
  async start() {
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && !this.live && this.phase === "ready") this.#connect();
    });
    window.addEventListener("online", () => this.phase === "ready" && !this.live && this.#connect());
    await this.#signIn();
  }

  /** Use another token, which is kept only if the driver accepts it. */
  async signIn(value) {
    keepToken(value);
    await this.#signIn();
  }

  signOut(why = "") {
    keepToken("");
    this.#stop();
    Object.assign(this, { phase: "signed-out", why, overview: null, happened: [], live: false });
    this.caller = { roles: [], guarded: true };
    this.#changed();
  }

  async #signIn() {
    try {
      this.caller = await get("/v1/caller");
      if (!["reader", "operator"].some((role) => this.caller.roles.includes(role))) {
        this.signOut(`This token has the role ${this.caller.roles.join(", ")}. The page needs reader or operator.`);
        return;
      }
    } catch (error) {
      if (error.status === 401) {
        this.signOut(token() ? "The driver does not know this token." : "");
        return;
      }
      this.#failed(error, () => this.#signIn());
      return;
    }
    this.phase = "ready";
    this.why = "";
    this.#connect();
  }

  /** Try again now. */
  retry() {
    this.#attempt = 0;
    if (this.phase === "starting") this.#signIn();
    else this.#connect();
  }

  async #connect() {
    this.#stop();
    const abort = (this.#abort = new AbortController());
    let watchdog = 0;
    let answered = false;
    const restartWatchdog = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(new ApiError(0, "the driver has sent nothing for some seconds")), SILENCE_MS);
    };
    try {
      this.#received(await get("/v1/overview"));
      answered = true;
      restartWatchdog();
      for await (const event of events("/v1/events", abort.signal, restartWatchdog)) {
        restartWatchdog();
        if (event.kind === "overview") this.#received(JSON.parse(event.data));
        else if (event.kind === "dropped") throw new ApiError(0, "this page was too slow for the events of the driver");
        else this.#add(event);
      }
      throw new ApiError(0, "the driver ended the connection");
    } catch (error) {
      if (abort !== this.#abort) return; // replaced by a newer connection
      if (error.status === 401) this.signOut("The driver no longer accepts this token.");
      // without events, as on a standby: ask for the overview from time to time
      else if (answered && error.status >= 400) this.#timer = setTimeout(() => this.#connect(), POLL_MS);
      else this.#failed(abort.signal.aborted ? abort.signal.reason : error, () => this.#connect());
    } finally {
      clearTimeout(watchdog);
    }
  }

  #received(overview) {
    Object.assign(this, { overview, receivedAt: Date.now(), live: true, failure: "", retryAt: 0 });
    // a driver whose decision loop does not answer repeats its last overview
    if (overview.time_ms !== this.#newest) this.#skew = overview.time_ms - this.receivedAt;
    this.#newest = overview.time_ms;
    this.#attempt = 0;
    this.#changed("tick");
  }

  #add({ kind, data }) {
    const event = { ...JSON.parse(data), kind };
    const others = this.happened.filter((other) => other.kind === kind);
    const oldest = others.length >= EVENTS_PER_KIND ? others.at(-1) : null;
    this.happened = [event, ...this.happened.filter((other) => other !== oldest)];
    this.#changed();
  }

  /** The data stays; the next attempt comes after a delay that grows. */
  #failed(error, again) {
    const delay = Math.min(DELAY_MS_MAX, DELAY_MS_MIN * 2 ** this.#attempt) * (0.8 + 0.4 * Math.random());
    this.#attempt += 1;
    Object.assign(this, { live: false, failure: error.message, retryAt: Date.now() + delay });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(again, delay);
    this.#changed();
  }

  #stop() {
    clearTimeout(this.#timer);
    const before = this.#abort;
    this.#abort = null;
    before?.abort();
  }

  #changed(kind = "change") {
    this.dispatchEvent(new Event("change"));
    if (kind === "tick") this.dispatchEvent(new Event("tick"));
  }
}
