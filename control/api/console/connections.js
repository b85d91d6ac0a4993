// SPDX-License-Identifier: Apache-2.0
// A table to search and act on. One page of it is in the document, whatever number there is.

import { api, ApiError, connectionPath, session, target } from "./api.js";
import { check, confirmed, field, h, number, select, span, state, table } from "./dom.js";

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

const QUIET = [["", "any time"], [60, "1 minute"], [600, "10 minutes"], [3600, "1 hour"], [21600, "6 hours"], [86400, "1 day"], [604800, "1 week"]];

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

export const reference = (row) => `#/connections/${encodeURIComponent(row.client)}${row.id ? `?id=${row.id}` : ""}`;

export async function connections(look) {
  const { main, query, signal, doing, title, say, fail } = look;
  const text = query.get("find") ?? "";
  if (/^\d+$/.test(text)) { // a connection's number
    location.replace(`#/connections/${text}`);
    return;
  }
  const [sought, words] = understood(text);
  title(text ? `Connections: ${text}` : "Connections");
  const services = session.isServer ? session.me.services : (await api.get("/v1/status", {}, signal)).services.map((one) => one.name);
  const oneService = session.isServer && services.length > 1;
  const value = (name) => query.get(name) ?? "";
  const form = h("form", { class: "row panel" },
    field("Name, address or number", h("input", { type: "search", name: "find", value: text, autocomplete: "off", spellcheck: "false" }), { class: "grow" }),
    field("State", select("state", [["", "any"], ...["ACTIVE", "STANDBY", "IDLE", "SLEEP"].map((one) => [one, one])], value("state"))),
    field("Service", select("service", [...(oneService ? [] : [["", "any"]]), ...services.map((one) => [one, one])], value("service"))),
    field("Tag", h("input", { name: "tag", value: value("tag"), size: 10, autocomplete: "off", list: "tags" })),
    field("Quiet for at least", select("quiet", QUIET, value("quiet"))),
    session.isServer ? null : field("Rule", h("input", { name: "rule", value: value("rule"), size: 10, autocomplete: "off" })),
    h("datalist", { id: "tags" }),
    h("button", { class: "main" }, "Search"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = target("#/connections", Object.fromEntries(new FormData(form)));
    if (location.hash === wanted) dispatchEvent(new Event("hashchange"));
    else location.hash = wanted;
  });
  const results = h("div", { class: "panel" }, h("p", { class: "hint" }, "Looking …"));
  main.append(form, results);
  if (!session.isServer) {
    api.get("/v1/tags", { limit: 200 }, signal).then((tags) =>
      form.querySelector("#tags").append(...tags.map((one) => h("option", { value: one.tag }))), () => {});
  }

  const keys = { ...sought, ...Object.fromEntries(["state", "service", "tag", "quiet", "rule"].map((name) => [name, value(name)])) };
  if (oneService) keys.service ||= services[0];
  const found = session.isServer
    ? { rows: (await api.lines("/v1/connections", { ...keys, limit: ROWS }, signal)), next: null }
    : await pages(keys, value("after") || "first", signal);
  draw();

  function draw() {
    const { rows, next } = found;
    const twins = new Set(rows.map((row) => row.client).filter((one, at, all) => all.indexOf(one) !== at));
    const idOf = (row) => (twins.has(row.client) && row.id ? row.id : row.client);
    const boxes = rows.map((row) => h("input", { type: "checkbox", "aria-label": `select ${row.name ?? row.client}` }));
    const chosen = () => rows.filter((_, at) => boxes[at].checked);
    const may = session.may("operator") || session.isServer;
    const all = h("input", { type: "checkbox" });
    all.addEventListener("change", () => { for (const box of boxes) box.checked = all.checked; count(); });
    const counted = h("span", { role: "status", class: "small" }, "none selected");
    const acts = ACTIONS.map(([action, label, what]) => h("button", {
      type: "button", class: action === "close" ? "danger" : null, title: `Let the selected ones become ${what}`, disabled: true,
      onclick: doing(() => actOn(chosen(), action, label)) }, label));
    function count() {
      const some = chosen().length;
      counted.textContent = some ? `${some} selected` : "none selected";
      for (const act of acts) act.disabled = !some;
    }
    for (const box of boxes) box.addEventListener("change", count);
    const columns = [...(may ? [{ label: "select" }] : []), { name: "client", header: true }, { name: "state" }, { name: "address" }, { name: "service" },
      { name: "quiet", number: true }, { name: "tags" }, ...(may ? [{ label: "act" }] : [])];
    const lines = rows.map((row, at) => {
      const awake = row.state === "ACTIVE" || row.state === "STANDBY";
      const [action, label] = awake ? ["sleep", "Sleep"] : ["wake", "Wake"];
      const act = h("button", { type: "button", class: "slim", "aria-label": `${label} ${row.name ?? row.client}`,
        onclick: doing(() => actOn([row], action, label)) }, label);
      return [...(may ? [boxes[at]] : []), h("a", { href: reference(row) }, row.name ?? (row.id ? `#${row.id}` : row.client)), state(row.state),
        h("span", { class: "mono" }, row.client), row.service, span(row.quiet_s), row.tags.map((tag) => h("a", { class: "tag", href: target("#/connections", { tag }) }, tag)),
        ...(may ? [act] : [])];
    });
    const onward = next === null ? null : h("a", { class: "button", href: target("#/connections", { ...Object.fromEntries(query), after: next }) },
      found.gaveUp ? "Look further" : "Next page");
    const begin = value("after") ? h("a", { class: "button", href: target("#/connections", { ...Object.fromEntries(query), after: "" }) }, "First page") : null;
    const what = [words, value("tag") && `tag ${value("tag")}`, value("rule") && `values by rule ${value("rule")}`].filter(Boolean).join(", ");
    const more = next !== null ? " on this page; there may be more" : session.isServer && rows.length === ROWS ? ", the first ones: narrow the search for others" : "";
    const none = found.gaveUp ? "None among those looked at so far." : "There is none.";
    results.replaceChildren(
      h("p", { class: "small", role: "status" }, rows.length ? `${number(rows.length)} connections${what ? `: ${what}` : ""}${more}.` : `${what ? `For ${what}: ` : ""}${none}`),
      may && rows.length ? h("div", { class: "row" }, check("all on this page", all), acts, counted) : "",
      rows.length ? table("Connections", columns, lines) : "",
      h("p", { class: "row" }, begin, onward));

    async function actOn(wanted, action, label) {
      const several = wanted.length > 1 ? `${wanted.length} connections` : wanted[0].name ?? wanted[0].client;
      if (action === "close" && !await confirmed(`Close ${several}?`, "Their clients see the end of the connection, and have to connect again.", "Close")) return;
      const refused = [];
      let done = 0;
      const left = [...wanted];
      const worker = async () => {
        for (let row = left.shift(); row && !signal.aborted; row = left.shift()) {
          try {
            const told = await act(idOf(row), action);
            row.state = told.state ?? row.state;
            done += 1;
          } catch (error) {
            if (!(error instanceof ApiError) || !session.me) throw error;
            refused.push(error.message);
          }
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, worker));
      if (action === "close" && !refused.length) found.rows = rows.filter((row) => !wanted.includes(row));
      draw();
      const [why] = refused;
      const past = { wake: "woken", standby: "put into STANDBY", idle: "put into IDLE", sleep: "put to SLEEP", close: "closed" }[action];
      if (done) say(wanted.length === 1 ? `${several}: ${past}.` : `${done} ${past}.`);
      if (refused.length) fail(new ApiError(409, `${refused.length} of ${wanted.length} not (${label}): ${why}`));
    }
  }
}

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
