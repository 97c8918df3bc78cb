// The network's page: topology, drops, workers.

import { html, keyed, portLink, set, svg, table, text } from "./dom.js";
import { bits, bytes, count, counted, perSecond } from "./rates.js";

const ROWS = 64;
const ROW = 62;
const TOP = 16;
const BOX = { width: 172, height: 40 };

const width = (rate) => (rate > 0 ? Math.min(6, 1.5 + Math.max(0, Math.log10(rate) - 3) * 0.75) : 1.5);

// The ports that the filter leaves, at most ROWS of a segment: those with most traffic if there are more.
function shown(ports, rates, filter) {
  const fitting = ports.filter((port) => port.name.toLowerCase().includes(filter));
  if (fitting.length <= ROWS) return fitting;
  const weight = (port) => rates.of(port.name).tx + rates.of(port.name).rx + 1e6 * rates.of(port.name).dropped;
  const most = [...fitting].sort((a, b) => weight(b) - weight(a)).slice(0, ROWS);
  const kept = new Set(most);
  return fitting.filter((port) => kept.has(port));
}

const shorter = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

class PortRow {
  constructor(port) {
    this.dot = svg("circle", { r: 5, cx: 13, cy: 14 });
    this.title = svg("title");
    this.state = svg("text", { x: 24, y: 33, class: "small" });
    const box = svg("rect", { width: BOX.width, height: BOX.height, rx: 7 });
    const name = svg("text", { x: 24, y: 18, class: "name" }, shorter(port.name, 17));
    this.box = svg("a", { href: portLink(port.name), class: "port" }, this.title, box, this.dot, name, this.state);
    this.tx = svg("line");
    this.rx = svg("line");
    this.txHead = svg("path");
    this.rxHead = svg("path");
    this.txText = svg("text", { class: "rate" });
    this.rxText = svg("text", { class: "rate" });
    this.element = svg("g", {}, this.tx, this.rx, this.txHead, this.rxHead, this.txText, this.rxText, this.box);
  }

  place(index, across) {
    const [y, left] = [TOP + index * ROW, across - BOX.width - 2];
    set(this.element, { transform: `translate(0 ${y})` });
    set(this.box, { transform: `translate(${left} 0)` });
    const [from, to, middle] = [24, left - 3, (24 + left) / 2];
    // Arrows point to where the frames go.
    set(this.tx, { x1: to, x2: from + 8, y1: 13, y2: 13 });
    set(this.txHead, { d: `M${from} 13l10 -6v12z` });
    set(this.rx, { x1: from, x2: to - 8, y1: 29, y2: 29 });
    set(this.rxHead, { d: `M${to} 29l-10 -6v12z` });
    set(this.txText, { x: middle, y: 4 });
    set(this.rxText, { x: middle, y: 47 });
  }

  update(port, rate) {
    const dropping = rate.dropped > 0;
    const cause = port["present-cause"];
    const told = dropping ? `drops ${perSecond(rate.dropped)}` : `${port.state}${cause ? `! ${cause}` : ""}`;
    const marked = cause && !["no-front-end", "not-started", "disabled"].includes(cause);
    set(this.element, { class: `row ${port.state}${dropping || marked ? " dropping" : ""}` });
    for (const [line, head, kind] of [[this.tx, this.txHead, "tx"], [this.rx, this.rxHead, "rx"]]) {
      set(line, { "stroke-width": width(rate[kind]), class: rate[kind] > 0 ? `${kind} busy` : kind });
      set(head, { class: rate[kind] > 0 ? `${kind} busy` : kind });
    }
    text(this.txText, rate.tx > 0 ? `TX ${bits(rate.tx)}` : "");
    text(this.rxText, rate.rx > 0 ? `RX ${bits(rate.rx)}` : "");
    text(this.state, told);
    text(this.title, `${port.name}: ${port.state}, TX ${bits(rate.tx)}, RX ${bits(rate.rx)}, drops ${perSecond(rate.dropped)}`);
  }
}

// A segment as a bar, and its ports beside it.
class Segment {
  constructor(name) {
    this.rows = new Map();
    this.bar = svg("rect", { x: 8, y: 4, width: 14, rx: 7, class: "bar" });
    this.group = svg("g");
    this.more = html("p", { class: "muted" });
    this.facts = html("span", { class: "muted" });
    this.drawing = svg("svg", { role: "group", "aria-label": `Ports of segment ${name}` }, this.bar, this.group);
    const heading = html("h2", {}, name, " ", this.facts);
    this.element = html("section", { class: "card segment" }, heading, this.drawing, this.more);
  }

  update({ ports, uplink, loops }, rates, filter) {
    const rows = shown(ports, rates, filter);
    const across = Math.max(280, this.drawing.clientWidth || this.element.clientWidth - 24);
    const high = TOP + Math.max(1, rows.length) * ROW;
    set(this.drawing, { viewBox: `0 0 ${across} ${high}`, height: high });
    set(this.bar, { height: high - 10 });
    const make = (port) => {
      const row = new PortRow(port);
      this.rows.set(port.name, row);
      return row.element;
    };
    let index = 0;
    const update = (_, port) => {
      const row = this.rows.get(port.name);
      row.place(index++, across);
      row.update(port, rates.of(port.name));
    };
    keyed(this.group, rows, (port) => port.name, make, update);
    const facts = [counted(ports.length, "port")];
    if (uplink?.nic) facts.push(`uplink NIC ${uplink.nic.name}`);
    else if (uplink) facts.push(`uplink VNI ${uplink.vni}, ${uplink.hosts.length} other hosts`);
    if (loops.length > 0) facts.push(`${loops.length === 1 ? "1 address flaps" : `${loops.length} addresses flap`}, as in a loop`);
    text(this.facts, facts.join(" · "));
    const hidden = ports.length - rows.length;
    text(this.more, hidden > 0 ? `${hidden} more ports are not drawn: filter by name.` : "");
  }
}

export class NetworkPage {
  constructor(events) {
    this.segments = new Map();
    this.filter = html("input", { type: "search", id: "filter", placeholder: "Filter ports ( / )", "aria-label": "Filter ports by name" });
    this.filter.addEventListener("input", () => this.report && this.update(this.report, this.rates));
    this.topology = html("div", { class: "topology" });
    this.drops = table(["Port", "Reason", "Frames", "Now"], 2);
    this.noDrops = html("p", { class: "muted" }, "No frame was dropped.");
    this.workers = table(["Worker", "Busy", "Frames"], 1);
    this.memory = html("p", { class: "muted" });
    this.element = html(
      "div",
      {},
      html("div", { class: "bar" }, this.filter),
      this.topology,
      html(
        "div",
        { class: "columns" },
        html("section", { class: "card", id: "drops" }, html("h2", {}, "Drops"), this.noDrops, this.drops.element),
        html("section", { class: "card", id: "workers" }, html("h2", {}, "Workers"), this.workers.element, this.memory),
        events,
      ),
    );
  }

  update(report, rates) {
    [this.report, this.rates] = [report, rates];
    const filter = this.filter.value.trim().toLowerCase();
    const segments = new Map();
    for (const port of report.ports) {
      const segment = segments.get(port.segment) ?? { name: port.segment, ports: [], loops: [] };
      segment.ports.push(port);
      segments.set(port.segment, segment);
    }
    for (const segment of segments.values()) {
      segment.uplink = report.uplinks?.find((uplink) => uplink.segment === segment.name);
      segment.loops = report.loops?.filter((loop) => loop.segment === segment.name) ?? [];
    }
    const make = ({ name }) => {
      const segment = new Segment(name);
      this.segments.set(name, segment);
      return segment.element;
    };
    keyed(this.topology, [...segments.values()], ({ name }) => name, make, () => {});
    for (const segment of segments.values()) this.segments.get(segment.name).update(segment, rates, filter);
    this.#updateDrops(report, rates, filter);
    this.#updateWorkers(report, rates);
  }

  #updateDrops(report, rates, filter) {
    const drops = report.ports
      .filter((port) => port.name.toLowerCase().includes(filter))
      .flatMap((port) => Object.entries(port.drops ?? {}).map(([reason, frames]) => ({ port: port.name, reason, frames })));
    for (const drop of drops) drop.rate = rates.of(drop.port).drops[drop.reason] ?? 0;
    drops.sort((a, b) => b.rate - a.rate || b.frames - a.frames);
    const row = ({ port, reason }) =>
      html("tr", {}, html("td", {}, html("a", { href: portLink(port) }, port)), html("td", {}, reason), html("td", { class: "number" }), html("td", { class: "number" }));
    const update = (element, drop) => {
      text(element.children[2], count(drop.frames));
      text(element.children[3], drop.rate > 0 ? perSecond(drop.rate) : "");
      set(element, { class: drop.rate > 0 ? "dropping" : null });
    };
    keyed(this.drops.body, drops.slice(0, 50), ({ port, reason }) => `${port} ${reason}`, row, update);
    this.noDrops.hidden = drops.length > 0;
    this.drops.element.hidden = drops.length === 0;
  }

  #updateWorkers(report, rates) {
    const workers = rates.workers.map((worker, index) => ({ ...worker, index }));
    const make = ({ index }) =>
      html("tr", {}, html("td", {}, String(index)), html("td", { class: "number" }, html("meter", { max: 1, high: 0.9, low: 0.7, optimum: 0 }), " ", html("span")), html("td", { class: "number" }));
    const update = (element, worker) => {
      const cell = element.children[1];
      cell.querySelector("meter").value = worker.busy;
      text(cell.querySelector("span"), `${Math.round(worker.busy * 100)} %`);
      text(element.children[2], perSecond(worker.frames));
    };
    keyed(this.workers.body, workers, ({ index }) => index, make, update);
    text(this.memory, `Frames take ${bytes(report["memory-held"])} of ${bytes(report["memory-most"])} of the switch's memory.`);
  }
}
