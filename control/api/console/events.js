// SPDX-License-Identifier: Apache-2.0
// What happens, as it happens. The newest rows are in the document, and no others.

import { listen, target } from "./api.js";
import { bytes, clientLink, ended, field, h, number, panel, select, span, state, table, time } from "./dom.js";

const KEPT = 150;
const DRAW_MS = 500;
const STATES = ["ACTIVE", "STANDBY", "IDLE", "SLEEP", "CLOSED"];
const HEADS = ["*at:time", "client", "from", "to", "cause", "service", "from client:number", "to client:number",
  "quiet before:number", "more:break"].join(" | ");

export async function events({ main, query, signal, title, fail }) {
  title("Events");
  const value = (name) => query.get(name) ?? "";
  const to = select("to", [["", "any"], ...STATES.map((one) => [one, one])], value("to"));
  const network = h("input", { name: "network", value: value("network"), placeholder: "10.64.0.0/10",
    autocomplete: "off" });
  const pause = h("button", { type: "button" }, "Pause");
  const how = h("span", { class: "small", role: "status" }, "connecting …");
  const count = h("span", { class: "small" });
  const follow = (event) => {
    event.preventDefault();
    location.hash = target("#/events", { to: to.value, network: network.value.trim() });
  };
  const list = table("The newest first", HEADS, [], { spoken: true }), body = list.querySelector("tbody");
  main.append(
    h("form", { class: "row panel", onsubmit: follow }, field("To state", to), field("Network", network),
      h("button", {}, "Follow"), pause, how, count),
    panel("Changes of state", list));
  let waiting = [], told = 0, paused = false;

  /** A page of rows at most, however many have come. */
  function draw() {
    count.textContent = `${number(told)} so far${paused ? `; ${number(waiting.length)} wait` : ""}`;
    if (paused || !waiting.length) return;
    body.prepend(...table("", HEADS, waiting.reverse().map(line)).querySelectorAll("tbody > tr"));
    waiting = [];
    while (body.rows.length > KEPT) body.lastElementChild.remove();
  }
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    draw();
  });
  const timer = setInterval(draw, DRAW_MS);
  signal.addEventListener("abort", () => clearInterval(timer));

  const wanted = { last: 30, to: value("to"), network: value("network") };
  listen(wanted, signal, ({ event, data }) => {
    told += 1;
    waiting.push({ event, ...JSON.parse(data) });
    if (waiting.length > KEPT) waiting.shift();
  }, (problem) => {
    how.textContent = problem ? `interrupted: ${problem}; trying again` : "live";
    how.className = problem ? "small bad" : "small good";
  }).catch((error) => { how.textContent = "stopped"; fail(error); });
}

function line(row) {
  if (row.event === "reset") return ["", "some may be missing here: the database is an earlier one"];
  if (row.event !== "transition") return ["", `${number(row.count)} before number ${row.first} are not kept any more`];
  return [time(row.at_ms), clientLink(row), state(row.from), state(row.to), row.cause, row.service,
    bytes(row.rx_bytes), bytes(row.tx_bytes), span(row.gap_ms / 1000), ended(row)];
}
