// SPDX-License-Identifier: Apache-2.0
// One connection: what it is, why it is not asleep, what became of it, its values and names.

import { act, ACTIONS } from "./connections.js";
import { api, connectionPath, session } from "./api.js";
import { strip } from "./charts.js";
import { bytes, confirmed, field, h, number, panel, policyValue, select, span, state, table, time } from "./dom.js";

const OWN = ["active_quiet", "standby_quiet", "idle_quiet", "probe_interval"];
const ROWS = 200; // of its past, the newest
const EVERY_S = 5;

export async function connection({ main, heading, rest: id, query, signal, every, doing, title, say, fail }) {
  const operator = session.may("operator"), may = operator || session.isServer;
  const path = (more) => connectionPath(id, more);
  title(id);
  heading.textContent = id;
  const head = h("p", { class: "lead" }), why = h("div"), facts = h("div"), past = h("div"), values = h("div"), own = h("div"), naming = h("div");
  const acts = may ? h("div", { class: "row panel", role: "group", "aria-label": "Actions" }) : null;
  main.append(h("p", {}, h("a", { href: "#/connections" }, "Connections")), head, acts ?? "",
    h("div", { class: "grid" }, panel("Why it is where it is", why), panel("What is known", facts)),
    panel("Timeline", past),
    h("div", { class: "grid" }, panel("Values of the policy, and what gave them", values),
      h("div", {}, own, naming)));

  const refresh = async () => {
    const [one, explained, given] = await Promise.all(
      [api.get(path(), {}, signal), api.get(path("/explain"), {}, signal), api.get(path("/policy"), {}, signal)]);
    heading.textContent = one.name ?? one.client;
    title(heading.textContent);
    const other = query.get("id");
    if (other && one.id && String(one.id) !== other) {
      fail(new Error(`Connection ${other} has ended: this is connection ${one.id}, which came from the same address and port since.`));
    }
    head.replaceChildren(state(one.state), ` ${one.id ? `number ${one.id}, ` : ""}${one.client} at ${one.local}, service ${one.service}`);
    why.replaceChildren(h("ul", { class: "sentences" }, explained.sentences.map((text) => h("li", {}, text))));
    facts.replaceChildren(known(one));
    past.replaceChildren(...timeline(one));
    values.replaceChildren(...policyTable(given, one));
    return one;
  };
  const one = await refresh();
  every(EVERY_S, refresh);

  if (may) {
    acts.append(...ACTIONS.map(([action, label, what]) => h("button", { type: "button", class: action === "close" ? "danger" : null, title: what,
      onclick: doing(async () => {
        if (action === "close" && !await confirmed(`Close ${heading.textContent}?`, "Its client sees the end of the connection, and has to connect again.", "Close")) return;
        const told = await act(id, action);
        if (action === "close") {
          say(`${heading.textContent} is closed.`);
          location.hash = "#/connections";
          return;
        }
        say(told.before === told.state ? `It is in ${told.state}, as it was.` : `It was in ${told.before}, and is in ${told.state}.`);
        await refresh();
      }) }, label)));
    own.append(valuesForm());
  }
  if (operator || (session.isServer && one.name)) naming.append(...namingForms(one));

  function valuesForm() {
    const key = select("key", OWN.map((name) => [name, name]), OWN[2]);
    const value = h("input", { name: "value", placeholder: "5m, 1h, never", size: 10, required: true, autocomplete: "off" });
    const reason = h("input", { name: "why", autocomplete: "off", maxlength: 1000 });
    const give = async (wanted) => {
      await api.send("PUT", path("/policy"), { values: { [key.value]: wanted }, why: reason.value });
      say(wanted === null ? `${key.value} is again what its rules and its service say.` : `${key.value} is ${wanted} for this connection.`);
      await refresh();
    };
    return panel("Values of its own",
      h("p", { class: "hint" }, "For this connection alone, for as long as it lives; before what rules give."),
      h("form", { class: "row", onsubmit: doing(() => give(value.value.trim())) },
        field("Key", key), field("Value", value), field("Why", reason, { class: "grow" }),
        h("button", { class: "main" }, "Give"),
        h("button", { type: "button", onclick: doing(() => give(null)) }, "Take away")));
  }

  function namingForms(shown) {
    const parts = [];
    if (operator) {
      const name = h("input", { name: "name", value: shown.name ?? "", required: true, autocomplete: "off", spellcheck: "false" });
      parts.push(h("form", { class: "row", onsubmit: doing(async () => {
        const told = await api.send("PUT", path("/name"), { name: name.value.trim() });
        say(`Servers reach it as ${told.target} from now on.`);
        await again();
      }) }, field("Name", name, { class: "grow" }), h("button", { class: "main" }, "Set the name"),
      shown.name ? h("button", { type: "button", class: "danger", onclick: doing(async () => {
        await api.send("DELETE", `/v1/names/${encodeURIComponent(shown.name)}`);
        say(`The name ${shown.name} is forgotten.`);
        await again();
      }) }, "Forget") : null));
    }
    if (shown.name) {
      const tag = h("input", { name: "tag", required: true, autocomplete: "off", spellcheck: "false" });
      const edit = (add, remove) => doing(async () => {
        const told = await api.send("PUT", `/v1/names/${encodeURIComponent(shown.name)}/tags`, { add: add(), remove: remove() });
        say(`${shown.name} has ${told.tags.length ? `the tags ${told.tags.join(", ")}` : "no tags"}.`);
        await again();
      });
      parts.push(h("div", { class: "row" }, h("span", { class: "small" }, shown.tags.length ? "Tags:" : "It has no tags."), shown.tags.map((one) =>
        h("span", { class: "tag" }, one, " ", h("button", { type: "button", class: "slim", "aria-label": `Remove the tag ${one}`, onclick: edit(() => [], () => [one]) }, "×")))),
      h("form", { class: "row", onsubmit: edit(() => [tag.value.trim()], () => []) }, field("Another tag", tag), h("button", {}, "Add the tag")));
    } else {
      parts.push(h("p", { class: "hint" }, "Tags are a name's: give it a name first."));
    }
    return [panel("Name and tags", parts)];
  }

  async function again() {
    const shown = await refresh();
    naming.replaceChildren(...namingForms(shown));
  }
}

function known(one) {
  const pairs = [["quiet for", span(one.quiet_s)], ["tags", one.tags.map((tag) => h("a", { class: "tag", href: `#/connections?tag=${tag}` }, tag))]];
  if (one.slept_at_ms) pairs.push(["asleep since", time(one.slept_at_ms)]);
  if (one.server) pairs.push(["server", one.server]);
  const alive = one.keep_alive;
  if (alive) {
    pairs.push(["heard", `${span(alive.heard_s_ago)} ago, keep-alives included`]);
    pairs.push(["probed", alive.probe_interval_s ? `every ${span(alive.probe_interval_s)}${alive.most_probe_interval_s ? ` to ${span(alive.most_probe_interval_s)}` : ""}` : "never"]);
    if (alive.probes_unanswered) pairs.push(["probes without an answer", number(alive.probes_unanswered)]);
  }
  if (one.came_back_from) pairs.push(["came back from", [one.came_back_from].flat().map(String).join(", ")]);
  return h("dl", {}, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function timeline(one) {
  const rows = one.history ?? [];
  if (!rows.length) return [h("p", { class: "hint" }, "Nothing of it is in the history.")];
  const lines = rows.slice(-ROWS).reverse().map((row) => [time(row.at_ms), row.from === "NONE" ? "new" : state(row.from), state(row.to), row.cause,
    bytes(row.rx_bytes), bytes(row.tx_bytes), span(row.gap_ms / 1000), ended(row)]);
  const columns = [{ name: "at", time: true, header: true }, { name: "from" }, { name: "to" }, { name: "cause" }, { name: "from client", number: true },
    { name: "to client", number: true }, { name: "quiet before", number: true }, { name: "more" }];
  return [strip(rows, one.state, Date.now()), table(`Its changes of state, the newest first${rows.length > ROWS ? `: ${ROWS} of ${number(rows.length)}` : ""}`, columns, lines)];
}

/** Which server it had, by which error it ended, and how long it had been silent. */
export const ended = (row) => [row.server, row.error, row.probes && `${row.probes} probes without an answer`, row.silence_s && `silent for ${span(row.silence_s)}`]
  .filter(Boolean).join(", ");

function policyTable(given, one) {
  const source = (row) => (row.rule ? h("a", { href: `#/policy?rule=${encodeURIComponent(row.rule)}` }, row.source) : row.source);
  const network = one.client.startsWith("[") ? `${one.client.slice(1).split("]")[0]}/128` : `${one.client.split(":")[0].split(".").slice(0, 3).join(".")}.0/24`;
  const more = new URLSearchParams({ network, service: one.service });
  return [
    given.error ? h("p", { class: "bad" }, given.error) : "",
    session.may("operator") ? h("p", {}, h("a", { href: `#/policy?${more}` }, "Make a rule for its network")) : "",
    table(`Version ${given.version} of the rules`, [{ name: "key", header: true }, { name: "value" }, { name: "from" }],
      given.values.map((row) => [row.key, h("span", { class: "mono" }, policyValue(row.key, row.value)), source(row)]))];
}
