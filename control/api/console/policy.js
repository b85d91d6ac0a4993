// SPDX-License-Identifier: Apache-2.0
// Rules of the policy: looked at, edited as text, tried, put in force, taken back; and what is in force for whom.

import { api, session } from "./api.js";
import { confirmed, field, h, number, panel, policyValue, select, table, time } from "./dom.js";

const WHOSE = ["client", "tag", "network", "service", "server"];
const PAST = 100;
const SHOWN = 500; // rules in the table

/** A rule as TOML, in the words of docs/policy.md. JSON's strings and lists are TOML's, too. */
function toml(rule) {
  const text = (key, value) => {
    if (key === "name" || WHOSE.includes(key) || Array.isArray(value)) return JSON.stringify(value);
    return typeof value === "number" && policyValue(key, value) === String(value) ? String(value) : JSON.stringify(policyValue(key, value));
  };
  return ["[[rule]]", ...Object.entries(rule).map(([key, value]) => `${key} = ${text(key, value)}`), ""].join("\n");
}

const gives = (rule) => Object.entries(rule).filter(([key]) => key !== "name" && key !== "order" && !WHOSE.includes(key))
  .map(([key, value]) => `${key}=${policyValue(key, value)}`).join(" ");
const whose = (rule) => [...WHOSE, "order"].filter((key) => rule[key] !== undefined).map((key) => `${key}=${rule[key]}`).join(" ") || "all clients";

/** The rule that most would want to begin with. */
function draft(network, service) {
  const name = network ? `net-${network.replace(/[^0-9a-f]+/gi, "-")}` : "my-rule";
  return toml({ name, network: network || "192.0.2.0/24", ...(service && { service }), idle_quiet: 600 });
}

export async function policy({ main, query, signal, doing, title, say, fail }) {
  title("Policy");
  const operator = session.may("operator");
  const rules = h("div"), past = h("div"), outcome = h("div", { role: "status" }), versions = h("span", { class: "small" });
  const text = h("textarea", { name: "file", spellcheck: "false", rows: 10, "aria-describedby": "about-rules" });
  const why = h("input", { name: "why", autocomplete: "off", maxlength: 1000 });
  let now = { version: 0, rule: [], about: {} };
  let seen = 0; // the version that the editor's text was made of

  const put = doing(async () => {
    const told = await changed("PUT", "/v1/policy/rules", { file: text.value });
    outcome.replaceChildren(...differences(told));
  });
  const attempt = doing(async () => {
    const tried = await api.send("POST", "/v1/policy/try", { file: text.value });
    outcome.replaceChildren(...preview(tried));
  });
  const editor = panel(operator ? "Editor" : "A rule as text",
    h("p", { class: "hint", id: "about-rules" }, "One rule or several, as [[rule]] in TOML or as JSON; rules that are not named here stay as they are. ",
      "Conditions: client, tag, network, service, server, order; all else are values."),
    field("Rules", text, { class: "grow" }),
    operator ? h("div", { class: "row" }, field("Why", why, { class: "grow" }),
      h("button", { type: "button", onclick: attempt }, "Try"), h("button", { type: "button", class: "main", onclick: put }, "Put in force"), versions) : null,
    operator ? null : h("p", { class: "hint" }, `Your role, ${session.me.role}, may look at rules; an operator changes them.`),
    outcome);

  main.append(rules, h("div", { class: "grid" }, editor, explainer()), past);
  await load();
  const rule = now.rule.find((one) => one.name === query.get("rule"));
  edit(rule ? toml(rule) : draft(query.get("network"), query.get("service")));
  if (query.get("rule") && !rule) fail(new Error(`There is no rule "${query.get("rule")}" any more.`));
  if (query.has("rule") || query.has("network")) text.focus();

  function edit(content) {
    text.value = content;
    seen = now.version;
    versions.textContent = `made of version ${seen}`;
    outcome.replaceChildren();
  }

  async function load() {
    let changes;
    [now, changes] = await Promise.all([api.get("/v1/policy", {}, signal), api.get("/v1/policy/history", { limit: PAST }, signal)]);
    rules.replaceChildren(rulesTable());
    past.replaceChildren(history(changes));
  }

  /** A change of what was seen; the table and the history are read anew. */
  async function changed(method, path, body) {
    try {
      const told = await api.send(method, path, { ...body, why: body.why ?? why.value, seen });
      say(told.changed.length ? `Version ${told.version} is in force.` : `Nothing changes: version ${told.version} stays.`);
      why.value = "";
      await load();
      seen = now.version;
      versions.textContent = `made of version ${seen}`;
      return told;
    } catch (error) {
      if (error.status === 409) {
        await load();
        outcome.replaceChildren(h("p", {}, h("strong", {}, "Somebody else has changed the rules meanwhile."), " The table above has theirs; your text is still here. ",
          h("button", { type: "button", onclick: () => { seen = now.version; versions.textContent = `made of version ${seen}`; outcome.replaceChildren(); say("You have seen theirs: try yours again."); } },
            `I have seen version ${now.version}`)));
      }
      throw error;
    }
  }

  function rulesTable() {
    const known = new Map(now.rule.map((one) => [one.name, one]));
    const names = Object.keys(now.about);
    const lines = names.slice(0, SHOWN).map((name) => {
      const one = known.get(name) ?? { name }, about = now.about[name];
      return [h("a", { href: `#/policy?rule=${encodeURIComponent(name)}` }, name), whose(one), h("span", { class: "mono" }, gives(one)),
        about.version, about.who, [about.why, about.problems.map((problem) => h("p", { class: "bad" }, problem))],
        h("span", { class: "row" }, h("a", { href: `#/connections?rule=${encodeURIComponent(name)}` }, "connections"),
          operator ? h("button", { type: "button", class: "slim danger", "aria-label": `Remove the rule ${name}`, onclick: doing(() => remove(name)) }, "Remove") : null)];
    });
    const caption = names.length ? `Version ${now.version}${names.length > SHOWN ? `; ${SHOWN} of ${number(names.length)} rules` : ""}` : "There are none: the configuration alone is in force";
    return panel("Rules in force", now.error ? h("p", { class: "bad" }, now.error) : null,
      table(caption, [{ name: "rule", header: true }, { name: "for" }, { name: "gives" }, { name: "version", number: true }, { name: "by" }, { name: "why", wrap: true }, { label: "more" }], lines),
      operator ? h("p", {}, h("a", { class: "button", href: "#/policy?network=192.0.2.0/24", onclick: () => { if (query.get("network")) { edit(draft("192.0.2.0/24")); text.focus(); } } }, "New rule")) : null);
  }

  async function remove(name) {
    if (!await confirmed(`Remove the rule ${name}?`, "Its clients get what other rules and their service say. It can be taken back below.", "Remove")) return;
    outcome.replaceChildren(...differences(await changed("DELETE", `/v1/policy/rules/${encodeURIComponent(name)}`, {})));
  }

  function history(changes) {
    const lines = [...changes].reverse().map((row, at, all) => [row.version, time(row.at_ms), row.who, row.name,
      row.rule ? h("span", { class: "mono" }, `${whose(row.rule)}: ${gives(row.rule)}`) : "removed", row.why,
      operator && row.version !== now.version && all[at - 1]?.version !== row.version
        ? h("button", { type: "button", class: "slim", "aria-label": `Back to version ${row.version}`, onclick: doing(() => rollback(row.version)) }, "Back to this") : ""]);
    const none = operator && now.version ? h("p", {}, h("button", { type: "button", onclick: doing(() => rollback(0)) }, "Back to no rules at all")) : null;
    return panel("Versions", table(`Changes of rules, the newest first`, [{ name: "version", number: true, header: true }, { name: "at", time: true }, { name: "by" }, { name: "rule" },
      { name: "from then on", wrap: true }, { name: "why", wrap: true }, { label: "roll back" }], lines), none);
  }

  async function rollback(version) {
    const what = version ? `All rules become what they were at version ${version}` : "All rules are removed";
    if (!await confirmed(version ? `Back to version ${version}?` : "Remove all rules?", `${what}; that is the next version, and can be taken back as well.`, "Roll back")) return;
    outcome.replaceChildren(...differences(await changed("POST", "/v1/policy/rollback", { version, why: why.value })));
  }

  function differences(told) {
    return told.changed.map((one) => h("p", { class: "small" }, h("strong", {}, one.name), `: ${one.rule ? `${whose(one.rule)}: ${gives(one.rule)}` : "removed"}`,
      one.before ? `; before: ${whose(one.before)}: ${gives(one.before)}` : "; it is new"));
  }

  function preview(tried) {
    const words = { same: "as it is", changed: "changed", new: "new" };
    return [h("h2", {}, "What it would change"),
      h("p", {}, tried.rules.map((one) => `${one.name}: ${words[one.change]}${one.names === undefined ? "" : `, for ${number(one.names)} names`}`).join("; "), "."),
      h("p", {}, `${number(tried.changed)} connections would have other values than now; ${number(tried.lose)} of them those of their service alone. Nothing has been changed.`),
      tried.policies.length ? table("By service and network", [{ name: "service", header: true }, { name: "networks" }, { name: "connections", number: true }, { name: "change", number: true }, { name: "values" }],
        tried.policies.map((one) => [one.service, [...one.networks, one.more_networks ? `and ${number(one.more_networks)} more` : ""].join(" "), number(one.connections), number(one.changed), h("span", { class: "mono" }, gives(one.values))])) : ""];
  }

  function explainer() {
    const who = h("input", { name: "who", required: true, autocomplete: "off", spellcheck: "false", placeholder: "10.64.3.7 or a connection" });
    const service = select("service", [["", "it is connected"]], "");
    const answer = h("div", { role: "status" });
    api.get("/v1/status", {}, signal).then((status) => service.append(...status.services.map(({ name }) => h("option", { value: name }, `would connect to ${name}`))), fail);
    const ask = doing(async () => {
      const told = service.value ? await api.get("/v1/policy/explain", { client: who.value.trim(), service: service.value }, signal)
        : await api.get(`/v1/connections/${encodeURIComponent(who.value.trim())}/policy`, {}, signal);
      answer.replaceChildren(table(`${told.client}, service ${told.service}, version ${told.version}`, [{ name: "key", header: true }, { name: "value" }, { name: "from" }],
        told.values.map((row) => [row.key, h("span", { class: "mono" }, policyValue(row.key, row.value)), row.source])));
    });
    return panel("What is in force for …", h("form", { class: "row", onsubmit: ask }, field("Address, number or name", who, { class: "grow" }), field("which", service), h("button", {}, "Explain")),
      h("p", { class: "hint" }, "A connected client by its number, address:port or whole name; any address with a service that it would connect to."), answer);
  }
}
