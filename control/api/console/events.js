// SPDX-License-Identifier: Apache-2.0
// What happens, as it happens. The newest rows are in the document, and no others.

import { listen, session } from "./api.js";
import { bytes, field, h, number, panel, select, span, state, table, time } from "./dom.js";
import { ended } from "./connection.js";

const KEPT = 300;
const DRAW_MS = 300;

export async function events({ main, query, signal, title, fail }) {
  title("Events");
  const to = select("to", [["", "any"], ...["ACTIVE", "STANDBY", "IDLE", "SLEEP", "CLOSED"].map((one) => [one, one])], query.get("to") ?? "");
  const network = h("input", { name: "network", value: query.get("network") ?? "", placeholder: "10.64.0.0/10", autocomplete: "off" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const how = h("span", { class: "small", role: "status" }, "connecting …");
  const count = h("span", { class: "small" });
  const form = h("form", { class: "row panel" }, field("To state", to), field("Network", network), h("button", {}, "Follow"), pause, how, count);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = new URLSearchParams(Object.entries({ to: to.value, network: network.value.trim() }).filter(([, value]) => value));
    location.hash = `#/events?${wanted}`;
  });
  const list = table("Changes of state, the newest first", [{ name: "at", time: true, header: true }, { name: "connection" }, { name: "from" }, { name: "to" }, { name: "cause" },
    { name: "service" }, { name: "from client", number: true }, { name: "to client", number: true }, { name: "quiet before", number: true }, { name: "more", wrap: true }], []);
  main.append(form, panel("As they happen", list));
  const body = list.querySelector("tbody");
  let waiting = [], told = 0, paused = false;

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) draw();
  });

  /** So many at a time that a storm costs no more than a page of rows. */
  function draw() {
    count.textContent = `${number(told)} since you came${paused ? `; ${number(waiting.length)} wait` : ""}`;
    if (paused || !waiting.length) return;
    const rows = waiting.slice(-KEPT).reverse();
    waiting = [];
    body.prepend(...rows.map(line));
    while (body.rows.length > KEPT) body.lastElementChild.remove();
  }
  const timer = setInterval(draw, DRAW_MS);
  signal.addEventListener("abort", () => clearInterval(timer));

  const wanted = { last: 30, to: query.get("to"), network: query.get("network"), ...(session.isServer ? {} : { service: query.get("service") }) };
  listen(wanted, signal, ({ event, data }) => {
    told += 1;
    waiting.push({ event, ...JSON.parse(data) });
    if (waiting.length > KEPT) waiting.shift();
  }, (problem) => { how.textContent = problem ? `interrupted: ${problem}; trying again` : "live"; how.className = problem ? "small bad" : "small good"; })
    .catch((error) => { how.textContent = "stopped"; fail(error); });
}

function line(row) {
  const cell = (value, kind) => h("td", { class: kind ?? null }, value);
  if (row.event !== "transition") return h("tr", {}, h("td", { colspan: 10 }, `${number(row.count)} changes before ${number(row.first)} are not kept any more.`));
  return h("tr", {}, h("th", { scope: "row", class: "time" }, time(row.at_ms)),
    cell(h("a", { href: `#/connections/${encodeURIComponent(row.client)}?id=${row.id}` }, row.client)), cell(row.from === "NONE" ? "new" : state(row.from)), cell(state(row.to)), cell(row.cause), cell(row.service),
    cell(bytes(row.rx_bytes), "number"), cell(bytes(row.tx_bytes), "number"), cell(span(row.gap_ms / 1000), "number"), cell(ended(row), "break"));
}
