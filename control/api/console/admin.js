// SPDX-License-Identifier: Apache-2.0
// For admins: who changed what, and the tokens.

import { api } from "./api.js";
import { check, confirmed, field, h, number, panel, select, table, time, update } from "./dom.js";

const DAYS = [[1, "1 day"], [7, "7 days"], [90, "90 days"], [365, "1 year"], ["", "for ever"]];
const ROLES = ["viewer", "operator", "admin", "server"];
const LATEST = 200;

export async function audit({ main, signal, every, doing, title }) {
  title("Audit");
  const who = h("input", { name: "who", autocomplete: "off" });
  const refused = h("input", { type: "checkbox", name: "refused" });
  const rows = h("div");
  const load = async () => {
    const query = { limit: LATEST, who: who.value.trim(), refused: refused.checked };
    const found = await api.get("/v1/audit", query, signal);
    const lines = found.reverse().map((row) => [time(row.at_ms), row.who, row.origin, `${row.method} ${row.path}`,
      h("span", { class: "mono" }, row.body),
      row.error ? h("span", { class: "bad" }, `${row.status}: ${row.error}`) : "done"]);
    update(rows, panel("Changes that were asked for", table(`${number(found.length)}, the newest first`,
      "*at:time | by | from | what:break | content:break | outcome:break", lines)));
  };
  main.append(h("form", { class: "row panel", onsubmit: doing(load) }, field("By", who),
    check("only what was refused", refused), h("button", {}, "Show")), rows);
  await load();
  every(10, load);
}

export async function tokens({ main, signal, doing, title, say }) {
  title("Tokens");
  const rows = h("div"), made = h("div");
  const name = h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false" });
  const role = select("role", ROLES.map((one) => [one, one]), "viewer");
  const services = h("input", { name: "services", autocomplete: "off" });
  const days = select("days", DAYS, 90);
  const servers = field("Services, by commas", services);
  const of = () => { servers.hidden = role.value !== "server"; };
  role.addEventListener("change", of);
  of();

  const load = async () => {
    const all = await api.get("/v1/tokens", {}, signal);
    rows.replaceChildren(panel("Tokens", table(`${number(all.filter((one) => one.good).length)} of these are good`,
      "*name | id | role | services | made | ends | (revoke)", all.reverse().map((row) => listed(row, revoke(row))))));
  };
  const make = doing(async () => {
    const told = await api.send("POST", "/v1/tokens", {
      name: name.value.trim(), role: role.value,
      services: role.value === "server" ? services.value.split(",").map((one) => one.trim()).filter(Boolean) : [],
      expires_s: days.value ? days.value * 86400 : null });
    const text = h("input", { readonly: true, value: told.token, class: "mono" });
    const done = h("button", { type: "button", onclick: () => made.replaceChildren() }, "I have it");
    made.replaceChildren(panel(`The token of ${told.name}`,
      field("It is shown this once, and kept nowhere", text), h("p", { class: "last" }, done)));
    text.select();
    name.value = "";
    await load();
  });
  const revoke = (row) => doing(async () => {
    const means = "Whoever uses it is refused within two seconds. Another one has to be made.";
    if (!await confirmed(`Revoke the token ${row.name}?`, means, "Revoke")) return;
    const told = await api.send("DELETE", `/v1/tokens/${encodeURIComponent(row.id)}`);
    await load();
    if (told.id !== row.id) throw new Error(`Another token was revoked: ${told.name} (${told.id}).`);
    say(`The token ${row.name} is revoked.`);
  });
  main.append(h("form", { class: "row panel", onsubmit: make }, field("Name", name), field("Role", role), servers,
    field("Good for", days), h("button", { class: "main" }, "Make a token")), made, rows);
  await load();
}

function listed(row, revoke) {
  const end = row.revoked_at_ms ? `revoked ${time(row.revoked_at_ms)}`
    : row.expires_at_ms ? time(row.expires_at_ms) : "never";
  const label = `Revoke the token ${row.name}`;
  const button = { type: "button", class: "slim danger", "aria-label": label, onclick: revoke };
  return [row.name, h("code", {}, row.id), row.role, (row.services ?? []).join(", "),
    `${time(row.made_at_ms)} by ${row.made_by}`, end, row.good && h("button", button, "Revoke")];
}
