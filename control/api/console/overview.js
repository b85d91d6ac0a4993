// SPDX-License-Identifier: Apache-2.0
// How the appliance stands: states, wake-ups, memory, pressure, and what to look at.

import { api, target } from "./api.js";
import { curves } from "./charts.js";
import { bytes, field, h, number, pairs, panel, select, span, table, update } from "./dom.js";

const STATES = {
  ACTIVE: "a socket, linked to a server", STANDBY: "a socket without a server",
  IDLE: "no socket; the record in memory", SLEEP: "no socket; the record in the database",
};
const AWAKE = ["ACTIVE", "STANDBY"];
const ASLEEP = ["IDLE", "SLEEP"];
const WOKEN = {
  "client-data": "the client spoke", "server-attach": "a server asked", "server-data": "its server spoke",
  command: "a command",
};
const SHORT = {
  memory: "memory", descriptors: "descriptors", memory_stall: "stalls for memory",
  cpu_stall: "stalls for the processor",
};
const PERIODS = [[60, "last hour"], [360, "last 6 hours"], [1440, "last day"]];
const SOCKET_BYTES = 3584; // of a kernel socket at rest: docs/performance.md
const LATEST = 1000;

export async function overview({ main, signal, every, title, fail }) {
  title("Overview");
  const now = h("div", { class: "stack" }), charts = h("div", { class: "stack" });
  const waking = h("div"), services = h("div");
  const minutes = select("minutes", PERIODS, 60);
  const service = select("service", [["", "all services"]], "");
  const bar = h("div", { class: "between panel" }, h("h2", {}, "Over time"),
    h("div", { class: "row" }, field("Period", minutes), field("Service", service)));
  main.append(now, bar, charts, waking, services);

  let rows = [];
  const draw = () => charts.replaceChildren(...drawn(rows, service.value));
  const past = async () => {
    rows = await api.get("/v1/snapshots", { limit: minutes.value }, signal);
    draw();
  };
  const present = async () => {
    const status = await api.get("/v1/status", {}, signal);
    if (service.options.length === 1) {
      service.append(...status.services.map(({ name }) => h("option", { value: name }, name)));
    }
    update(now, standing(status));
    update(services, servers(status.services));
  };
  const latency = async () => update(waking, latencies(await api.get("/v1/attaches", { limit: LATEST }, signal)));
  minutes.addEventListener("change", () => past().catch(fail));
  service.addEventListener("change", draw);
  every(5, present);
  every(60, latency);
  every(60, async () => { if (!charts.querySelector("details[open]")) await past(); }); // nobody reads their figures
  await Promise.all([present(), past(), latency()]);
}

function standing(status) {
  const { connections, memory, pressure, store } = status;
  const asleep = connections.IDLE + connections.SLEEP;
  const ours = memory.maps_bytes + memory.daemon_rss_bytes, sockets = asleep * SOCKET_BYTES;
  const all = Object.values(connections).reduce((sum, count) => sum + count, 0);
  const reached = Object.entries(pressure.reached).map(([key, share]) => `${key} ${share} %`).join(", ");
  const tiles = Object.entries(STATES).map(([name, means]) => h("section", { class: "panel" },
    h("h2", { class: `state ${name}` }, h("a", { href: `#/connections?state=${name}` }, name)),
    h("p", { class: "big" }, number(connections[name])), h("p", { class: "small" }, means)));
  return [
    h("p", { class: "lead" }, `${status.instance}: ${number(all)} connections, ${number(status.awake)} of at most `,
      `${number(status.max_awake)} awake. Roost ${status.version}, up ${span(status.uptime_s)}.`),
    watch(status.attention),
    h("div", { class: "grid four" }, tiles),
    h("div", { class: "grid" },
      panel("Memory beside kernel sockets",
        pairs([["Roost, all of it", bytes(ours)],
          ["as kernel sockets", `${bytes(sockets)} (${number(asleep)} inactive × 3.6 kB)`]]),
        h("p", { class: "small" }, sockets > ours ? `Sockets would take ${(sockets / ours).toFixed(1)} times as much.`
          : "Roost's tables are made for more connections: these few would take less as sockets.")),
      panel("Pressure",
        pairs([["reached now", reached || "nothing"],
          ["sent down a step", `${number(pressure.asked.awake)} awake, ${number(pressure.asked.idle)} in IDLE`]]),
        h("p", { class: "small" }, "By the monitor, since the daemon began.")),
      panel("Database",
        pairs([["state", h("span", { class: store.state === "ok" ? "good" : "bad" }, store.state)],
          ["waiting", `${number(store.pending_sleep)} to sleep, ${number(store.pending_history)} rows of history`],
          ["last commit", `${store.last_commit_ms.toFixed(1)} ms`]]))),
  ];
}

function servers(services) {
  const line = (service, row) => [
    h("a", { href: target("#/connections", { service: service.name }) }, service.name),
    service.listen, row.server ?? service.server,
    h("span", { class: row.state === "down" ? "bad" : null }, row.state ?? "", row.reason ? `: ${row.reason}` : ""),
    number(row.links), number(row.failed)];
  const lines = services.flatMap((one) => (one.servers.length ? one.servers : [{}]).map((row) => line(one, row)));
  return panel("Services", table("Services and their servers",
    "*service | listens at | server | state | links:number | failed:number", lines, { spoken: true }));
}

function watch(attention) {
  if (!attention.length) return h("section", { class: "panel good" }, "Nothing needs attention.");
  return h("section", { class: "panel attention" }, h("h2", {}, "Needs attention"),
    h("ul", { class: "sentences" }, attention.map((one) =>
      h("li", {}, h("strong", {}, one.object), `: ${one.what}. `, `What to do: ${one.do}.`))));
}

/** By moment: its time, the minutes before it, and the sums of what was counted: of a service or of all, of the
 * appliance, and of transitions: their states, cause and number. */
function moments(rows, service) {
  const found = new Map();
  for (const row of rows) {
    const moment = found.get(row.at_ms) ?? { at: row.at_ms, minutes: row.span_ms / 60_000, of: {}, whole: {} };
    found.set(row.at_ms, moment);
    const into = row.service === null ? moment.whole : moment.of;
    if (row.service !== null && service && row.service !== service) continue;
    for (const [name, count] of Object.entries(row.counts)) into[name] = (into[name] ?? 0) + count;
  }
  for (const moment of found.values()) {
    moment.moves = Object.entries(moment.of).map(([name, count]) => [...name.split(" "), count])
      .filter(([from, , , count]) => from in STATES && count !== undefined);
  }
  return [...found.values()];
}

function drawn(rows, service) {
  const all = moments(rows, service), times = all.map((one) => one.at);
  /** Those whose states and cause are wanted, a minute. */
  const rate = (wanted) => all.map(({ moves, minutes }) => moves.reduce((sum, [from, to, cause, count]) =>
    (wanted(from, to, cause) ? sum + count : sum), 0) / Math.max(minutes, 1 / 60));
  const inState = ({ of }, name) => (of[name] ?? 0) + (name === "IDLE" ? of.born ?? 0 : 0);
  const states = Object.keys(STATES).map((name) =>
    curves(name, times, [{ name, colour: name, values: all.map((one) => inState(one, name)) }], number));
  const wakes = Object.entries(WOKEN).map(([wanted, name], at) => ({ name, colour: at + 1,
    values: rate((from, to, cause) => cause === wanted && ASLEEP.includes(from) && AWAKE.includes(to)) }));
  const down = { name: "connections", colour: 2, values: rate((_from, _to, cause) => cause === "pressure") };
  const parts = [h("div", { class: "grid four loose" }, states), h("div", { class: "grid loose" },
    curves("Wake-ups a minute", times, wakes.filter((one) => one.values.some(Boolean)), number),
    curves("Sent down by pressure, a minute", times, [down], number))];
  if (service) return parts; // all else is of the whole appliance
  const asleep = all.map((one) => inState(one, "IDLE") + inState(one, "SLEEP"));
  const ours = all.map(({ whole }) => (whole.maps_bytes ?? 0) + (whole.rss_bytes ?? 0));
  const memory = [{ name: "Roost, all of it", colour: 1, values: ours },
    { name: "as kernel sockets", colour: 5, values: asleep.map((count) => count * SOCKET_BYTES) }];
  const short = Object.entries(SHORT).map(([key, name], at) =>
    ({ name, colour: at + 1, values: all.map(({ whole }) => (whole[`${key}_permille`] ?? 0) / 10) }));
  const percent = (value) => `${Math.round(value * 10) / 10} %`;
  const whole = [curves("Memory", times, memory, bytes), curves("Pressure", times, short, percent)];
  return [...parts, h("div", { class: "grid loose" }, whole)];
}

/** The value below which a share of them are. */
const quantile = (sorted, share) => number(sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)]);

function latencies(rows) {
  const of = (state, key) =>
    rows.filter((row) => row.found === state && row[key] !== null).map((row) => row[key]).sort((a, b) => a - b);
  const lines = ["STANDBY", "IDLE", "SLEEP"].map((state) => {
    const answers = of(state, "answer_ms"), firsts = of(state, "first_ms");
    return [state, number(answers.length), quantile(answers, 0.5), quantile(answers, 0.99), quantile(firsts, 0.5),
      quantile(firsts, 0.99)];
  });
  const failed = rows.filter((row) => row.error).length;
  return panel("Latency of wake-ups",
    table(`ms from a server's request to its link, and to the client's first byte; the last ${number(rows.length)}`,
      "*the client was in | requests:number | linked, p50:number | p99:number | first byte, p50:number | p99:number",
      lines),
    h("p", { class: "small" }, h("a", { href: "#/attaches?failed=1" }, `${number(failed)} failed`),
      ". What a client waits for that speaks by itself is not measured one by one: ",
      h("code", {}, "roost bench wake"), " does."));
}
