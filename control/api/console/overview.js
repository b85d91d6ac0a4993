// SPDX-License-Identifier: Apache-2.0
// How the appliance stands: states, wake-ups, memory, pressure, and what to look at.

import { api } from "./api.js";
import { curves } from "./charts.js";
import { bytes, field, h, number, panel, select, span, table } from "./dom.js";

const STATES = ["ACTIVE", "STANDBY", "IDLE", "SLEEP"];
const AWAKE = ["ACTIVE", "STANDBY"];
const ASLEEP = ["IDLE", "SLEEP"];
const WHO = { "client-data": "the client spoke", "server-attach": "a server asked", "server-data": "its server spoke", command: "a command" };
const SOCKET_BYTES = 3584; // of a kernel socket at rest: docs/performance.md
const LATEST = 1000;

const MEANS = {
  ACTIVE: "a socket, linked to a server", STANDBY: "a socket without a server",
  IDLE: "no socket; the record in memory", SLEEP: "no socket; the record in the database",
};

export async function overview({ main, query, signal, every, title, fail }) {
  title("Overview");
  const now = h("div"), charts = h("div"), waking = h("div");
  const minutes = select("minutes", [[60, "last hour"], [360, "last 6 hours"], [1440, "last day"]], query.get("minutes") ?? 60);
  const service = select("service", [["", "all services"]], "");
  main.append(now,
    h("div", { class: "between panel" }, h("h2", {}, "Over time"), h("div", { class: "row" }, field("Period", minutes), field("Service", service))),
    charts, waking);

  let rows = [];
  const draw = () => charts.replaceChildren(...drawn(rows, service.value));
  const past = async () => {
    rows = await api.get("/v1/snapshots", { limit: minutes.value }, signal);
    draw();
  };
  const present = async () => {
    const status = await api.get("/v1/status", {}, signal);
    if (service.options.length === 1) service.append(...status.services.map(({ name }) => h("option", { value: name }, name)));
    now.replaceChildren(...standing(status));
  };
  const latency = async () => waking.replaceChildren(latencies(await api.get("/v1/attaches", { limit: LATEST }, signal)));
  minutes.addEventListener("change", () => past().catch(fail));
  service.addEventListener("change", draw);
  every(5, present);
  every(60, past);
  every(60, latency);
  await Promise.all([present(), past(), latency()]);
}

function standing(status) {
  const { connections, memory, attention, pressure } = status;
  const asleep = connections.IDLE + connections.SLEEP;
  const ours = memory.maps_bytes + memory.daemon_rss_bytes, sockets = asleep * SOCKET_BYTES;
  const tiles = STATES.map((name) => h("section", { class: "panel" },
    h("h2", { class: `state ${name}` }, h("a", { href: `#/connections?state=${name}` }, name)),
    h("p", { class: "big" }, number(connections[name])), h("p", { class: "small" }, MEANS[name])));
  return [
    h("p", { class: "lead" }, `${status.instance}: ${number(STATES.reduce((sum, one) => sum + connections[one], 0))} connections, `,
      `${number(status.awake)} of at most ${number(status.max_awake)} awake. Roost ${status.version}, up ${span(status.uptime_s)}.`),
    watch(attention),
    h("div", { class: "grid four" }, tiles),
    h("div", { class: "grid" },
      panel("Memory beside kernel sockets",
        h("dl", {}, ...pair("Roost, all of it", bytes(ours)), ...pair("as kernel sockets", `${bytes(sockets)} (${number(asleep)} × 3.6 kB)`)),
        h("p", { class: "small" }, asleep && sockets > ours ? `${(sockets / ours).toFixed(1)} times less than sockets would take.`
          : "The tables are made for more connections than these: with few, sockets would take less.")),
      panel("Pressure",
        h("dl", {}, ...pair("reached now", Object.entries(pressure.reached).map(([key, share]) => `${key} ${share} %`).join(", ") || "nothing"),
          ...pair("sent down a step", `${number(pressure.asked.awake)} that were awake, ${number(pressure.asked.idle)} in IDLE`)),
        h("p", { class: "small" }, "by the monitor, since the daemon began")),
      panel("Database",
        h("dl", {}, ...pair("state", h("span", { class: status.store.state === "ok" ? "good" : "bad" }, status.store.state)),
          ...pair("waiting", `${number(status.store.pending_sleep)} to sleep, ${number(status.store.pending_history)} rows of history`),
          ...pair("last commit", `${status.store.last_commit_ms.toFixed(1)} ms`)))),
    panel("Services", table("Services and their servers",
      [{ name: "service", header: true }, { name: "listens at" }, { name: "server" }, { name: "state" }, { name: "links", number: true }, { name: "failed", number: true }],
      status.services.flatMap((one) => (one.servers.length ? one.servers : [{}]).map((row) => [
        h("a", { href: `#/connections?service=${encodeURIComponent(one.name)}` }, one.name), one.listen, row.server ?? one.server,
        h("span", { class: row.state === "down" ? "bad" : null }, row.state ?? "", row.reason ? `: ${row.reason}` : ""), number(row.links), number(row.failed)])))),
  ];
}

const pair = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

function watch(attention) {
  if (!attention.length) return h("p", { class: "panel good" }, "Nothing needs attention.");
  return h("section", { class: "panel attention" }, h("h2", {}, "Needs attention"),
    h("ul", {}, attention.map((one) => h("li", {}, h("strong", {}, one.object), `: ${one.what}. `, h("span", {}, `What to do: ${one.do}.`)))));
}

/** By moment: its time, the minutes before it, and the sums of what was counted, of a service or of all. */
function moments(rows, service) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.at_ms)) found.set(row.at_ms, { at: row.at_ms, minutes: row.span_ms / 60_000, of: {}, whole: {} });
    const moment = found.get(row.at_ms);
    const into = row.service === null ? moment.whole : service && row.service !== service ? null : moment.of;
    if (into) for (const [name, count] of Object.entries(row.counts)) into[name] = (into[name] ?? 0) + count;
  }
  return [...found.values()];
}

function drawn(rows, service) {
  const all = moments(rows, service), times = all.map((one) => one.at);
  const each = (read) => all.map(read);
  /** A minute, of transitions by their states and cause. */
  const rate = (wanted) => each(({ of, minutes }) => Object.entries(of).reduce((sum, [name, count]) => {
    const [from, to, cause] = name.split(" ");
    return cause && wanted(from, to, cause) ? sum + count : sum;
  }, 0) / Math.max(minutes, 1 / 60));
  const permille = (name) => each(({ whole }) => (whole[name] ?? 0) / 10);
  const percent = (value) => `${Math.round(value * 10) / 10} %`;
  const states = STATES.map((name) =>
    curves(name, times, [{ name, colour: name, values: each(({ of }) => (of[name] ?? 0) + (name === "IDLE" ? of.born ?? 0 : 0)) }], number));
  const wakes = Object.entries(WHO).map(([cause, name], at) =>
    ({ name, colour: at + 1, values: rate((from, to, why) => why === cause && ASLEEP.includes(from) && AWAKE.includes(to)) }));
  const asleep = each(({ of }) => ASLEEP.reduce((sum, one) => sum + (of[one] ?? 0), of.born ?? 0));
  const parts = [h("div", { class: "grid" }, states), h("div", { class: "grid" },
    curves("Wake-ups a minute", times, wakes.filter((one) => one.values.some(Boolean)), number),
    curves("Sent down by pressure, a minute", times, [{ name: "connections", colour: 2, values: rate((_from, _to, why) => why === "pressure") }], number))];
  if (!service) { // what is of the whole appliance
    parts.push(h("div", { class: "grid" },
      curves("Memory", times, [
        { name: "Roost, all of it", colour: 1, values: each(({ whole }) => (whole.maps_bytes ?? 0) + (whole.rss_bytes ?? 0)) },
        { name: "as kernel sockets", colour: 5, values: asleep.map((count) => count * SOCKET_BYTES) }], bytes),
      curves("Pressure", times, [["memory", "memory"], ["descriptors", "descriptors"], ["memory_stall", "stalls for memory"], ["cpu_stall", "stalls for the processor"]]
        .map(([key, name], at) => ({ name, colour: at + 1, values: permille(`${key}_permille`) })), percent)));
  }
  return parts;
}

/** The value below which a share of them are. */
const quantile = (sorted, share) => sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)];

function latencies(rows) {
  const of = (state, key) => rows.filter((row) => row.found === state && row[key] !== null).map((row) => row[key]).sort((a, b) => a - b);
  const ms = (sorted, share) => (sorted.length ? number(quantile(sorted, share)) : "");
  const lines = ["STANDBY", "IDLE", "SLEEP"].map((state) => {
    const answers = of(state, "answer_ms"), firsts = of(state, "first_ms");
    return [state, number(answers.length), ms(answers, 0.5), ms(answers, 0.99), ms(firsts, 0.5), ms(firsts, 0.99)];
  });
  const failed = rows.filter((row) => row.error).length;
  return panel("Latency of wake-ups",
    table(`From a server's request until it was linked, and until the client's first byte, in ms: the last ${number(rows.length)} requests`,
      [{ name: "client was in", header: true }, ...["requests", "linked, p50", "linked, p99", "first byte, p50", "first byte, p99"].map((name) => ({ name, number: true }))], lines),
    h("p", { class: "small" }, h("a", { href: "#/attaches?failed=1" }, `${number(failed)} failed`),
      ". What a client that speaks by itself waits for is not measured one by one: ", h("code", {}, "roost bench wake"), " measures it."));
}
