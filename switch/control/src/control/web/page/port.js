// The page of one port: its state, its rates, its drops, a capture.

import { html, keyed, set, svg, table, text } from "./dom.js";
import { bits, bytes, count, counted, perSecond } from "./rates.js";
import { capture, get, hasToken, portPath, request } from "./server.js";

const LONGEST = { seconds: 600, megabytes: 256 };

// A line of the last samples.
class Sparkline {
  constructor(label, kind) {
    this.label = label;
    this.line = svg("polyline", { class: kind });
    this.value = html("strong");
    this.most = html("span", { class: "muted" });
    const drawing = svg("svg", { viewBox: "0 0 240 48", preserveAspectRatio: "none", "aria-hidden": "true", class: "sparkline" }, this.line);
    this.element = html("figure", {}, html("figcaption", {}, html("span", { class: kind }, label), " ", this.value, " ", this.most), drawing);
  }

  update(samples) {
    const most = Math.max(...samples, 1);
    const step = 240 / 119;
    const point = (value, index) => `${((120 - samples.length + index) * step).toFixed(1)},${(46 - (44 * value) / most).toFixed(1)}`;
    set(this.line, { points: samples.map(point).join(" ") });
    text(this.value, bits(samples.at(-1) ?? 0));
    text(this.most, most > 1 ? `at most ${bits(most)}` : "");
  }
}

const limit = (limit) =>
  Object.entries(limit ?? {})
    .map(([key, value]) => `${key} ${typeof value === "number" ? count(value) : JSON.stringify(value)}`)
    .join(", ");

function facts(port) {
  const peer = port["front-end"];
  return [
    ["State", port.state],
    ["Why", port.cause],
    ["Present cause", port["present-cause"] && `${port["present-cause"]}: see memlane why`],
    ["Advice", port.advice],
    ["Segment", port.segment],
    ["Kind", [port.kind, port.place].filter(Boolean).join(" at ")],
    ["MAC address", port.address],
    ["Front end", peer && `${peer.program ?? "a program"} (pid ${peer.pid}, uid ${peer.uid})`],
    ["Turned away", port["turned-away"] > 0 ? counted(port["turned-away"], "other front end") : null],
    ["Quarantines", port.quarantines > 0 ? String(port.quarantines) : null],
    ["Waiting now", port.waiting > 0 ? `${count(port.waiting)} frames` : null],
    ["Transmit limit", limit(port.limits?.transmit)],
    ["Receive limit", limit(port.limits?.receive)],
    ["Link emulation", port.link && limit(port.link)],
    ["Transmitted", `${count(port["transmit-frames"])} frames, ${bytes(port["transmit-bytes"])}`],
    ["Received", `${count(port["receive-frames"])} frames, ${bytes(port["receive-bytes"])}`],
    ["Kicks, interrupts", `${count(port.kicks)}, ${count(port.interrupts)}`],
  ].filter(([, value]) => value);
}

export class PortPage {
  #running = null;
  #looked = -Infinity;

  constructor(name) {
    this.name = name;
    this.gone = html("p", { class: "card", hidden: true }, "There is no port of this name.");
    this.facts = html("dl");
    this.tx = new Sparkline("TX", "tx");
    this.rx = new Sparkline("RX", "rx");
    this.drops = table(["Reason", "Frames", "Now"], 1);
    this.noDrops = html("p", { class: "muted" }, "No frame was dropped.");
    this.addresses = html("ul", { class: "addresses" });
    this.noAddresses = html("p", { class: "muted" }, "None.");
    this.whole = html(
      "div",
      { class: "columns" },
      html("section", { class: "card" }, html("h2", {}, "Rates, last 2 minutes"), this.tx.element, this.rx.element),
      html("section", { class: "card" }, html("h2", {}, "State"), this.facts, this.#switch()),
      html("section", { class: "card" }, html("h2", {}, "Drops"), this.noDrops, this.drops.element),
      html("section", { class: "card" }, html("h2", {}, "MAC addresses"), this.noAddresses, this.addresses),
      this.#capture(),
    );
    const back = html("a", { href: "#/" }, "Network");
    this.element = html("div", {}, html("p", {}, back, " / ", html("strong", { id: "port-name" }, name)), this.gone, this.whole);
  }

  #switch() {
    this.toggle = html("button", { type: "button", hidden: !hasToken() });
    this.told = html("p", { role: "status", class: "muted" });
    this.toggle.addEventListener("click", async () => {
      this.toggle.disabled = true;
      try {
        await request(portPath(this.name), { method: "PATCH", body: { enabled: !this.enabled } });
        text(this.told, "");
      } catch (error) {
        text(this.told, error.message);
      }
      this.toggle.disabled = false;
    });
    return html("div", {}, this.toggle, this.told);
  }

  #capture() {
    const number = (id, value, most) => html("input", { type: "number", id, min: 1, max: most, value, required: true });
    const [seconds, megabytes] = [number("seconds", 10, LONGEST.seconds), number("megabytes", 16, LONGEST.megabytes)];
    const drops = html("input", { type: "checkbox", id: "only-drops" });
    const button = html("button", {}, "Capture");
    const progress = html("p", { role: "status", class: "muted" });
    const form = html(
      "form",
      {},
      html("label", {}, "Seconds ", seconds),
      html("label", {}, "MB at most ", megabytes),
      html("label", {}, drops, " dropped frames only"),
      button,
      progress,
    );
    const run = async () => {
      this.#running = new AbortController();
      text(button, "End and save");
      const limits = { seconds: seconds.valueAsNumber, bytes: megabytes.valueAsNumber * 1e6, drops: drops.checked };
      try {
        const file = await capture(this.name, limits, this.#running.signal, (size) => text(progress, `${bytes(size)} so far`));
        save(file, `${this.name}.pcapng`);
        text(progress, `${bytes(file.size)} saved as ${this.name}.pcapng`);
      } catch (error) {
        text(progress, error.message);
      }
      this.#running = null;
      text(button, "Capture");
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) this.#running.abort();
      else run();
    });
    const hint = html("p", { class: "muted" }, "Captures and changes need a token: start the network with --web-token FILE.");
    return html("section", { class: "card", id: "capture" }, html("h2", {}, "Capture"), hasToken() ? form : hint);
  }

  update(report, rates) {
    const port = report.ports.find((one) => one.name === this.name);
    this.gone.hidden = port !== undefined;
    this.whole.hidden = port === undefined;
    if (!port) return;
    this.enabled = port.enabled;
    text(this.toggle, port.enabled ? "Disable the port" : "Enable the port");
    const history = rates.history(this.name);
    this.tx.update(history.map((sample) => sample.tx));
    this.rx.update(history.map((sample) => sample.rx));
    const entry = ([key]) => html("div", {}, html("dt", {}, key), html("dd"));
    keyed(this.facts, facts(port), ([key]) => key, entry, (element, [key, value]) => {
      text(element.lastChild, value);
      set(element.lastChild, { class: key === "State" ? `state ${port.state}` : null });
    });
    this.#updateDrops(port, rates.of(this.name));
    this.#updateAddresses(port);
  }

  #updateDrops(port, now) {
    const drops = Object.entries(port.drops ?? {}).sort((a, b) => b[1] - a[1]);
    const row = ([reason]) => html("tr", {}, html("td", {}, reason), html("td", { class: "number" }), html("td", { class: "number" }));
    keyed(this.drops.body, drops, ([reason]) => reason, row, (element, [reason, frames]) => {
      const rate = now.drops[reason] ?? 0;
      text(element.children[1], count(frames));
      text(element.children[2], rate > 0 ? perSecond(rate) : "");
      set(element, { class: rate > 0 ? "dropping" : null });
    });
    this.noDrops.hidden = drops.length > 0;
    this.drops.element.hidden = drops.length === 0;
  }

  // The forwarding table is read less often: it may be long.
  async #updateAddresses(port) {
    if (performance.now() - this.#looked < 5000) return;
    this.#looked = performance.now();
    const segment = await get(`v1/segments/${encodeURIComponent(port.segment)}`).catch(() => null);
    const here = (segment?.["learned-addresses"] ?? []).filter((one) => one.port === this.name);
    const told = (one) => `${one.address}${one.vlan ? `, VLAN ${one.vlan}` : ""}${one.pinned ? ", tied to the port" : ""}`;
    keyed(this.addresses, here.slice(0, 50), told, (one) => html("li", {}, told(one)), () => {});
    this.noAddresses.hidden = here.length > 0;
  }

  end() {
    this.#running?.abort();
  }
}

function save(file, name) {
  const link = html("a", { href: URL.createObjectURL(file), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  // Not at once: the browser may still read it.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
