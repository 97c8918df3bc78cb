"""The cost of observing, against the bars of its promises: `make bench-observe`.

- A capture that selects nothing, and a scrape of 1000 ports each second, beside a blast of 64-byte frames: each round
  measures the blast with and without them, one right beside the other.
- The flight recorder beside the same blast, and a recording into a file beside 200 000 frames a second, with its size.
- The time and size of such a scrape.
- The CPU time of `memlane top` at 1000 ports, and how often a watchdog of ten seconds wakes idle workers.
"""

import argparse
import gzip
import http.client
import os
import pty
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.bench_gate import rows, verdict
from memlane_lab.bench_gate.sides import PROGRAMS, Side
from memlane_lab.bench_gate.verdict import Verdict
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say, tell
from memlane_lab.host import rust
from memlane_lab.statistics import stats

PORTS = 1000
ROUNDS = 10
WINDOWS = 6
"""Windows in which CPU time and wake-ups are counted: the fewest of which there is an interval."""
WINDOW = 2.0
"""Seconds of a window in which CPU time is counted, and before the first one."""
WATCHDOG = 10
"""Seconds of the watchdog."""
MOMENT = 0.1
"""Seconds in which all threads that a keep-alive message wakes sleep again."""
NOTHING = "udp port 9 and host 203.0.113.77"
"""A filter that selects no frame of a blast."""


@dataclass(frozen=True)
class Figure:
    """A measured figure, and the bar that it has to be below."""

    name: str
    unit: str
    value: stats.Interval
    bar: float

    @property
    def verdict(self) -> Verdict:
        return verdict.of(self.value, self.bar)

    def told(self) -> str:
        """The figure in one line."""
        bounds = "" if self.value.bounds is None else " ({:.2f} to {:.2f})".format(*self.value.bounds)
        figure = f"{self.value.estimate:.2f}{bounds} {self.unit}"
        return f"{self.name:44} {figure:32} at most {self.bar:g} {self.unit}: {self.verdict.name.lower()}"


Measurement = Callable[[Side, Path], list[Figure]]
"""Measures figures of the programs, with a folder for files."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all; returns 0 if every figure is within, 1 if one is not, 3 if some are undecided, 2 on a fault."""
    parser = argparse.ArgumentParser(prog="bench-observe", description="What does observing cost?")
    chosen = options(parser, arguments, rounds=ROUNDS, seconds=(3.0, "length of a blast beside scrapes"))
    return measured(
        parser.prog,
        {
            "capture": lambda side, work: [_beside_a_capture(side, work, chosen.rounds, chosen.seconds / 3)],
            "scrape": lambda side, work: [_beside_scrapes(side, work, chosen.rounds, chosen.seconds)],
            "recorder": lambda side, work: [_beside_a_recorder(side, work, chosen.rounds, chosen.seconds / 3)],
            "recording": lambda side, work: _beside_a_recording(side, work, chosen.rounds, chosen.seconds / 3),
            "scrapes": _scrapes,
            "top": lambda side, work: [_top(side, work)],
            "watchdog": _watchdog,
        },
        chosen.only,
    )


def options(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *, rounds: int, seconds: tuple[float, str]
) -> argparse.Namespace:
    """The options of a command that measures figures against bars, `seconds` with its meaning."""
    length, meaning = seconds
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of each blast (default: {rounds})")
    parser.add_argument("--seconds", type=float, default=length, help=f"{meaning} (default: {length:g})")
    parser.add_argument("--only", metavar="WORD", help="only measurements that have WORD in their names")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < stats.FEWEST:
        parser.error(f"fewer than {stats.FEWEST} rounds have no interval")
    return chosen


def measured(command: str, measurements: Mapping[str, Measurement], only: str | None) -> int:
    """Measures those that have `only` in their names, each in a folder of its own, and prints their figures.

    Returns the exit code of `main`.
    """
    found: list[Figure] = []
    try:
        side = built()
        for name, measure in measurements.items():
            if only is None or only in name:
                say(f"{command}: {name}")
                with tempfile.TemporaryDirectory() as work:
                    figures = measure(side, Path(work))
                tell("\n".join(figure.told() for figure in figures))
                found += figures
    except (LabError, OSError) as error:
        say(f"{command}: {error}")
        return 2
    return verdict.worst(figure.verdict for figure in found)


def built() -> Side:
    """The programs that `make build` made."""
    named = {"memlane": "MEMLANE", "memlane-rig": "MEMLANE_RIG"}
    programs = {name: rust.program(name, named_by=named[name]) for name in PROGRAMS}
    found = {name: path for name, path in programs.items() if path}
    if len(found) < len(PROGRAMS):
        raise LabError("memlane and memlane-rig are not built: run `make build`")
    return Side("here", found)


# ---- beside a blast


def _blast(side: Side, work: Path, seconds: float, *options: str) -> float:
    """Nanoseconds of a 64-byte frame between the first two ports of a network."""
    return rows.Blast("64 B", "--sizes", "64", *options).through(side, work, seconds)


def _rounds(
    name: str, count: int, blast: Callable[[], float], beside: Callable[[], AbstractContextManager[None]], bar: float
) -> Figure:
    """How much slower a frame is beside something, in percent: both in turn, each first in every other round."""
    row = verdict.Row(name)
    for turn in range(count):
        costs = {}
        for observed in (False, True) if turn % 2 == 0 else (True, False):
            with beside() if observed else nullcontext():
                costs[observed] = blast()
        row.add(costs[False], costs[True])
    ratio = verdict.judge(row, bar / 100).ratio
    bounds = ratio.bounds or (None, None)
    low, high = (None if bound is None else 100 * (bound - 1) for bound in bounds)
    return Figure(name, "%", stats.Interval(100 * (ratio.estimate - 1), low, high), bar)


def _beside_a_capture(side: Side, work: Path, rounds: int, seconds: float) -> Figure:
    with rows.network(side, work, pair(work)):
        return _rounds(
            "64 B beside a capture that selects nothing",
            rounds,
            lambda: _blast(side, work, seconds),
            lambda: _capturing(side, work),
            5,
        )


@contextmanager
def _capturing(side: Side, work: Path) -> Iterator[None]:
    command: list[str | Path] = [
        side.programs["memlane"],
        "capture",
        work / "net.toml",
        "-f",
        NOTHING,
        "-w",
        "/dev/null",
    ]
    with _begun(command, "has begun"):
        yield


@contextmanager
def _begun(command: Sequence[str | Path], word: str) -> Iterator[None]:
    """A command that runs until the end of the block, which begins once it has said `word`."""
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr
        if word not in (told := running.stderr.readline()):
            raise LabError(f"`{' '.join(map(str, command))}` did not begin: {told}{running.stderr.read()}")
        yield
    finally:
        running.terminate()
        running.communicate()


def _beside_a_recorder(side: Side, work: Path, rounds: int, seconds: float) -> Figure:
    with rows.network(side, work, pair(work)):
        return _rounds(
            "64 B beside the flight recorder",
            rounds,
            lambda: _blast(side, work, seconds),
            lambda: _flight_recorder(side, work),
            15,
        )


@contextmanager
def _flight_recorder(side: Side, work: Path) -> Iterator[None]:
    command: list[str | Path] = [side.programs["memlane"], "record", work / "net.toml"]
    rows.execute(command)
    try:
        yield
    finally:
        rows.execute([*command, "--stop"])


def _beside_a_recording(side: Side, work: Path, rounds: int, seconds: float) -> list[Figure]:
    rates: list[float] = []
    with rows.network(side, work, pair(work)):
        cost = _rounds(
            "200 000 frames/s beside a recording",
            rounds,
            # Two senders.
            lambda: _blast(side, work, seconds, "--rate-pps", "100k"),
            lambda: _recording(side, work, rates),
            2,
        )
    return [cost, Figure("recording of 200 000 frames/s", "MB/s", stats.median(rates), 32)]


@contextmanager
def _recording(side: Side, work: Path, rates: list[float]) -> Iterator[None]:
    """Records into a file, whose growth in MB/s is added to `rates`."""
    file = work / "recording"
    command: list[str | Path] = [side.programs["memlane"], "record", work / "net.toml", "-w", file]
    with _begun(command, "begins"):
        began = time.monotonic()
        yield
        rates.append(file.stat().st_size / 1e6 / (time.monotonic() - began))


def _beside_scrapes(side: Side, work: Path, rounds: int, seconds: float) -> Figure:
    with rows.network(side, work, [*pair(work), *["null = true"] * (PORTS - 2)]):
        return _rounds(
            f"64 B beside a scrape of {PORTS} ports a second",
            rounds,
            lambda: _blast(side, work, seconds),
            lambda: _scraping(work / "control.sock"),
            1,
        )


@contextmanager
def _scraping(control: Path) -> Iterator[None]:
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(1):
            _scrape(control)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pair(work: Path) -> list[str]:
    """The two ports of a blast."""
    return [f"vhost-user = '{work}/{name}.sock'" for name in ("a", "b")]


# ---- scrapes


def _scrape(control: Path) -> bytes:
    """The compressed metrics, as Prometheus asks for them."""
    connection = http.client.HTTPConnection("memlane")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(rows.WAIT)
    with closing(connection):
        connection.sock.connect(str(control))
        connection.request("GET", "/metrics", headers={"accept-encoding": "gzip"})
        return connection.getresponse().read()


def _scrapes(side: Side, work: Path) -> list[Figure]:
    times, sizes = [], []
    with rows.network(side, work, ["null = true"] * PORTS):
        for _ in range(2 * ROUNDS):
            began = time.monotonic()
            body = _scrape(work / "control.sock")
            times.append(1e3 * (time.monotonic() - began))
            sizes.append(len(body) / 1e6)
    say(f"bench-observe: {len(gzip.decompress(body)) / 1e6:.2f} MB without compression")
    return [
        Figure(f"size of a scrape of {PORTS} ports, gzip", "MB", stats.median(sizes), 1),
        Figure(f"time of a scrape of {PORTS} ports, gzip", "ms", stats.median(times), 50),
    ]


# ---- programs


def _cpu_seconds(process: int) -> float:
    """CPU time of all threads of a process, to the nanosecond (schedstat)."""
    spent = (path.read_text().split()[0] for path in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return sum(map(int, spent)) / 1e9


def _top(side: Side, work: Path) -> Figure:
    shares = []
    with rows.network(side, work, ["null = true"] * PORTS):
        master, slave = pty.openpty()
        command: list[str | Path] = [side.programs["memlane"], "top", work / "net.toml"]
        environment = os.environ | {"TERM": "xterm-256color"}
        top = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        threading.Thread(target=_read_all, args=(master,), daemon=True).start()
        try:
            time.sleep(WINDOW)
            for _ in range(WINDOWS):
                before, began = _cpu_seconds(top.pid), time.monotonic()
                time.sleep(WINDOW)
                shares.append(100 * (_cpu_seconds(top.pid) - before) / (time.monotonic() - began))
        finally:
            top.terminate()
            top.wait()
            os.close(slave)
    return Figure(f"memlane top at {PORTS} ports", "% of a CPU", stats.median(shares), 5)


def _read_all(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        os.close(terminal)


def _watchdog(side: Side, work: Path) -> list[Figure]:
    """Wake-ups of an idle network in the time of the watchdog: of its worker, and of the process as a whole."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(work / "notify"))
    environment = {"NOTIFY_SOCKET": str(work / "notify"), "WATCHDOG_USEC": str(WATCHDOG * 1_000_000)}
    of_worker, of_all = [], []
    with closing(manager), rows.network(side, work, ["null = true"] * 100, environment) as process:
        manager.setblocking(False)
        time.sleep(WINDOW)
        for _ in range(WINDOWS):
            before = _switches(process, "worker-")
            of_all.append(_wakes(process, WATCHDOG))
            of_worker.append(float(_switches(process, "worker-") - before))
            if not _pings(manager):
                raise LabError(f"no keep-alive message in {WATCHDOG} s")
    return [
        Figure(f"wake-ups of an idle worker in {WATCHDOG} s", "", stats.median(of_worker), 2),
        Figure(f"wake-ups of an idle network in {WATCHDOG} s", "", stats.median(of_all), 2),
    ]


def _wakes(process: int, seconds: float) -> float:
    """How often an idle process wakes in so many seconds; threads that wake one another are one wake-up."""
    wakes, was_awake, before = 0, False, _switches(process)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(MOMENT)
        switches = _switches(process)
        is_awake = switches != before
        wakes += is_awake and not was_awake
        was_awake, before = is_awake, switches
    return float(wakes)


def _switches(process: int, names: str = "") -> int:
    """How often a process's threads with such names have gone to sleep, by the kernel's count."""
    found = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().startswith(names):
            switches = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.MULTILINE)
            assert switches
            found += int(switches[1])
    return found


def _pings(manager: socket.socket) -> int:
    count = 0
    try:
        while message := manager.recv(4096):
            count += b"WATCHDOG=1" in message
    except BlockingIOError:
        return count
    return count


if __name__ == "__main__":
    sys.exit(main())
