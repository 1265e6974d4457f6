// Requests to the driver that served this page. The token is kept for this tab only, and is sent in a header only.

const TOKEN = "forebay.token";
const TIMEOUT_MS = 20000;

/** A refusal by the driver (`status` is that of HTTP), or no answer (`status` is 0). */
export class ApiError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const token = () => sessionStorage.getItem(TOKEN) ?? "";

export function keepToken(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

const withToken = (headers) => (token() ? { ...headers, authorization: `Bearer ${token()}` } : headers);

async function send(path, options) {
  try {
    return await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options });
  } catch (error) {
    if (options.signal?.aborted && error.name === "AbortError") throw error;
    throw new ApiError(0, error.name === "TimeoutError" ? "the driver did not answer in time" : "the driver does not answer");
  }
}

async function refusal(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // a proxy's page: the status says all that is known
  }
  return new ApiError(response.status, body.message || `the driver answered with status ${response.status}`, body.code);
}

async function answer(path, options) {
  const response = await send(path, { signal: AbortSignal.timeout(TIMEOUT_MS), ...options });
  if (!response.ok) throw await refusal(response);
  try {
    return await response.json();
  } catch {
    throw new ApiError(0, "the answer broke off");
  }
}

/** GET `path`. Entries of `parameters` that are empty are left out. */
export function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "" && value !== null && value !== undefined && value !== false) query.set(name, String(value));
  }
  const text = query.toString();
  return answer(text ? `${path}?${text}` : path, { headers: withToken({ accept: "application/json" }) });
}

/** POST `body` as JSON. */
export const post = (path, body) =>
  answer(path, { method: "POST", headers: withToken({ "content-type": "application/json" }), body: JSON.stringify(body) });

/** Open a stream of server-sent events. Yields `{kind, id, data}`; ends when the driver closes it. */
export async function* events(path, signal, onOpen) {
  const response = await send(path, { headers: withToken({ accept: "text/event-stream" }), signal });
  if (!response.ok) throw await refusal(response);
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text = (text + value).replaceAll("\r\n", "\n");
    const messages = text.split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const event = parse(message);
      if (event !== null) yield event;
    }
  }
}

function parse(message) {
  let kind = "message";
  let id = "";
  const data = [];
  for (const line of message.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment keeps the connection open
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.slice(0, colon) === "event") kind = value;
    else if (line.slice(0, colon) === "id") id = value;
    else if (line.slice(0, colon) === "data") data.push(value);
  }
  return data.length || kind !== "message" ? { kind, id, data: data.join("\n") } : null;
}
