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

/** Names and values. */
export const pairs = (all) => h("dl", {}, all.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** A part of a page with its heading. */
export const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);

/** heads: the names of the columns, `a | *b | c:number | (d)`; *: it is the row's header; a kind: number, time, break;
 * in brackets: read aloud alone. rows: lists of cells. spoken: the caption is read aloud alone. */
export function table(caption, heads, rows, { spoken = false } = {}) {
  const columns = heads.split(" | ").map((text) => {
    const [, star, open, name, kind] = /^(\*?)(\(?)(.*?)\)?(?::(number|time|break))?$/.exec(text);
    return { header: star !== "", unseen: open !== "", name, kind };
  });
  const head = columns.map(({ name, kind, unseen }) =>
    h("th", { scope: "col", class: kind }, unseen ? h("span", { class: "unseen" }, name) : name));
  const body = rows.map((cells) => h("tr", {}, columns.map(({ header, kind }, at) =>
    h(header ? "th" : "td", { class: kind, scope: header ? "row" : null }, cells[at] || ""))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: spoken ? "unseen" : null }, caption),
      h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Lets a place have these children. Elements that are there already stay, with their focus and what is selected in
 * them, and become alike: so none may have a listener. */
export function update(place, ...children) {
  const fresh = place.cloneNode(false);
  filled(fresh, {}, children);
  merge(place, fresh);
}

function merge(old, fresh) {
  const wanted = [...fresh.childNodes];
  wanted.forEach((child, at) => {
    const there = old.childNodes[at];
    if (!there) old.append(child);
    else if (there.nodeName !== child.nodeName) there.replaceWith(child);
    else if (child.nodeType === Node.TEXT_NODE) {
      if (there.data !== child.data) there.data = child.data;
    } else {
      for (const { name } of [...there.attributes]) if (!child.hasAttribute(name)) there.removeAttribute(name);
      for (const { name, value } of child.attributes) there.setAttribute(name, value);
      merge(there, child);
    }
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
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
export const select = (name, options, value) => h("select", { name }, options.map(([one, text]) =>
  h("option", { value: one, selected: String(one) === String(value) }, text)));

export const state = (name) => (name === "NONE" ? "new" : h("span", { class: `state ${name}` }, name));

/** A row's connection. By the client's address and port, which are found at once among millions, and the number, by
 * which it is known whether another has them since. */
export const clientLink = (row, text = row.client) =>
  h("a", { href: `#/connections/${encodeURIComponent(row.client)}${row.id ? `?id=${row.id}` : ""}` }, text);

/** Of a change of state: which server it had, by which error it ended, how long the client had been silent. */
export const ended = (row) => [row.server, row.error, row.probes && `${row.probes} probes without an answer`,
  row.silence_s && `silent for ${span(row.silence_s)}`].filter(Boolean).join(", ");

/** Asks before something that cannot be taken back; whether it is wanted. */
export function confirmed(question, detail, verb) {
  return new Promise((resolve) => {
    const end = (answer) => () => { dialog.close(); resolve(answer); };
    const gone = () => dialog.remove();
    const no = () => resolve(false);
    const dialog = h("dialog", { "aria-labelledby": "question", oncancel: no, onclose: gone },
      h("h2", { id: "question" }, question), h("p", {}, detail),
      h("div", { class: "row" },
        h("button", { type: "button", autofocus: true, onclick: end(false) }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: end(true) }, verb)));
    document.body.append(dialog);
    dialog.showModal();
  });
}

// -- values -----------------------------------------------------------------------------------------------------------

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
