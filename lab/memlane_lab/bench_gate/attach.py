"""The cost of ports that come and go, against bars: `make bench-attach`.

One network with a state file gets thousands of ports, one by one, over one connection to its control socket. Rows are
the CPU time of its process for each port, among the first ports and among the last, and for each port that is detached
then; and the threads and the memory of the process with so many ports. Another network has ports with a policy rule
each, of which one changes with each reload of its file.
"""

import argparse
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from memlane_lab.bench_gate import rows
from memlane_lab.bench_gate.observe import Figure, Measurement, measured
from memlane_lab.bench_gate.sides import Side
from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.statistics import stats

PORTS = 4000
"""Ports at the end; a network has 4096 at most."""
WINDOW = 125
"""Ports of a window in which CPU time is counted."""
ATTACH = 0.5
DETACH = 0.2
RULE = 1.0
RELOAD = 100.0
"""Bars in milliseconds."""
THREADS = 20
"""Bar for any number of ports."""
MEMORY = {PORTS // 2: 60, PORTS: 100}
"""Bars in megabytes, by ports: the proportional set size, in which pages of several processes count in part."""
RULES = 2000
"""Ports with a policy rule each."""
RELOADS = 20
"""Reloads of each kind."""


class _Control(http.client.HTTPConnection):
    """A connection to a control socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))

    def ask(self, method: str, uri: str, body: object = None) -> None:
        """Sends a request, which succeeds."""
        self.request(method, uri, json.dumps(body) if body is not None else None)
        answer = self.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise LabError(f"{method} {uri} failed: {text.decode()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all; returns 0 if every figure is within, 1 if one is not, 3 if some are undecided, 2 on a fault."""
    parser = argparse.ArgumentParser(prog="bench-attach", description="What does a port cost that comes and goes?")
    parser.add_argument("--only", metavar="KIND", help="only ports of this kind")
    chosen = parser.parse_args(arguments)
    kinds = {kind: _measure(kind) for kind in ("null", "vhost-user")}
    return measured(parser.prog, kinds | {"rules": lambda side, work: list(_figures_of_rules(side, work))}, chosen.only)


def _measure(kind: str) -> Measurement:
    return lambda side, work: list(_figures(kind, side, work))


def _figures(kind: str, side: Side, work: Path) -> Iterator[Figure]:
    names = [f"guest{number}" for number in range(PORTS)]
    with rows.network(side, work, []) as process, closing(_Control(work / "control.sock")) as control:
        attached: list[float] = []
        held: list[Figure] = []
        for ports, bar in MEMORY.items():
            more = names[len(attached) * WINDOW : ports]
            attached += _windows(process, more, lambda name: control.ask("POST", "/v1/ports", _entry(kind, name, work)))
            held += _held(process, f"{kind}, {counted(ports, 'port')}", bar)
        detached = _windows(process, names[::-1], lambda name: control.ask("DELETE", f"/v1/ports/{name}"))
    yield from held
    part = len(attached) // 4
    yield Figure(f"attach, {kind}, first {part * WINDOW} of {PORTS}", "ms", stats.median(attached[:part]), ATTACH)
    yield Figure(f"attach, {kind}, last {part * WINDOW} of {PORTS}", "ms", stats.median(attached[-part:]), ATTACH)
    yield Figure(f"detach, {kind}, first {part * WINDOW} of {PORTS}", "ms", stats.median(detached[:part]), DETACH)
    yield Figure(f"detach, {kind}, last {part * WINDOW} of {PORTS}", "ms", stats.median(detached[-part:]), DETACH)


def _held(process: int, what: str, megabytes: float) -> Iterator[Figure]:
    """Threads and memory of the network."""
    threads = len(list(Path(f"/proc/{process}/task").iterdir()))
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    kilobytes = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    yield Figure(f"threads, {what}", "threads", stats.Interval(threads, threads, threads), THREADS)
    used = kilobytes * 1024 / 1e6
    yield Figure(f"memory, {what}", "MB", stats.Interval(used, used, used), megabytes)


def _figures_of_rules(side: Side, work: Path) -> Iterator[Figure]:
    tables = [_rule(port, 443) for port in range(RULES)]
    file = work / "net.toml"
    with (
        rows.network(side, work, ["null = true"] * RULES, tables="".join(tables)) as process,
        closing(_Control(work / "control.sock")) as control,
    ):
        whole = file.read_text()

        def reload(text: str) -> float:
            file.write_text(text)
            before = _cpu_time(process)
            control.ask("POST", "/v1/reload", {})
            return (_cpu_time(process) - before) / 1e6

        beyond, changes = [], []
        for number in range(RELOADS):
            same = reload(f"{whole}# {number}\n")
            port = RULES // RELOADS * number
            whole = whole.replace(tables[port], _rule(port, 80))
            changes.append(reload(f"{whole}# {number}\n"))
            beyond.append(changes[-1] - same)
    yield Figure(f"reload, {RULES} ports and rules, one changed", "ms", stats.median(changes), RELOAD)
    yield Figure(f"of it the changed rule of {RULES}", "ms", stats.median(beyond), RULE)


def _rule(port: int, allowed: int) -> str:
    return f"[[policy]]\nfrom = 'p{port}'\nprotocol = 'tcp'\nports = [{allowed}]\naction = 'allow'\n"


def _entry(kind: str, name: str, work: Path) -> dict[str, object]:
    return {"name": name, kind: True if kind == "null" else str(work / f"{name}.sock")}


def _windows(process: int, names: Sequence[str], each: Callable[[str], None]) -> list[float]:
    """Milliseconds of CPU time of `process` for each of the names, window by window."""
    windows = []
    for begin in range(0, len(names), WINDOW):
        before = _cpu_time(process)
        for name in names[begin : begin + WINDOW]:
            each(name)
        windows.append((_cpu_time(process) - before) / WINDOW / 1e6)
    return windows


def _cpu_time(process: int) -> int:
    """Nanoseconds of CPU time of all threads of `process`, also of those that have ended (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~process << 3) | 2)


if __name__ == "__main__":
    sys.exit(main())
