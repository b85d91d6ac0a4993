// SPDX-License-Identifier: Apache-2.0
// One connection: what it is, why it is not asleep, what became of it, its values, its name and tags.

import { act, ACTIONS, CLOSING } from "./connections.js";
import { api, ApiError, connectionPath, session, target } from "./api.js";
import { strip } from "./charts.js";
import {
  bytes, confirmed, ended, field, h, number, pairs, panel, policyValue, select, span, state, table, time, update,
} from "./dom.js";

const OWN = ["idle_quiet", "active_quiet", "standby_quiet", "probe_interval"];
const ROWS = 200; // of its past, the newest
const EVERY_S = 2;

export async function connection(look) {
  const { main, heading, rest: id, query, signal, every, title, fail } = look;
  const operator = session.may("operator");
  const path = (more) => connectionPath(id, more);
  title(id);
  heading.textContent = id;
  const head = h("p", { class: "lead" }), why = h("div"), facts = h("div"), past = h("div"), values = h("div");
  const acts = h("div", { class: "row panel", role: "group", "aria-label": "Actions" });
  const forms = h("div", { class: "stack" }), naming = h("div");
  main.append(head, acts,
    h("div", { class: "grid" }, panel("Why it is where it is", why), panel("What is known", facts)),
    panel("Timeline", past),
    h("div", { class: "grid loose" }, panel("Values of the policy, and what gave them", values), forms));

  const refresh = async () => {
    const [one, explained, given] = await Promise.all(
      ["", "/explain", "/policy"].map((more) => api.get(path(more), {}, signal)));
    heading.textContent = one.name ?? one.client;
    title(heading.textContent);
    update(head, state(one.state), `; ${one.id ? `number ${one.id}; ` : ""}${one.client} at ${one.local}; `,
      `service ${one.service}`);
    update(why, h("ul", { class: "sentences" }, explained.sentences.map((text) => h("li", {}, text))));
    update(facts, known(one));
    update(past, timeline(one));
    update(values, policyTable(given, one));
    const was = query.get("id");
    if (was && one.id && String(one.id) !== was) {
      throw new ApiError(404, `Connection ${was} has ended: this one, ${one.id}, came from the same address since.`);
    }
    return one;
  };
  let one;
  try {
    one = await refresh();
  } catch (error) {
    if (!why.hasChildNodes()) main.replaceChildren(heading, ...await whatWas(query.get("id") ?? id, error, signal));
    throw error;
  }
  every(EVERY_S, refresh);
  const parts = { ...look, path, refresh, naming };
  if (operator || session.isServer) {
    acts.append(...buttons(parts, id));
    forms.append(valuesForm(parts));
  } else {
    acts.remove();
  }
  if (operator || (session.isServer && one.name)) {
    forms.append(naming);
    naming.append(namePanel(parts, one));
  }
}

const buttons = ({ heading, refresh, doing, say }, id) => ACTIONS.map(([action, label, means]) => {
  const work = async () => {
    const name = heading.textContent;
    if (action === "close" && !await confirmed(`Close ${name}?`, CLOSING, "Close")) return;
    const { before, state: after } = await act(id, action);
    const same = before === after;
    const told = () => say(same ? `It is in ${after}, as it was.` : `It was in ${before}, and is in ${after}.`);
    if (action === "close") {
      addEventListener("hashchange", told, { once: true }); // there, for nothing is left here
      location.hash = "#/connections";
    } else {
      told();
      await refresh();
    }
  };
  const kind = action === "close" ? "danger" : null;
  return h("button", { type: "button", class: kind, title: means, onclick: doing(work) }, label);
});

function valuesForm({ path, refresh, doing, say }) {
  const key = select("key", OWN.map((name) => [name, name]), OWN[0]);
  const value = h("input", { name: "value", placeholder: "5m, 1h, never", size: 10, required: true,
    autocomplete: "off" });
  const why = h("input", { name: "why", autocomplete: "off", maxlength: 1000 });
  const give = async (wanted) => {
    await api.send("PUT", path("/policy"), { values: { [key.value]: wanted }, why: why.value });
    say(`${key.value} is ${wanted === null ? "what its rules and its service say" : `${wanted} for this connection`}.`);
    await refresh();
  };
  return panel("Values of its own",
    h("p", { class: "small" }, "For this connection alone, for as long as it lives, whatever rules say."),
    h("form", { class: "row", onsubmit: doing(() => give(value.value.trim())) },
      field("Key", key), field("Value", value), field("Why", why, { class: "grow" }),
      h("button", { class: "main" }, "Give"),
      h("button", { type: "button", onclick: doing(() => give(null)) }, "Take away")));
}

function namePanel(parts, one) {
  const { path, refresh, naming, doing, say } = parts;
  const tagsOf = `/v1/names/${encodeURIComponent(one.name)}/tags`;
  /** Does it, says what the answer means, and shows the forms anew. */
  const change = (ask, told) => doing(async () => {
    say(told(await ask()));
    naming.replaceChildren(namePanel(parts, await refresh()));
  });
  const haveTags = ({ tags }) => `${one.name} has ${tags.length ? `the tags ${tags.join(", ")}` : "no tags"}.`;
  const retag = (edit) => change(() => api.send("PUT", tagsOf, edit()), haveTags);
  const text = { required: true, autocomplete: "off", spellcheck: "false" };
  const name = h("input", { name: "name", value: one.name ?? "", ...text });
  const tag = h("input", { name: "tag", ...text });
  const set = change(() => api.send("PUT", path("/name"), { name: name.value.trim() }),
    (answer) => `Servers reach it as ${answer.target}.`);
  const forget = change(() => api.send("DELETE", `/v1/names/${encodeURIComponent(one.name)}`),
    () => `The name ${one.name} is forgotten.`);
  const tags = one.tags.map((label) => h("span", { class: "tag" }, label, " ", h("button", {
    type: "button", class: "slim", "aria-label": `Remove the tag ${label}`, onclick: retag(() => ({ remove: [label] })),
  }, "×")));
  return panel("Name and tags",
    session.may("operator") && h("form", { class: "row", onsubmit: set }, field("Name", name, { class: "grow" }),
      h("button", { class: "main" }, "Set the name"),
      one.name && h("button", { type: "button", class: "danger", onclick: forget }, "Forget it")),
    one.name
      ? h("form", { class: "row", onsubmit: retag(() => ({ add: [tag.value.trim()] })) }, field("Another tag", tag),
        h("button", {}, "Add the tag"), h("span", {}, tags.length ? tags : "It has no tags."))
      : h("p", { class: "small last" }, "Tags are a name's: give it a name first."));
}

// One that has ended, by its number.
async function whatWas(id, error, signal) {
  let history = [];
  if (error.status === 404 && /^[1-9]\d{0,14}$/.test(id) && !session.isServer) {
    history = await api.get("/v1/history", { id, limit: ROWS }, signal).catch(() => []);
  }
  if (history.at(-1)?.to !== "CLOSED") return [h("p", { class: "lead" }, "Nothing is known of it now.")];
  return [h("p", { class: "lead" }, `Number ${id} has ended.`),
    panel("Timeline", ...timeline({ history, state: "CLOSED" }))];
}

function known(one) {
  const link = (tag) => h("a", { class: "tag", href: target("#/connections", { tag }) }, tag);
  const found = [["quiet for", span(one.quiet_s)], ["tags", one.tags.length ? one.tags.map(link) : "none"]];
  if (one.slept_at_ms) found.push(["asleep since", time(one.slept_at_ms)]);
  if (one.server) found.push(["server", one.server]);
  if (one.keep_alive) {
    const { probe_interval_s: least, most_probe_interval_s: most, probes_unanswered: lost } = one.keep_alive;
    found.push(["heard", `${span(one.keep_alive.heard_s_ago)} ago, keep-alives included`]);
    found.push(["probed", least ? `every ${span(least)}${most ? ` to ${span(most)}` : ""}` : "never"]);
    if (lost) found.push(["without an answer", `${number(lost)} probes`]);
  }
  if (one.came_back_from) {
    const past = (id) => h("a", { class: "tag", href: target(`#/connections/${id}`, {}) }, `${id}`);
    found.push(["came back from", session.isServer ? one.came_back_from.join(", ") : one.came_back_from.map(past)]);
  }
  return pairs(found);
}

function timeline(one) {
  const rows = one.history ?? [];
  if (!rows.length) return h("p", { class: "small" }, "Nothing of it is in the history.");
  const lines = rows.slice(-ROWS).reverse().map((row) => [time(row.at_ms), state(row.from), state(row.to), row.cause,
    bytes(row.rx_bytes), bytes(row.tx_bytes), span(row.gap_ms / 1000), ended(row)]);
  const some = rows.length > ROWS ? `: ${ROWS} of ${number(rows.length)}` : "";
  return [strip(rows, one.state, Date.now()), table(`Its changes of state, the newest first${some}`,
    "*at:time | from | to | cause | from client:number | to client:number | quiet before:number | more:break", lines)];
}

function policyTable(given, one) {
  const source = ({ rule, source: text }) =>
    (rule && !session.isServer ? h("a", { href: target("#/policy", { rule }) }, text) : text);
  const address = one.client.replace(/:\d+$/, "").replace(/[[\]]/g, "");
  const network = address.includes(":") ? `${address}/128` : `${address.split(".").slice(0, 3).join(".")}.0/24`;
  return [
    given.error && h("p", { class: "bad" }, given.error),
    session.may("operator") && h("p", {},
      h("a", { href: target("#/policy", { network, service: one.service }) }, `Make a rule for ${network}`)),
    table(`Rules of version ${given.version}`, "*key | value | from",
      given.values.map((row) => [row.key, h("span", { class: "mono" }, policyValue(row.key, row.value)), source(row)])),
  ];
}
