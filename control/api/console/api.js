// SPDX-License-Identifier: Apache-2.0
// Asking the API. The token is in this tab's session storage, and leaves it as a header of requests to where the page
// came from alone.

const KEY = "roost-token";

/** What the API refused: its own sentence. */
export class ApiError extends Error {
  constructor(status, message, retryS) {
    super(message);
    this.status = status;
    this.retryS = retryS;
  }
}

export const session = {
  me: null,
  /** Is told why it is over. */
  onend: () => {},
  get token() { return sessionStorage.getItem(KEY); },
  /** Raises ApiError where the token is not good. */
  async begin(token) {
    if (!/^[\x21-\x7e]+$/.test(token)) throw new ApiError(401, "that is no token: one begins with roost_");
    this.me = await (await send("GET", "/v1/me", { token })).json();
    sessionStorage.setItem(KEY, token);
  },
  end(why = "") {
    sessionStorage.removeItem(KEY);
    this.me = null;
    this.onend(why);
  },
  /** Whether the role may do what an operator may, or an admin. */
  may(role) {
    const ranks = ["viewer", "operator", "admin"];
    return ranks.indexOf(this.me?.role) >= ranks.indexOf(role);
  },
  get isServer() { return this.me?.role === "server"; },
};

async function send(method, path, { token = session.token, body, headers = {}, signal } = {}) {
  const all = { Authorization: `Bearer ${token}`, ...headers };
  if (body !== undefined) all["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method, signal, headers: all, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The API does not answer: is it running, and is this machine connected to it?");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  const error = new ApiError(answer.status, told.error ?? `the API answered ${answer.status}`,
    Number(answer.headers.get("Retry-After") ?? 0));
  if (answer.status === 401 && session.me) session.end(error.message);
  throw error;
}

/** A path with its query; what is empty is left out. */
export function target(path, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null && value !== false);
  const text = new URLSearchParams(kept).toString();
  return text ? `${path}?${text}` : path;
}

export const api = {
  async get(path, query, signal) {
    return (await send("GET", target(path, query), { signal })).json();
  },
  /** Of a list that comes as an object a line. */
  async lines(path, query, signal) {
    const text = await (await send("GET", target(path, query), { signal })).text();
    return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  },
  async send(method, path, body) {
    return (await send(method, path, { body })).json();
  },
};

export const connectionPath = (id, rest = "") => `/v1/connections/${encodeURIComponent(id)}${rest}`;

const WAIT_MS = [500, 1000, 2000, 5000];

/** The events of a stream, for ever: after an end it goes on behind the last one that came. told: an event
 * {id, event, data}; heard: whether the stream goes on, or a sentence. */
export async function listen(query, signal, told, heard) {
  let last = null, failures = 0;
  while (!signal.aborted) {
    try {
      const answer = await send("GET", target("/v1/events", last === null ? query : { ...query, last: "" }),
        { signal, headers: last === null ? {} : { "Last-Event-ID": last } });
      heard("");
      failures = 0;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const event = parse(block);
          last = event.id ?? last;
          if (event.data) told(event);
        }
      }
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      if (error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
      heard(error instanceof ApiError ? error.message : "the connection broke off");
    }
    await new Promise((resolve) => { setTimeout(resolve, WAIT_MS[Math.min(failures++, WAIT_MS.length - 1)]); });
  }
}

/** A block of lines, `field: value`; those without a field are comments. */
function parse(block) {
  const event = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) event[line.slice(0, at)] = line.slice(at + 2);
  }
  return event;
}
