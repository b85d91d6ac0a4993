// SPDX-License-Identifier: Apache-2.0
// A table to search and act on. One page of it is in the document, whatever number there is.

import { api, ApiError, connectionPath, session, target } from "./api.js";
import { check, clientLink, confirmed, field, h, number, select, span, state, table } from "./dom.js";

const ROWS = 100;
const LOOKS = 20; // pages that are asked for at a time where few fit what is sought
const AT_ONCE = 4;

export const ACTIONS = [
  ["wake", "Wake", "awake: a socket, and a server when either speaks"],
  ["standby", "Standby", "STANDBY: its server is left, its socket stays"],
  ["idle", "Idle", "IDLE: no socket"],
  ["sleep", "Sleep", "SLEEP: no socket, its record in the database"],
  ["close", "Close", "its end"],
];

const STATES = [["", "any"], ...["ACTIVE", "STANDBY", "IDLE", "SLEEP"].map((one) => [one, one])];
const QUIET = [["", "any time"], [60, "1 minute"], [600, "10 minutes"], [3600, "1 hour"], [21600, "6 hours"],
  [86400, "1 day"], [604800, "1 week"]];
const PAST = {
  wake: "woken", standby: "put into STANDBY", idle: "put into IDLE", sleep: "put to SLEEP", close: "closed",
};
export const CLOSING = "The client sees the end of the connection, and has to connect again.";
const FILTERS = ["state", "service", "tag", "quiet", "rule"];

/** What somebody typed, as keys of GET /v1/connections, and in words. An address is looked for as a network, which
 * needs no look at each connection. */
export function understood(text) {
  if (!text) return [{}, ""];
  const groups = text.split(":");
  const port = text.match(/^(\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\]):(\d+)$/i);
  if (port) return [{ network: port[1].replace(/[[\]]/g, ""), client: text }, `the client ${text}`];
  if (/^\d+\.[\d.]*(\/\d+)?$/.test(text)) {
    const [address, bits] = text.split("/");
    const parts = address.split(".").filter(Boolean);
    const network = `${[...parts, 0, 0, 0].slice(0, 4).join(".")}/${bits ?? parts.length * 8}`;
    return [{ network }, `addresses in ${network}`];
  }
  if (groups.length > 1 && /^[0-9a-f:.]+(\/\d+)?$/i.test(text)) {
    const whole = text.includes("::") || groups.length === 8 || text.includes("/");
    const parts = groups.filter(Boolean);
    const network = whole ? text : `${parts.join(":")}::/${parts.length * 16}`;
    return [{ network }, `addresses in ${network}`];
  }
  const pattern = /[*?]/.test(text) ? text : `*${text}*`;
  return [{ name: pattern }, `names like ${pattern}`];
}

export async function connections(look) {
  const { main, query, signal, title } = look;
  const value = (name) => query.get(name) ?? "";
  const text = value("find");
  const [sought, words] = understood(text);
  if (/^\d+$/.test(text) || (sought.client && await isThere(text, signal))) { // a number; the whole of address:port
    location.replace(`#/connections/${encodeURIComponent(text)}`);
    return;
  }
  title(text ? `Connections: ${text}` : "Connections");
  const services = session.isServer ? session.me.services
    : (await api.get("/v1/status", {}, signal)).services.map((one) => one.name);
  const ofOne = session.isServer && services.length > 1; // lists are of one of them
  const results = h("section", { class: "panel", "aria-label": "Results" }, h("p", { class: "small" }, "Looking …"));
  const choices = services.map((one) => [one, one]);
  main.append(searchForm(value, ofOne ? choices : [["", "any"], ...choices], signal), results);

  const keys = { ...sought, ...Object.fromEntries(FILTERS.map((name) => [name, value(name)])) };
  if (ofOne) keys.service ||= services[0];
  let found;
  try {
    found = session.isServer
      ? { rows: await api.lines("/v1/connections", { ...keys, limit: ROWS }, signal), next: null }
      : await pages(keys, value("after") || "first", signal);
  } catch (error) {
    results.remove();
    throw error;
  }
  const told = [words, value("tag") && `tag ${value("tag")}`, value("rule") && `values by rule ${value("rule")}`];
  draw(look, results, found, told.filter(Boolean).join(", "));
}

/** Whether a connection has this client, or only some whose clients begin so: there may be very many. */
async function isThere(client, signal) {
  try {
    await api.get(connectionPath(client), {}, signal);
    return true;
  } catch (error) {
    if (error instanceof ApiError && [404, 409].includes(error.status)) return false;
    throw error;
  }
}

function searchForm(value, services, signal) {
  const text = (name, more) =>
    h("input", { name, value: value(name), autocomplete: "off", spellcheck: "false", ...more });
  const tags = h("datalist", { id: "tags" });
  const search = (event) => {
    event.preventDefault();
    const wanted = target("#/connections", Object.fromEntries(new FormData(event.currentTarget)));
    if (location.hash === wanted) dispatchEvent(new Event("hashchange"));
    else location.hash = wanted;
  };
  if (!session.isServer) {
    api.get("/v1/tags", { limit: 200 }, signal).then((all) =>
      tags.append(...all.map(({ tag }) => h("option", { value: tag }))), () => {});
  }
  return h("form", { class: "row panel", onsubmit: search },
    field("Part of a name, address, network or number", text("find", { type: "search" }), { class: "grow" }),
    field("State", select("state", STATES, value("state"))),
    field("Service", select("service", services, value("service"))),
    field("Tag", text("tag", { size: 10, list: "tags" })),
    field("Quiet for at least", select("quiet", QUIET, value("quiet"))),
    session.isServer ? null : field("Values by rule", text("rule", { size: 10 })),
    tags, h("button", { class: "main" }, "Search"));
}

/** A page of those that fit, of as many pages of the API as that takes. */
async function pages(keys, after, signal) {
  const rows = [];
  let next = after;
  for (let looks = 0; looks < LOOKS && next !== null && rows.length < ROWS; looks += 1) {
    const page = await api.get("/v1/connections", { ...keys, after: next, limit: ROWS - rows.length }, signal);
    rows.push(...page.connections);
    next = page.next;
  }
  return { rows, next, gaveUp: next !== null && rows.length < ROWS };
}

function draw({ query, signal, doing, say, fail }, results, { rows, next, gaveUp }, words) {
  const may = session.may("operator") || session.isServer;
  const twice = new Set(rows.map((row) => row.client).filter((one, at, all) => all.indexOf(one) !== at));
  const lines = rows.map((row) => {
    const name = row.name ?? row.client;
    const box = h("input", { type: "checkbox", "aria-label": `select ${name}`, onchange: count });
    const button = h("button", { type: "button", class: "slim",
      onclick: doing(() => actOn([line], likely(row))) });
    // By its number it takes a look at each, where there are millions.
    const id = twice.has(row.client) && row.id ? row.id : row.client;
    const line = { row, name, id, box, button, state: h("span") };
    refresh(line);
    return line;
  });

  function refresh({ row, name, button, state: shown }) {
    shown.replaceChildren(state(row.state));
    const [, label] = ACTIONS.find(([action]) => action === likely(row));
    button.textContent = label;
    button.ariaLabel = `${label} ${name}`;
    button.disabled = row.state === "CLOSED";
  }

  const chosen = () => lines.filter((line) => line.box.checked);
  const all = h("input", { type: "checkbox", onchange: () => {
    for (const line of lines) line.box.checked = all.checked;
    count();
  } });
  const counted = h("span", { role: "status", class: "small" }, "none selected");
  const acts = ACTIONS.map(([action, label, means]) => h("button", {
    type: "button", class: action === "close" ? "danger" : null, disabled: true, title: `The selected ones: ${means}`,
    onclick: doing(() => actOn(chosen(), action)) }, label));
  function count() {
    const some = chosen().length;
    counted.textContent = some ? `${some} selected` : "none selected";
    for (const act of acts) act.disabled = !some;
  }

  const cells = lines.map(({ row, box, button, state: shown }) => [
    ...(may ? [box] : []), clientLink(row, row.name ?? (row.id ? `number ${row.id}` : row.client)), shown,
    h("span", { class: "mono" }, row.client), row.service, span(row.quiet_s),
    row.tags.map((tag) => h("a", { class: "tag", href: target("#/connections", { tag }) }, tag)),
    ...(may ? [button] : [])]);
  const heads = "*client | state | address | service | quiet:number | tags";
  const page = (after, label) =>
    h("a", { class: "button", href: target("#/connections", { ...Object.fromEntries(query), after }) }, label);
  const more = next !== null ? " on this page" : session.isServer && rows.length === ROWS ? ", the first ones" : "";
  const none = gaveUp ? "None among those looked at so far." : "There is none.";
  results.replaceChildren(...[
    h("p", { class: "small", role: "status" }, rows.length ? `${number(rows.length)} connections${more}` : none,
      words && ` (${words})`),
    may && rows.length && h("div", { class: "row" }, check("all on this page", all), acts, counted),
    rows.length && table("Connections", may ? `(select) | ${heads} | (act)` : heads, cells, { spoken: true }),
    (query.get("after") || next !== null) && h("p", { class: "row last" },
      query.get("after") && page("", "First page"), next !== null && page(next, gaveUp ? "Look further" : "Next page")),
  ].filter(Boolean));

  async function actOn(wanted, action) {
    const what = wanted.length > 1 ? `${wanted.length} connections` : wanted[0].name;
    if (action === "close" && !await confirmed(`Close ${what}?`, CLOSING, "Close")) return;
    const refused = [], left = [...wanted];
    const worker = async () => {
      for (let line = left.shift(); line && !signal.aborted; line = left.shift()) {
        try {
          line.row.state = (await act(line.id, action)).state;
          refresh(line);
        } catch (error) {
          if (!(error instanceof ApiError) || !session.me) throw error;
          refused.push(error.message);
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    const done = wanted.length - refused.length;
    if (done) say(wanted.length === 1 ? `${what}: ${PAST[action]}.` : `${done} connections: ${PAST[action]}.`);
    if (refused.length) {
      fail(new ApiError(409, `${refused.length} of ${wanted.length} were not ${PAST[action]}: ${refused[0]}`));
    }
  }
}

/** What one would want of it. */
const likely = (row) => (row.state === "ACTIVE" || row.state === "STANDBY" ? "sleep" : "wake");

/** Moves one, after a wait where that is asked for. */
export async function act(id, action) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await api.send("POST", connectionPath(id, `/${action}`));
    } catch (error) {
      if (error.status !== 429 || attempt === 3) throw error;
      await new Promise((resolve) => { setTimeout(resolve, (error.retryS || 1) * 1000); });
    }
  }
}
