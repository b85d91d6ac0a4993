// SPDX-License-Identifier: Apache-2.0
// The servers that asked for a client: in which state it was found, how long it took, why not.

import { api } from "./api.js";
import { check, clientLink, field, h, number, panel, select, state, table, time, update } from "./dom.js";

const HEADS = ["*asked at:time", "server", "by", "for", "client", "found in", "answer", "after ms:number",
  "first byte ms:number"].join(" | ");

export async function attaches({ main, query, signal, every, title, fail }) {
  title("Attaches");
  const failed = h("input", { type: "checkbox", name: "failed", checked: query.has("failed") });
  const limit = select("limit", [[100, "100"], [500, "500"], [1000, "1,000"]], 100);
  const rows = h("div", { class: "stack" });
  const load = async () => {
    update(rows, list(await api.get("/v1/attaches", { limit: limit.value, failed: failed.checked }, signal)));
  };
  for (const control of [failed, limit]) control.addEventListener("change", () => load().catch(fail));
  main.append(h("p", { class: "lead" }, "Servers that asked for a client, by the proxy or by its address."),
    h("div", { class: "row panel" }, field("Latest", limit), check("only those that failed", failed)), rows);
  await load();
  every(10, load);
}

function list(rows) {
  const why = new Map();
  for (const { reason } of rows) if (reason) why.set(reason, (why.get(reason) ?? 0) + 1);
  const often = [...why].sort((a, b) => b[1] - a[1]);
  const reasons = often.map(([reason, count]) => h("li", {}, `${number(count)} × ${reason}`));
  const lines = [...rows].reverse().map((row) => [
    time(row.at_ms), row.server, [row.way, row.step].filter(Boolean).join(", "), row.target,
    row.client && clientLink(row), row.found && state(row.found),
    row.error ? h("span", { class: "bad" }, `${row.reason} (${row.error})`) : "linked",
    number(row.answer_ms), number(row.first_ms)]);
  return [
    panel("Why some failed", reasons.length ? h("ul", { class: "sentences" }, reasons) : "None of these failed."),
    panel("Requests", table(`${number(rows.length)} requests of servers, the newest first`, HEADS, lines)),
  ];
}
