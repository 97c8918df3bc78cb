// The page: reads the network's counters every second, and shows what the address asks for.

import { html, keyed, portLink, text } from "./dom.js";
import { NetworkPage } from "./network.js";
import { PortPage } from "./port.js";
import { Rates, bits, counted, duration } from "./rates.js";
import { NeedsToken, events, get, hasToken, remember } from "./server.js";

const MOST_EVENTS = 300;
const element = (id) => document.getElementById(id);
const main = element("main");
const notice = element("notice");
const login = element("login");
const rates = new Rates();
const log = { events: [], next: null };
let report = null;
let shown = null;

class EventsPage {
  constructor(most = MOST_EVENTS) {
    this.most = most;
    this.list = html("ol", { class: "events" });
    this.none = html("p", { class: "muted" }, "No events yet.");
    this.element = html("section", { class: "card" }, html("h2", {}, "Events"), this.none, this.list);
  }

  update() {
    keyed(this.list, log.events.slice(0, this.most), (event) => event.sequence ?? `missed before ${event.before}`, line, () => {});
    this.none.hidden = log.events.length > 0;
  }
}

function line(event) {
  if (event.missed) return html("li", {}, `${event.missed} events were overwritten before they were read`);
  const { sequence, time, event: kind, port, ...rest } = event;
  const moment = new Date(time * 1000);
  const at = html("time", { datetime: moment.toISOString() }, moment.toLocaleTimeString());
  const where = typeof port === "string" ? html("a", { href: portLink(port) }, port) : null;
  const plain = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const more = Object.entries(rest).filter(([, value]) => value !== null).map(([key, value]) => `${key} ${plain(value)}`);
  return html("li", {}, at, html("span", { class: "kind" }, kind.replaceAll("-", " ")), where, html("span", { class: "muted" }, more.join(", ")));
}

// The network's page ends with the latest events.
class Overview {
  constructor() {
    this.events = new EventsPage(8);
    this.network = new NetworkPage(this.events.element);
    this.element = this.network.element;
  }

  update(...told) {
    this.network.update(...told);
    this.events.update();
  }
}

function page() {
  const [, kind, name] = location.hash.split("/");
  if (kind === "events") return new EventsPage();
  if (kind === "port" && name) {
    try {
      return new PortPage(decodeURIComponent(name));
    } catch {
      return new Overview();
    }
  }
  return new Overview();
}

function show() {
  // The link that skips to the content.
  if (location.hash === "#main") return;
  shown?.end?.();
  shown = page();
  main.replaceChildren(shown.element);
  const current = (id, is) => (is ? element(id).setAttribute("aria-current", "page") : element(id).removeAttribute("aria-current"));
  current("to-events", shown instanceof EventsPage);
  current("to-network", shown instanceof Overview);
  scrollTo(0, 0);
  update();
}

function update() {
  if (!report) return;
  shown.update(report, rates);
  const states = (state) => report.ports.filter((port) => port.state === state).length;
  const moved = report.ports.reduce((all, port) => all + rates.of(port.name).tx, 0);
  const quarantined = states("quarantined");
  const parts = [counted(report.ports.length, "port"), `${states("running")} running`];
  if (quarantined > 0) parts.push(`${quarantined} quarantined`);
  parts.push(bits(moved) === "0" ? "no traffic" : bits(moved), `up ${duration(report.uptime)}`);
  text(element("name"), report.name);
  text(element("summary"), parts.join(" · "));
  document.title = `${report.name} · memlane`;
}

function tell(message) {
  text(notice, message);
  notice.hidden = message === "";
}

function askForToken() {
  element("wrong").hidden = !hasToken();
  login.hidden = false;
  main.hidden = true;
  element("token").focus();
}

async function poll() {
  try {
    report = await get("v1/network");
    rates.add(report, performance.now() / 1000);
    tell(report.unsaved ? `Changes are not saved: ${report.unsaved}` : "");
    main.hidden = false;
    login.hidden = true;
    update();
  } catch (error) {
    if (error instanceof NeedsToken) askForToken();
    else tell(`The network does not answer: ${error.message}. Trying again.`);
  }
  document.documentElement.dataset.polls = Number(document.documentElement.dataset.polls ?? 0) + 1;
}

// With a thousand ports a report takes long; a page that no user sees asks for nothing.
async function pollForever() {
  for (;;) {
    const began = performance.now();
    if (!document.hidden && login.hidden) await poll();
    const pause = Math.max(1000 - (performance.now() - began), 4 * (performance.now() - began), 100);
    await new Promise((resolve) => setTimeout(resolve, Math.min(pause, 10_000)));
  }
}

async function followForever() {
  for (;;) {
    while (!login.hidden || report === null) await new Promise((resolve) => setTimeout(resolve, 200));
    try {
      await events(log.next, (event) => {
        if (event.missed) event.before = log.next;
        else log.next = event.sequence + 1;
        log.events.unshift(event);
        log.events.length = Math.min(log.events.length, MOST_EVENTS);
        if (shown instanceof EventsPage) shown.update();
      });
    } catch {
      // The poll tells why the network does not answer.
    }
    await new Promise((resolve) => setTimeout(resolve, 3000));
  }
}

login.addEventListener("submit", (event) => {
  event.preventDefault();
  remember(element("token").value);
  element("token").value = "";
  login.hidden = true;
  report = null;
  show();
  poll();
});

addEventListener("hashchange", () => {
  show();
  main.focus({ preventScroll: true });
});

addEventListener("resize", update);

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select");
  if (event.key === "Escape" && !typing) location.hash = "#/";
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && element("filter")) {
    event.preventDefault();
    element("filter").focus();
  }
  if (event.key === "n") location.hash = "#/";
  if (event.key === "e") location.hash = "#/events";
});

show();
pollForever();
followForever();
