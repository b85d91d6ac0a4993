// SPDX-License-Identifier: Apache-2.0
// For admins: who changed what, and the tokens.

import { api } from "./api.js";
import { check, confirmed, field, h, number, panel, select, table, time } from "./dom.js";

const DAYS = [[1, "1 day"], [7, "7 days"], [90, "90 days"], [365, "1 year"], ["", "for ever"]];
const ROLES = ["viewer", "operator", "admin", "server"];

export async function audit({ main, signal, every, doing, title }) {
  title("Audit");
  const who = h("input", { name: "who", autocomplete: "off" });
  const refused = h("input", { type: "checkbox", name: "refused" });
  const rows = h("div");
  const load = async () => {
    const found = await api.get("/v1/audit", { limit: 200, who: who.value.trim(), refused: refused.checked }, signal);
    rows.replaceChildren(panel("Changes that were asked for", table(`${number(found.length)}, the newest first`,
      [{ name: "at", time: true, header: true }, { name: "by" }, { name: "from" }, { name: "what" }, { name: "content", wrap: true }, { name: "outcome", wrap: true }],
      found.reverse().map((row) => [time(row.at_ms), row.who, row.origin, `${row.method} ${row.path}`, h("span", { class: "mono" }, row.body),
        row.error ? h("span", { class: "bad" }, `${row.status}: ${row.error}`) : "done"]))));
  };
  main.append(h("form", { class: "row panel", onsubmit: doing(load) }, field("By", who), check("only what was refused", refused), h("button", {}, "Show")), rows);
  await load();
  every(10, load);
}

export async function tokens({ main, signal, doing, title, say }) {
  title("Tokens");
  const rows = h("div"), made = h("div", { role: "status" });
  const name = h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false" });
  const role = select("role", ROLES.map((one) => [one, one]), "viewer");
  const services = h("input", { name: "services", autocomplete: "off", placeholder: "for servers: names, by commas" });
  const days = select("days", DAYS, 90);
  const load = async () => rows.replaceChildren(panel("Tokens", listed(await api.get("/v1/tokens", {}, signal))));
  const make = doing(async () => {
    const told = await api.send("POST", "/v1/tokens", { name: name.value.trim(), role: role.value, services: services.value.split(",").map((one) => one.trim()).filter(Boolean),
      expires_s: days.value ? days.value * 86400 : null });
    const text = h("input", { readonly: true, value: told.token, class: "mono", size: 64 });
    const shown = field(`The token of ${told.name}: it is shown this once, and kept nowhere`, text);
    made.replaceChildren(shown, h("button", { type: "button", onclick: () => made.replaceChildren() }, "I have it"));
    text.select();
    name.value = "";
    await load();
  });
  const revoke = (row) => doing(async () => {
    if (!await confirmed(`Revoke the token ${row.name}?`, "Whoever uses it is refused within two seconds. A new one has to be made.", "Revoke")) return;
    await api.send("DELETE", `/v1/tokens/${encodeURIComponent(row.id)}`);
    say(`The token ${row.name} is revoked.`);
    await load();
  });
  const listed = (all) => table(`${number(all.filter((one) => one.good).length)} that are good`,
    [{ name: "name", header: true }, { name: "id" }, { name: "role" }, { name: "services" }, { name: "made" }, { name: "ends" }, { label: "revoke" }],
    all.reverse().map((row) => [row.name, h("code", {}, row.id), row.role, (row.services ?? []).join(", "), `${time(row.made_at_ms)} by ${row.made_by}`,
      row.good ? (row.expires_at_ms ? time(row.expires_at_ms) : "never") : row.revoked_at_ms ? `revoked ${time(row.revoked_at_ms)}` : "expired",
      row.good ? h("button", { type: "button", class: "slim danger", "aria-label": `Revoke the token ${row.name}`, onclick: revoke(row) }, "Revoke") : ""]));
  main.append(h("form", { class: "row panel", onsubmit: make }, field("Name", name), field("Role", role), field("Services", services), field("Good for", days), h("button", { class: "main" }, "Make a token")),
    h("div", { class: "panel" }, made), rows);
  await load();
}
