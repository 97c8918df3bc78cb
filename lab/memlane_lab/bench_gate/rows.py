"""The rows: programs that run on a side, and how their costs are read.

A cost is the time of one thing carried, in nanoseconds: less is better.
"""

import json
import os
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from memlane_lab.bench_gate.sides import Side
from memlane_lab.common.errors import LabError

WAIT = 10.0
"""Seconds for a network to come up."""
SWITCH_CPU, RIG_CPU = 0, 1


class Runs(ABC):
    """Something to run; one run tells the costs of one or several rows."""

    name: str

    @abstractmethod
    def run(self, side: Side, work: Path, seconds: float) -> dict[str, float]:
        """Costs by the names of rows, of a run with measurements of `seconds`."""


class Criterion(Runs):
    """A bench of criterion's: the median of its samples for each of its functions."""

    def __init__(self, bench: str) -> None:
        self.name = bench

    def run(self, side: Side, work: Path, seconds: float) -> dict[str, float]:
        home = work / "criterion"
        shutil.rmtree(home, ignore_errors=True)
        times = ["--warm-up-time", f"{seconds / 4:g}", "--measurement-time", f"{seconds:g}", "--sample-size", "20"]
        execute([side.programs[self.name], "--bench", "--noplot", "--quiet", *times], {"CRITERION_HOME": str(home)})
        return estimates(home)


def estimates(home: Path) -> dict[str, float]:
    """The medians that criterion left in `home`, by the full names of its functions."""
    found = {}
    for path in home.glob("**/new/estimates.json"):
        name = json.loads((path.parent / "benchmark.json").read_text())["full_id"]
        found[name] = float(json.loads(path.read_text())["median"]["point_estimate"])
    if not found:
        raise LabError(f"criterion left no estimates in {home}")
    return found


class PerFrame(Runs):
    """Frames around a ring of guests in one thread: the time of one."""

    name = "per_frame"
    frames = 4_000_000
    """Frames of a run that takes about a second."""

    def run(self, side: Side, work: Path, seconds: float) -> dict[str, float]:
        del work  # it leaves nothing
        told = execute([side.programs[self.name], "256", str(round(self.frames * seconds))])
        return {self.name: nanoseconds(told)}


def nanoseconds(told: str) -> float:
    """The time of a frame in the output of the bench `per_frame`."""
    found = re.search(r"([0-9.]+) ns each", told)
    if not found or not float(found[1]):
        raise LabError(f"the bench per_frame printed no time: {told!r}")
    return float(found[1])


class Blast(Runs):
    """`memlane-rig blast` through a network of the side: the time of a frame that arrived."""

    def __init__(self, name: str, *options: str) -> None:
        self.name = f"blast {name}"
        self._options = options

    def run(self, side: Side, work: Path, seconds: float) -> dict[str, float]:
        ports = [f"vhost-user = '{work}/{name}.sock'" for name in ("a", "b")]
        with network(side, work, ports):
            return {self.name: self.through(side, work, seconds)}

    def through(self, side: Side, work: Path, seconds: float) -> float:
        """The cost at a network that runs, between its ports at `a.sock` and `b.sock`."""
        return self._blast(side, seconds, [f"vu:{work}/a.sock", f"vu:{work}/b.sock"])

    def _blast(self, side: Side, seconds: float, places: Sequence[str]) -> float:
        ports = [word for place in places for word in ("--port", place)]
        shared = ["--json", "--seconds", f"{seconds:g}", "--warm-up", f"{seconds / 4:g}", "--cpus", str(_cpu(RIG_CPU))]
        return per_frame(execute([side.programs["memlane-rig"], "blast", *shared, *self._options, *ports]))


def per_frame(report: str) -> float:
    """The nanoseconds of a frame in a report of blast's."""
    rate = float(json.loads(report)["total"]["mpps"])
    if not rate:
        raise LabError("blast measured no delivered frame")
    return 1e3 / rate


class Tap(Blast):
    """Through a TAP device of the network's, a bridge and a TAP device of the rig's: most is the kernel's time."""

    def run(self, side: Side, work: Path, seconds: float) -> dict[str, float]:
        with (
            namespace() as netns,
            network(side, work, [f"vhost-user = '{work}/a.sock'", f"tap = 'switch'\nnetns = '{netns}'"]),
        ):
            for command in ("link add bridge type bridge", "link set bridge up", "link set switch master bridge up"):
                execute(["ip", "-n", netns, *command.split()])
            return {self.name: self._blast(side, seconds, [f"vu:{work}/a.sock", f"tap:rig@{netns},bridge=bridge"])}


@contextmanager
def namespace() -> Iterator[str]:
    """A network namespace of this process's."""
    name = f"bench-gate-{os.getpid()}"
    execute(["ip", "netns", "add", name])
    try:
        yield name
    finally:
        execute(["ip", "netns", "del", name])


@contextmanager
def network(
    side: Side, work: Path, ports: Sequence[str], environment: dict[str, str] | None = None, *, tables: str = ""
) -> Iterator[int]:
    """A network of the side's, of one worker, with further `tables` in its file; gives its process."""
    stated = [f"[[port]]\nname = 'p{number}'\n{keys}\n" for number, keys in enumerate(ports)]
    file = work / "net.toml"
    file.write_text(
        f"workers = 1\ncpus = [{_cpu(SWITCH_CPU)}]\ncontrol = '{work}/control.sock'\n{''.join(stated)}{tables}"
    )
    log = work / "network.log"
    with log.open("w") as out:
        switch = subprocess.Popen(
            [side.programs["memlane"], "up", file],
            env=os.environ | {"XDG_STATE_HOME": str(work)} | (environment or {}),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_up(switch, work / "control.sock", log)
        yield switch.pid
    finally:
        switch.terminate()
        switch.wait()


def _wait_until_up(switch: subprocess.Popen[bytes], control: Path, log: Path) -> None:
    until = time.monotonic() + WAIT
    while not control.exists():
        if switch.poll() is not None or time.monotonic() > until:
            switch.kill()
            switch.wait()
            raise LabError(f"the network did not start: {log.read_text()}")
        time.sleep(0.01)


def _cpu(wanted: int) -> int:
    """One of this process's processors."""
    own = sorted(os.sched_getaffinity(0))
    return own[wanted % len(own)]


def execute(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """The output of a command, which succeeds."""
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(map(str, command))}` failed: {done.stderr or done.stdout}")
    return done.stdout


ALL: tuple[Runs, ...] = (
    Criterion("worker"),
    PerFrame(),
    Criterion("ring"),
    Blast("64 B", "--sizes", "64"),
    Blast("1518 B touched", "--sizes", "1518", "--touch"),
    Blast("60 KB", "--sizes", "60000", "--tso", "1448"),
    Blast("request and answer", "--sizes", "64", "--window", "1"),
    Tap("TAP", "--sizes", "1514", "--window", "64"),
)
