// SPDX-License-Identifier: Apache-2.0
// The servers that asked for a client: in which state it was found, how long it took, why not.

import { api } from "./api.js";
import { check, field, h, number, panel, select, state, table, time } from "./dom.js";

export async function attaches({ main, query, signal, every, title, fail }) {
  title("Attaches");
  const failed = h("input", { type: "checkbox", name: "failed", checked: query.has("failed") });
  const limit = select("limit", [[100, "100"], [500, "500"], [1000, "1,000"]], 100);
  const rows = h("div");
  const load = async () => rows.replaceChildren(list(await api.get("/v1/attaches", { limit: limit.value, failed: failed.checked }, signal), failed.checked));
  for (const control of [failed, limit]) control.addEventListener("change", () => load().catch(fail));
  main.append(h("p", { class: "lead" }, "Servers that asked for a client, by the proxy or by its address, and what became of it."),
    h("div", { class: "row panel" }, check("only those that failed", failed), field("Latest", limit)), rows);
  await load();
  every(10, load);
}

function list(rows, failed) {
  const why = new Map();
  for (const row of rows) if (row.reason) why.set(row.reason, (why.get(row.reason) ?? 0) + 1);
  const lines = [...rows].reverse().map((row) => [time(row.at_ms), row.server ?? "", [row.way, row.step].filter(Boolean).join(", "), row.target,
    row.client ? h("a", { href: `#/connections/${encodeURIComponent(row.client)}${row.id ? `?id=${row.id}` : ""}` }, row.client) : "", row.found ? state(row.found) : "",
    row.error ? h("span", { class: "bad" }, `${row.reason} (${row.error})`) : "linked", number(row.answer_ms), number(row.first_ms)]);
  return panel(failed ? "Failed" : "Latest",
    why.size ? h("ul", { class: "sentences" }, [...why].sort((a, b) => b[1] - a[1]).map(([reason, count]) => h("li", {}, `${number(count)} × ${reason}`))) : h("p", { class: "hint" }, "None of these failed."),
    table(`${number(rows.length)} requests of servers, the newest first`, [{ name: "asked at", time: true, header: true }, { name: "server" }, { name: "by" }, { name: "for", wrap: true }, { name: "client" },
      { name: "found in" }, { name: "answer", wrap: true }, { name: "after ms", number: true }, { name: "first byte ms", number: true }], lines));
}
