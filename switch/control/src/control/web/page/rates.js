// Rates of the last seconds, from two reports of the counters.

const KEPT = 120;

const sum = (drops) => Object.values(drops ?? {}).reduce((all, count) => all + count, 0);

export class Rates {
  #before = null;
  #ports = new Map();

  // Takes over a report that was read at `now`, in seconds.
  add(report, now) {
    const before = this.#before;
    const seconds = before ? now - before.now : 0;
    const old = new Map((before?.report.ports ?? []).map((port) => [port.name, port]));
    const ports = new Map();
    for (const port of report.ports) {
      const last = old.get(port.name);
      const rate = (count) => (last && seconds > 0 ? Math.max(0, (count(port) - count(last)) / seconds) : 0);
      const drops = {};
      for (const reason of Object.keys(port.drops ?? {})) drops[reason] = rate((one) => one.drops?.[reason] ?? 0);
      const sample = {
        tx: 8 * rate((one) => one["transmit-bytes"]),
        rx: 8 * rate((one) => one["receive-bytes"]),
        txFrames: rate((one) => one["transmit-frames"]),
        rxFrames: rate((one) => one["receive-frames"]),
        dropped: rate((one) => sum(one.drops)),
        drops,
      };
      const kept = this.#ports.get(port.name) ?? [];
      ports.set(port.name, last ? [...kept.slice(1 - KEPT), sample] : []);
    }
    this.#ports = ports;
    this.workers = report.workers.map((worker, index) => {
      const last = before?.report.workers[index];
      const cycles = last ? worker["busy-cycles"] - last["busy-cycles"] : 0;
      const busy = seconds > 0 ? cycles / report["cycles-per-second"] / seconds : 0;
      const frames = last && seconds > 0 ? (worker.frames - last.frames) / seconds : 0;
      return { busy: Math.min(1, Math.max(0, busy)), frames: Math.max(0, frames) };
    });
    this.#before = { report, now };
  }

  history(name) {
    return this.#ports.get(name) ?? [];
  }

  of(name) {
    return this.history(name).at(-1) ?? { tx: 0, rx: 0, txFrames: 0, rxFrames: 0, dropped: 0, drops: {} };
  }
}

function scaled(value, unit, base = 1000) {
  const prefixes = base === 1024 ? ["", "Ki", "Mi", "Gi", "Ti", "Pi"] : ["", "k", "M", "G", "T", "P", "E"];
  let index = 0;
  while (value >= base && index < prefixes.length - 1) {
    value /= base;
    index += 1;
  }
  const digits = index === 0 ? (value > 0 && value < 10 ? 1 : 0) : value < 10 ? 2 : value < 100 ? 1 : 0;
  const space = unit || prefixes[index] ? " " : "";
  return `${Number(value.toFixed(digits))}${space}${prefixes[index]}${unit}`;
}

export const bits = (rate) => (rate > 0 ? scaled(rate, "bit/s") : "0");
export const count = (value) => scaled(value, "");
export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
export const bytes = (value) => scaled(value, "B", 1024);
export const perSecond = (rate) => `${scaled(rate, "")}/s`;

export function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(seconds)} s`;
}
