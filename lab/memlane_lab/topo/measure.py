"""Questions about whole networks: `memlane-lab topo measure lab/experiments/topologies/line_of_guests.toml`.

A file states the measure and the sizes; the results are rows, written as JSON beside the machine's
load, and shown as a table.
"""

import itertools
import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.common.strict import Strict, told
from memlane_lab.common.wait import Timeout
from memlane_lab.topo import net as nets
from memlane_lab.topo import status
from memlane_lab.topo.model import bits, seconds
from memlane_lab.topo.net import Net
from memlane_lab.topo.settings import Settings

_IDLE = 20.0
"""Seconds for which a network at rest is watched."""
_WINDOW = 8 << 20
"""Bytes that a socket may hold where a stream fills a line of long delay: well above its bandwidth-delay product."""
_FRAME = 1514
"""Bytes of a full frame; 1448 of them are a TCP stream's, 66 headers."""


class Question(Strict):
    """The file's content."""

    title: str
    question: str
    source: str = ""
    found: str = ""
    reading: str = ""
    measure: Literal["line", "failure", "delay"]
    sizes: tuple[int, ...]
    """Nodes of each network."""
    hops: tuple[int, ...] = ()
    """Over which a line's round trip and throughput are measured."""
    over: tuple[Literal["memlane", "bridge", "veth"], ...] = ("memlane",)
    """Kinds of links; over veth the nodes are namespaces, because a machine has no veth."""
    repeat: int = Field(default=1, ge=1, le=100)
    seconds: int = Field(default=5, ge=1, le=600)
    link: dict[str, Any] = {}
    """Of all links, as a topology's file states it."""
    routing: dict[str, Any] = {}
    """Likewise."""


Figure = tuple[str, float, str] | tuple[str, float, str, float | None]
"""A figure's name, its value, its unit, and the value in theory."""


@dataclass(frozen=True)
class Row:
    """One figure."""

    over: str
    size: int
    what: str
    value: float | None
    """None: it could not be had."""
    unit: str
    expected: float | None = None
    """The value in theory, where there is one."""
    why: str = ""
    """Why there is no value."""


def load(path: Path) -> Question:
    """Reads a file; raises with all its mistakes."""
    try:
        return Question.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise LabError(f"{path}: {told(error, Question)}") from error


def answer(question: Question, sizes: tuple[int, ...], over: tuple[str, ...], out: Path | None) -> list[Row]:
    """Measures; all rows so far are written after each figure, so that an interruption loses little."""
    rows: list[Row] = []
    for size, links in itertools.product(sizes or question.sizes, over or question.over):
        say(f"{question.title}: {counted(size, 'node')}, links over {links}")
        for row in _of_one(question, size, links):
            rows.append(row)
            if out:
                load_now = os.getloadavg()[0]
                document = {"question": question.model_dump(), "load": load_now, "rows": [asdict(row) for row in rows]}
                out.write_text(json.dumps(document, indent=2))
    return rows


def _of_one(question: Question, size: int, over: str) -> Iterator[Row]:
    """The figures of one network; where it fails, the last one says so."""
    try:
        for what, value, unit, *expected in _MEASURES[question.measure](question, size, over):
            yield Row(over, size, what, value, unit, expected[0] if expected else None)
    except LabError as error:
        say(f"{counted(size, 'node')} over {over}: {error}")
        yield Row(over, size, "failed", None, "", why=str(error))


def _up(question: Question, shape: str, size: int, over: str, *, wait: bool = True) -> nets.Upcoming:
    node = {"kind": "netns"} if over == "veth" else {}
    settings = Settings(node=node, link=question.link, routing=question.routing, over=over)
    return nets.up(shape, size, settings=settings, wait=wait)


def _line(question: Question, size: int, over: str) -> Iterator[Figure]:
    """Coming up, at rest, and over so many hops."""
    with _up(question, "line", size, over, wait=False) as net:
        net.wait_neighbours(120)
        yield "until booted", net.phases.booted, "s"
        yield "until neighbours", net.phases.neighbours, "s"
        net.wait_routes(300)
        net.wait_end_to_end()
        yield "until routes", net.phases.routes, "s"
        yield "until ping", net.phases.ping, "s"
        now = status.of(net)
        foreign = now["switch"]["memory"] - now["switch"]["own"]
        yield "memory a node", (sum(node["memory"] for node in now["nodes"]) + foreign) / size, "B"
        if now["switch"]["own"]:
            yield "memory of memlane", now["switch"]["own"], "B"
        yield "idle", _at_rest(net), "CPU"
        for hops in (hops for hops in question.hops if hops < size):
            yield from _across(net, hops, question.seconds)


def _at_rest(net: Net) -> float:
    """CPUs that an idle network takes."""

    def used() -> float:
        now = status.of(net, memory=False)
        return float(sum(node["cpu"] for node in now["nodes"]) + now["switch"]["cpu"])

    time.sleep(2)  # earlier commands have ended by then
    before, began = used(), time.monotonic()
    time.sleep(_IDLE)
    return (used() - before) / (time.monotonic() - began)


def _across(net: Net, hops: int, seconds: int) -> Iterator[Figure]:
    far = f"r{hops + 1}"
    yield f"round trip, {hops} hops", _round_trip(net, "r1", far), "s"
    yield f"TCP, {hops} hops", _throughput(net, "r1", far, seconds, "--length 1M"), "bit/s"


def _round_trip(net: Net, near: str, far: str) -> float:
    """Seconds, the median of twenty."""
    said = net[near].run(f"ping -c 20 -i 0.1 -W 10 {far}", timeout=120).check().stdout
    times = sorted(float(found) for found in re.findall(r"time=([\d.]+) ms", said))
    return times[len(times) // 2] / 1000


def _throughput(net: Net, near: str, far: str, seconds: int, options: str) -> float:
    """Bits a second that arrived."""
    # Answers come from the address that was asked.
    server = net[far].spawn(f"iperf3 --server --one-off --port 5300 --bind {net.plan.loopback(far)}")
    net[far].guest.wait_listening(5300)
    command = f"iperf3 --client {net.plan.loopback(far)} --port 5300 --time {seconds} --json {options}"
    report = json.loads(net[near].run(command, timeout=seconds + 120).check().stdout)
    server.wait(timeout=60)
    end = report["end"]
    if "--udp" in options:
        if "sum" not in end:
            raise LabError(f"iperf3 from {near} to {far} reports no sum: {report.get('error', '')}")
        total = end["sum"]
        return float(total["bits_per_second"] * (1 - total["lost_percent"] / 100))
    return float(end["sum_received"]["bits_per_second"])


def _failure(question: Question, size: int, over: str) -> Iterator[Figure]:
    """How long nothing comes round a ring when a link, then a node, on the way fails."""
    dead, hello = 4.0, 1.0
    far = f"r{size // 2}"
    with _up(question, "ring", size, over) as net:
        for _ in range(question.repeat):
            for what, fail, mend in (
                ("a link goes down", lambda: net.link("r2", "r3", up=False), lambda: net.link("r2", "r3", up=True)),
                ("a node dies", lambda: net.kill("r3"), lambda: net.start("r3")),
            ):
                yield what, _without_way(net, far, fail), "s", dead - hello / 2
                mend()
                net.wait_routes(300)
                _settle(net, far)


def _settle(net: Net, far: str) -> None:
    """Waits until the shorter way is used again."""
    deadline = time.monotonic() + 120
    while not _goes_by_r2(net, far):
        if time.monotonic() > deadline:
            raise Timeout(f"r1 does not use the shorter way to {far} again")
        time.sleep(0.2)


def _goes_by_r2(net: Net, far: str) -> bool:
    gateway = net.plan.interfaces["r2"][0].address()
    return f"via {gateway} " in net["r1"].run(f"ip route get {net.plan.loopback(far)}").stdout


def _without_way(net: Net, far: str, fail: Callable[[], object]) -> float:
    """Seconds between the last answer before the failure and the first after it."""
    pings = net["r1"].spawn(f"ping -D -i 0.02 -W 1 {far}")
    pings.wait_for_output("icmp_seq=20 ", timeout=30)
    fail()
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            time.sleep(0.5)
            times = [float(found) for found in re.findall(r"\[([\d.]+)\].*time=", pings.stdout)]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            if gaps and max(gaps) > 1 and times[-1] - times[gaps.index(max(gaps)) + 1] > 1:
                return max(gaps)
    finally:
        pings.kill()
    raise Timeout(f"{far} does not answer again")


def _delay(question: Question, size: int, over: str) -> Iterator[Figure]:
    """A line's round trip and throughput beside those that its delays and rates allow."""
    with _up(question, "line", size, over) as net:
        impairment = net.topology.links[0]
        delay = seconds(impairment.delay) if impairment.delay else 0.0
        rate = bits(impairment.rate) if impairment.rate else 0.0
        links, far = size - 1, f"r{size}"
        ping = 98 * 8 / rate if rate else 0.0
        whole, machines = _round_trip(net, "r1", far), _without_delay(net, far)
        yield "round trip of machines alone", machines, "s"
        yield "round trip", whole, "s", machines + links * 2 * (delay + ping)
        expected = rate * 1448 / _FRAME if rate else None
        # Where memory is small, Linux's limit for a socket is less than so long a line holds.
        net.exec(
            f"for s in tcp_rmem tcp_wmem; do echo '4096 131072 {_WINDOW}' >/proc/sys/net/ipv4/$s; done", ["r1", far]
        )
        for control in ("cubic", "bbr"):
            got = _throughput(net, "r1", far, question.seconds, f"--congestion {control} --omit 10")
            yield f"TCP {control}", got, "bit/s", expected
        if rate:
            got = _throughput(net, "r1", far, question.seconds, f"--udp --bitrate {1.2 * rate:.0f} --length 1472")
            yield "UDP", got, "bit/s", rate * 1472 / _FRAME


def _without_delay(net: Net, far: str) -> float:
    """The round trip that the machines themselves take: nothing impairs the links meanwhile."""
    for first, second in net.plan.ends:
        net.link(first.node, second.node, clear=True)
    try:
        return _round_trip(net, "r1", far)
    finally:
        for (first, second), link in zip(net.plan.ends, net.topology.links, strict=True):
            net.link(first.node, second.node, **link.impairment.model_dump(exclude_defaults=True))


_MEASURES: Mapping[str, Callable[[Question, int, str], Iterator[Figure]]] = {
    "line": _line,
    "failure": _failure,
    "delay": _delay,
}
