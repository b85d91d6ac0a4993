// SPDX-License-Identifier: Apache-2.0
// The page around the pages: log-in, navigation by the part of the address behind #, and what is said of errors.

import { ApiError, session } from "./api.js";
import { h } from "./dom.js";
import { attaches } from "./attaches.js";
import { audit, tokens } from "./admin.js";
import { connection } from "./connection.js";
import { connections } from "./connections.js";
import { events } from "./events.js";
import { overview } from "./overview.js";
import { policy } from "./policy.js";

// path: its first segment. least: who may; "any": servers' tokens, too.
const PAGES = [
  { path: "", title: "Overview", least: "viewer", show: overview },
  { path: "connections", title: "Connections", least: "any", show: connections, one: connection },
  { path: "policy", title: "Policy", least: "viewer", show: policy },
  { path: "attaches", title: "Attaches", least: "viewer", show: attaches },
  { path: "events", title: "Events", least: "any", show: events },
  { path: "audit", title: "Audit", least: "admin", show: audit },
  { path: "tokens", title: "Tokens", least: "admin", show: tokens },
];

const find = (id) => document.getElementById(id);
const main = find("main");
let leaving = new AbortController();

const allowed = (page) => page.least === "any" || session.may(page.least);

function said(place, text) {
  if (text && place.querySelector("span")?.textContent === text) return; // it is not to be read aloud again
  const close = () => place.replaceChildren();
  const dismiss = h("button", { type: "button", class: "slim", "aria-label": "Dismiss", onclick: close }, "×");
  place.replaceChildren(...(text ? [h("p", {}, h("span", {}, text), dismiss)] : []));
}

/** What went wrong, in a sentence; and what was done. */
const fail = (error) => {
  if (error.name === "AbortError" || (error.status === 401 && !session.me)) return;
  if (!(error instanceof ApiError)) console.error(error);
  said(find("problem"), error.message);
};
const say = (text) => { said(find("problem"), ""); said(find("notice"), text); };

/** Where the page is: #/connections/7?find=x. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const text = /%(?![0-9a-f]{2})/i.test(path) ? path : decodeURIComponent(path);
  const [first, ...rest] = text.split("/");
  return { first, rest: rest.join("/"), query: new URLSearchParams(query) };
}

/** What each page is shown with. signal: it is left. every: again, while somebody looks. */
function context(here) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const every = (seconds, work) => {
    let failed = false;
    const again = async () => {
      if (document.hidden) return;
      try {
        await work();
        if (failed) said(find("problem"), "");
        failed = false;
      } catch (error) {
        failed = true;
        fail(error);
      }
    };
    const timer = setInterval(again, seconds * 1000);
    signal.addEventListener("abort", () => clearInterval(timer));
  };
  /** A listener for what is pressed: once more does nothing until it is done. */
  const doing = (work) => async (event) => {
    event.preventDefault();
    const control = event.submitter ?? event.currentTarget;
    if (control.ariaBusy) return;
    control.ariaBusy = "true"; // disabled, it would lose the focus
    try {
      await work(event);
    } catch (error) {
      fail(error);
    } finally {
      control.ariaBusy = null;
      if (document.activeElement === document.body) main.focus({ preventScroll: true }); // what had it is gone
    }
  };
  const title = (text) => { document.title = `${text} – Roost`; };
  return { ...here, main, signal, every, doing, title, say, fail };
}

let shown = "";

async function show() {
  if (!session.me) return;
  const here = place();
  const page = PAGES.find((one) => one.path === here.first);
  if (session.isServer && here.first === "") {
    location.replace("#/connections"); // there is no overview of a service's
    return;
  }
  const whole = here.first + here.rest;
  const moved = whole !== shown;
  shown = whole;
  for (const link of find("pages").querySelectorAll("a")) {
    if (link.dataset.path === here.first) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  said(find("problem"), "");
  if (moved) said(find("notice"), "");
  const look = context(here);
  const title = h("h1", { tabindex: -1 }, page?.title ?? "There is no such page");
  look.title(title.textContent);
  look.heading = title;
  main.replaceChildren(title);
  try {
    if (page && allowed(page)) await (here.rest && page.one ? page.one : page.show)(look);
    else if (page) {
      main.append(h("p", { class: "lead" }, `It is for the role ${page.least}; yours is ${session.me.role}.`));
    }
    if (moved) {
      title.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  } catch (error) {
    fail(error);
  }
}

function pages() {
  find("pages").replaceChildren(...PAGES.filter(allowed).map((page) =>
    h("li", {}, h("a", { href: `#/${page.path}`, "data-path": page.path }, page.title))));
  const { name, role, services, expires_at_ms: expires } = session.me;
  const until = expires === null ? "it does not expire" : `good until ${new Date(expires).toLocaleString()}`;
  const of = services ? `; services: ${services.join(", ")}` : "";
  find("who").replaceChildren(h("span", { title: `${name}, ${role}: ${until}${of}` }, `${role} ${name}`));
  find("top").hidden = false;
}

function login(why = "") {
  leaving.abort();
  shown = "";
  find("top").hidden = true;
  for (const id of ["pages", "who"]) find(id).replaceChildren();
  document.title = "Log in – Roost";
  said(find("notice"), "");
  said(find("problem"), why);
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true,
    "aria-describedby": "about-token" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await session.begin(input.value.trim());
      begin();
    } catch (error) {
      said(find("problem"), error.message);
      input.select();
    }
  };
  main.replaceChildren(h("form", { class: "login panel", onsubmit: submit },
    h("h1", {}, "Roost"), h("p", { class: "lead" }, "Log in with a token of the API."),
    h("div", { class: "field" }, h("label", { for: "token" }, "Token"), input),
    h("p", { class: "hint", id: "about-token" },
      "It stays in this browser tab alone until you log out or close the tab, and is sent to this appliance only. ",
      "Whoever runs it makes one with ", h("code", {}, "roost token create NAME --role viewer"), "."),
    h("button", { class: "main" }, "Log in")));
  input.focus();
}

function begin() {
  said(find("problem"), "");
  pages();
  show();
}

session.onend = login;
addEventListener("hashchange", show);
find("leave").addEventListener("click", () => session.end());
find("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("find-text").value.trim();
  if (text) location.hash = `#/connections?${new URLSearchParams({ find: text })}`;
});
document.addEventListener("click", (event) => { // a link to where one is shows it anew
  if (event.target.closest?.("a")?.getAttribute("href") === location.hash && location.hash) show();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

if (session.token) {
  session.begin(session.token).then(begin, (error) => {
    if (error.status === 401) session.end(error.message);
    else login(error.message);
  });
} else {
  login();
}
