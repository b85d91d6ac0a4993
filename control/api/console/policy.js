// SPDX-License-Identifier: Apache-2.0
// Rules of the policy: looked at, edited as text, tried, put in force, taken back; and what is in force for whom.

import { api, session, target } from "./api.js";
import { confirmed, field, h, number, panel, policyValue, select, table, time } from "./dom.js";

const WHOSE = ["client", "tag", "network", "service", "server"];
const CONDITIONS = [...WHOSE, "order"];
const PAST = 100;
const SHOWN = 500; // rules in the table
const ABOUT = "One rule or several, each a [[rule]] in TOML; or JSON. Rules that are not named here stay as they are. "
  + `Conditions: ${CONDITIONS.join(", ")}. Values: active_quiet, standby_quiet, idle_quiet, probe_interval, priority, `
  + "and all others that Explain lists.";

/** A rule as TOML, as docs/policy.md writes it. JSON's strings and lists are TOML's, too. */
function toml(rule) {
  const text = (key, value) => {
    const written = policyValue(key, value);
    const plain = Array.isArray(value) || String(value) === written; // no duration
    return JSON.stringify(plain || CONDITIONS.includes(key) ? value : written);
  };
  return ["[[rule]]", ...Object.entries(rule).map(([key, value]) => `${key} = ${text(key, value)}`), ""].join("\n");
}

const write = (rule, keys) => keys.map((key) => `${key}=${policyValue(key, rule[key])}`).join(" ");
const whose = (rule) => write(rule, CONDITIONS.filter((key) => key in rule)) || "all clients";
const gives = (rule) => write(rule, Object.keys(rule).filter((key) => key !== "name" && !CONDITIONS.includes(key)));
const whole = (rule) => (rule ? `${whose(rule)}: ${gives(rule)}` : "removed");

/** One to begin with. */
function draft(network = "192.0.2.0/24", service = "") {
  const name = `net-${network.toLowerCase().replace(/[^0-9a-f]+/g, "-")}`;
  return toml({ name, network, ...(service && { service }), idle_quiet: 600 });
}

export async function policy(look) {
  const { main, query, signal, doing, title, say, fail } = look;
  title("Policy");
  const operator = session.may("operator");
  const rules = h("div"), past = h("div"), outcome = h("div", { role: "status" }), made = h("span", { class: "small" });
  const text = h("textarea", { name: "file", spellcheck: "false", rows: 10, "aria-describedby": "about-rules" });
  const why = h("input", { name: "why", autocomplete: "off", maxlength: 1000 });
  let now; // as GET /v1/policy told it last
  let seen = 0; // the version that the text was made of

  const attempt = async () => {
    outcome.replaceChildren(...preview(await api.send("POST", "/v1/policy/try", { file: text.value })));
  };
  const put = () => change("PUT", "/v1/policy/rules", { file: text.value });
  main.append(rules, h("div", { class: "grid loose" },
    panel(operator ? "Editor" : "As text",
      h("p", { class: "small", id: "about-rules" }, ABOUT), field("Rules", text),
      operator
        ? h("div", { class: "row" }, field("Why", why, { class: "grow" }),
          h("button", { type: "button", onclick: doing(attempt) }, "Try"),
          h("button", { type: "button", class: "main", onclick: doing(put) }, "Put in force"), made)
        : h("p", { class: "small" }, `The role ${session.me.role} looks at rules; an operator changes them.`),
      outcome),
    explainer(look)), past);
  await load();
  const wanted = now.rule.find((rule) => rule.name === query.get("rule"));
  edit(wanted ? toml(wanted) : draft(query.get("network") ?? undefined, query.get("service") ?? undefined));
  if (query.has("rule") && !wanted) fail(new Error(`There is no rule "${query.get("rule")}" any more.`));
  if (query.has("rule") || query.has("network")) setTimeout(() => text.focus()); // behind the page's heading

  function edit(content) {
    text.value = content;
    outcome.replaceChildren();
    haveSeen();
  }

  function haveSeen() {
    seen = now.version;
    made.textContent = `made of version ${seen}`;
  }

  async function load() {
    const [told, changes] = await Promise.all(
      [api.get("/v1/policy", {}, signal), api.get("/v1/policy/history", { limit: PAST }, signal)]);
    now = told;
    rules.replaceChildren(rulesPanel());
    past.replaceChildren(historyPanel(changes));
  }

  /** Rules are changed as they were seen: 409, where another has changed them since. */
  async function change(method, path, body) {
    const before = seen;
    let told;
    try {
      told = await api.send(method, path, { why: why.value, seen, ...body });
    } catch (error) {
      if (error.status === 409) {
        await load();
        const agree = () => { haveSeen(); outcome.replaceChildren(); };
        outcome.replaceChildren(
          h("p", {}, "Another has changed the rules meanwhile: the table has theirs, and your text is here still."),
          h("button", { type: "button", onclick: agree }, `I have seen version ${now.version}`));
      }
      throw error;
    }
    const done = told.changed.length > 0;
    say(done ? `Version ${told.version} is in force.` : `Nothing changes: version ${told.version} stays.`);
    why.value = "";
    await load();
    haveSeen();
    const back = doing(() => change("POST", "/v1/policy/rollback", { version: before }));
    outcome.replaceChildren(
      ...told.changed.map((one) => h("p", { class: "small" }, h("strong", {}, one.name), `: ${whole(one.rule)}. `,
        one.before ? `Before: ${whole(one.before)}.` : "It is new.")),
      done ? h("button", { type: "button", onclick: back }, `Take it back to version ${before}`) : "");
  }

  function rulesPanel() {
    const known = new Map(now.rule.map((rule) => [rule.name, rule]));
    const names = Object.keys(now.about);
    const lines = names.slice(0, SHOWN).map((name) => {
      const rule = known.get(name) ?? { name }, about = now.about[name];
      const problems = about.problems.map((problem) => h("p", { class: "bad" }, problem));
      return [h("a", { href: target("#/policy", { rule: name }) }, name), whose(rule),
        h("span", { class: "mono" }, gives(rule)), number(about.version), about.who, [about.why, problems],
        h("a", { href: target("#/connections", { rule: name }) }, "connections"),
        h("button", { type: "button", class: "slim danger", "aria-label": `Remove the rule ${name}`,
          onclick: doing(() => remove(name)) }, "Remove")];
    });
    const some = names.length > SHOWN ? `; ${SHOWN} of ${number(names.length)} rules` : "";
    const caption = `Version ${now.version}${some}`;
    const heads = "*rule | for | gives | version:number | by | why:break | (who has its values)";
    const add = () => { edit(draft()); text.focus(); };
    return panel("Rules in force", now.error && h("p", { class: "bad" }, now.error),
      names.length
        ? table(caption, operator ? `${heads} | (remove)` : heads, lines)
        : h("p", {}, "There are none: what the configuration says is in force."),
      operator && h("p", { class: "last" }, h("button", { type: "button", onclick: add }, "New rule")));
  }

  async function remove(name) {
    const means = "Its clients have what other rules and their service give. It can be taken back.";
    if (await confirmed(`Remove the rule ${name}?`, means, "Remove")) {
      await change("DELETE", `/v1/policy/rules/${encodeURIComponent(name)}`, {});
    }
  }

  async function rollback(version) {
    const what = version ? `All rules become what they were at version ${version}.` : "All rules are removed.";
    const means = `${what} That is a version of its own, and can be taken back.`;
    if (await confirmed(`Back to version ${version}?`, means, "Roll back")) {
      await change("POST", "/v1/policy/rollback", { version });
    }
  }

  function historyPanel(changes) {
    const heads = "*version:number | at:time | by | rule | from then on:break | why:break";
    const back = (version) => h("button", { type: "button", class: "slim", "aria-label": `Back to version ${version}`,
      onclick: doing(() => rollback(version)) }, "Back to it");
    const lines = changes.reverse().map((row, at) => [number(row.version), time(row.at_ms), row.who, row.name,
      h("span", { class: "mono" }, whole(row.rule)), row.why,
      row.version !== now.version && changes[at - 1]?.version !== row.version && back(row.version)]);
    return panel("Versions", lines.length
      ? table("Changes of rules, the newest first", operator ? `${heads} | (back to it)` : heads, lines)
      : h("p", {}, "No rule was ever made."),
    operator && now.version > 0 && h("p", { class: "last" },
      h("button", { type: "button", onclick: doing(() => rollback(0)) }, "Back to no rules")));
  }
}

function preview(tried) {
  const words = { same: "as it is", changed: "changed", new: "new" };
  const rule = ({ name, change, names }) =>
    `${name}: ${words[change]}${names === undefined ? "" : `, for ${number(names)} names`}`;
  const lines = tried.policies.map((one) => [one.service,
    [...one.networks, one.more_networks ? `and ${number(one.more_networks)} more` : ""].join(" "),
    number(one.connections), number(one.changed), h("span", { class: "mono" }, gives(one.values))]);
  return [h("h3", {}, "What it would change"), h("p", {}, `${tried.rules.map(rule).join("; ")}.`),
    h("p", {}, `${number(tried.changed)} connections would have other values than now; ${number(tried.lose)} of them `,
      "those of their service alone. ",
      tried.without_slot ? `${number(tried.without_slot)} more sleep without a slot, and are not counted. ` : "",
      "Nothing has been changed."),
    lines.length ? table("By service and network",
      "*service | networks:break | connections:number | other values:number | values then:break", lines) : ""];
}

function explainer({ signal, doing, fail }) {
  const who = h("input", { name: "who", required: true, autocomplete: "off", spellcheck: "false" });
  const service = select("service", [["", "a connection that there is"]], "");
  const answer = h("div", { role: "status" });
  const option = ({ name }) => h("option", { value: name }, `an address that connects to ${name}`);
  api.get("/v1/status", {}, signal).then(({ services }) => service.append(...services.map(option)), fail);
  const ask = async () => {
    const client = who.value.trim();
    const told = service.value ? await api.get("/v1/policy/explain", { client, service: service.value }, signal)
      : await api.get(`/v1/connections/${encodeURIComponent(client)}/policy`, {}, signal);
    const caption = `${told.client}, service ${told.service}, rules of version ${told.version}`;
    const lines = told.values.map(({ key, value, source }) => [key, h("code", {}, policyValue(key, value)), source]);
    answer.replaceChildren(table(caption, "*key | value | from", lines));
  };
  return panel("What is in force for a client",
    h("form", { class: "row", onsubmit: doing(ask) },
      field("Number, address, address:port, or name with its domain", who, { class: "grow" }),
      field("It is", service), h("button", {}, "Explain")), answer);
}
