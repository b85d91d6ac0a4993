// SPDX-License-Identifier: Apache-2.0
// Charts: curves over time with their figures as a table, and a strip of states.

import { h, svg, table, time } from "./dom.js";

const ROWS = 24; // of the table beside a chart, evenly taken

/** Round and not below the largest value: 1, 2 or 5 times a power of ten. */
function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

/** times: ms, ascending. series: {name, colour: of the classes c-..., values}. write: a value as text. */
export function curves(title, times, series, write, note) {
  const shown = series.filter((one) => one.values.some(Number.isFinite));
  const output = h("output", {}, note ?? "");
  const caption = h("figcaption", {}, h("h2", {}, title), output);
  if (times.length < 2 || !shown.length) {
    return h("figure", { class: "panel" }, caption,
      h("p", { class: "hint" }, "Not enough yet: the daemon takes a snapshot each minute."));
  }
  const most = nice(Math.max(...shown.flatMap((one) => one.values.filter(Number.isFinite))));
  const first = times[0], length = times.at(-1) - first;
  const x = (at) => ((times[at] - first) / length * 1000).toFixed(1);
  const y = (value) => (100 - value / most * 98).toFixed(2);
  const paths = shown.map((one) => {
    const points = one.values.map((value, at) => `${x(at)},${y(value || 0)}`).join(" L");
    const area = shown.length === 1 ? svg("path", { class: "area", d: `M0,100 L${points} L1000,100 Z` }) : null;
    return svg("g", { class: `c-${one.colour}` }, area ?? [], svg("path", { class: "curve", d: `M${points}` }));
  });
  const cursor = svg("line", { class: "cursor", y1: 0, y2: 100, visibility: "hidden" });
  const box = { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" };
  const drawing = svg("svg", box, paths, cursor);
  const told = (one, at) => `${shown.length > 1 ? `${one.name} ` : ""}${write(one.values[at] || 0)}`;
  drawing.addEventListener("pointermove", (event) => {
    const { left, width } = drawing.getBoundingClientRect();
    const moment = first + (event.clientX - left) / width * length;
    let at = times.findIndex((one) => one >= moment);
    if (at < 0) at = times.length - 1;
    if (at > 0 && moment - times[at - 1] < times[at] - moment) at -= 1;
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
    cursor.setAttribute("visibility", "visible");
    output.textContent = `${time(times[at])}: ${shown.map((one) => told(one, at)).join(", ")}`;
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    output.textContent = note ?? "";
  });
  const step = Math.max(Math.ceil(times.length / ROWS), 1);
  const taken = times.map((_, at) => at).filter((at) => (times.length - 1 - at) % step === 0).reverse();
  const figures = h("details", {}, h("summary", {}, "As a table"));
  figures.addEventListener("toggle", () => { // made when somebody wants it
    if (figures.open && figures.children.length === 1) {
      const heads = ["*at:time", ...shown.map((one) => `${one.name}:number`)].join(" | ");
      const lines = taken.map((at) => [time(times[at]), ...shown.map((one) => write(one.values[at] || 0))]);
      figures.append(table(title, heads, lines, { spoken: true }));
    }
  });
  const legend = shown.map((one) => h("li", { class: `c-${one.colour}` }, one.name));
  return h("figure", { class: "panel" }, caption, shown.length > 1 ? h("ul", { class: "legend" }, legend) : null,
    h("div", { class: "plot" }, drawing, h("span", { class: "most", "aria-hidden": "true" }, write(most))),
    axis(time(first), time(times.at(-1))), figures);
}

const axis = (first, last) =>
  h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, first), h("span", {}, last));

/** Which state a connection was in. rows: transitions, oldest first; state: now. */
export function strip(rows, state, now) {
  if (!rows.length) return null;
  const first = rows[0].at_ms, length = Math.max(now - first, 1);
  const parts = rows.map((row, at) => {
    const from = row.at_ms - first, until = (rows[at + 1]?.at_ms ?? now) - first;
    const width = Math.max((until - from) / length * 1000, 1.5);
    return svg("rect", { class: `c-${row.to}`, x: from / length * 1000, width, height: 10 },
      svg("title", {}, `${row.to} from ${time(row.at_ms)}`));
  });
  const said = `States since ${time(first)}; now ${state}. The table has each change.`;
  const box = { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": said };
  return h("div", { class: "strip" }, svg("svg", box, parts), axis(time(first), "now"));
}
