// SPDX-License-Identifier: Apache-2.0
// Elements and how values are written. Text of clients and operators becomes text nodes alone.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

/** An element; attributes that begin with `on` are listeners. children: elements, text, lists of them. */
export const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

/** The same in SVG. */
export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

/** A part of a page with its heading. */
export const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);

/** columns: {name, number: right-aligned, time, wrap, label: what is read instead of an empty name}. rows: cells; the
 * first one is the row's header. */
export function table(caption, columns, rows) {
  const kind = (column) => ["number", "time"].find((one) => column[one]) ?? (column.wrap ? "break" : null);
  const head = columns.map((column) =>
    h("th", { scope: "col", class: column.number ? "number" : null },
      column.name || h("span", { class: "unseen" }, column.label)));
  const body = rows.map((cells) => {
    const header = columns.findIndex((column) => column.header);
    return h("tr", {}, cells.map((cell, at) =>
      h(at === header ? "th" : "td", { class: kind(columns[at]), scope: at === header ? "row" : null }, cell ?? "")));
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

let labels = 0;

/** A control with its label. */
export function field(label, control, more = {}) {
  control.id ||= `field-${++labels}`;
  return h("div", { class: `field ${more.class ?? ""}` }, h("label", { for: control.id }, label), control,
    more.hint ? h("p", { class: "hint" }, more.hint) : null);
}

/** A checkbox with its label. */
export function check(label, control) {
  control.id ||= `field-${++labels}`;
  return h("div", { class: "check" }, control, h("label", { for: control.id }, label));
}

/** options: [value, text]. */
export const select = (name, options, value) =>
  h("select", { name }, options.map(([one, text]) => h("option", { value: one, selected: String(one) === String(value) }, text)));

export const state = (name) => h("span", { class: `state ${name}` }, name);

/** Asks before something that cannot be taken back; whether it is wanted. */
export function confirmed(question, detail, verb) {
  return new Promise((resolve) => {
    const end = (answer) => () => { dialog.close(); resolve(answer); };
    const dialog = h("dialog", { "aria-labelledby": "question", oncancel: () => resolve(false), onclose: () => dialog.remove() },
      h("h2", { id: "question" }, question), h("p", {}, detail),
      h("div", { class: "row" },
        h("button", { type: "button", autofocus: true, onclick: end(false) }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: end(true) }, verb)));
    document.body.append(dialog);
    dialog.showModal();
  });
}

// -- values ------------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const number = (value) => (value == null ? "" : whole.format(value));

const two = (value) => String(value).padStart(2, "0");

/** Local time; with the day where it is not today's. */
export function time(ms) {
  const at = new Date(ms);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return at.toDateString() === new Date().toDateString() ? clock : `${day} ${clock}`;
}

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** Seconds in the two largest units that matter: 2h 5m. */
export function span(seconds) {
  if (seconds == null) return "";
  if (seconds < 10) return `${Math.round(seconds * 10) / 10}s`;
  let left = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of UNITS) {
    if (left >= size || parts.length) parts.push([Math.floor(left / size), unit]);
    left %= size;
  }
  return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => `${count}${unit}`).join(" ");
}

/** 61.2 MB */
export function bytes(count) {
  const at = Math.min(Math.max(Math.floor(Math.log10(Math.max(count, 1)) / 3), 0), 4);
  const value = count / 1000 ** at;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][at]}`;
}

const DURATION = /_(quiet|interval|silence|timeout|wait|retry)$/;

/** A value of the policy, as it may be written in a rule: the API tells durations in seconds, 0 is never. */
export function policyValue(key, value) {
  if (Array.isArray(value)) return value.join(",") || "none";
  if (typeof value !== "number" || !DURATION.test(key)) return String(value);
  if (!value) return "never";
  let text = "", left = value;
  for (const [unit, size] of UNITS.slice(0, 3)) {
    if (left >= size) text += `${Math.floor(left / size)}${unit}`;
    left %= size;
  }
  return text + (left ? `${Math.round(left * 1000) / 1000}s` : "");
}
