"""The cost of rules about addresses, and of a large segment, against the bars of its promises: `make bench-addresses`.

Each row is a blast of 64-byte frames between two machines, in turn through a plain network and through one with the
rules, one right beside the other.
"""

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from memlane_lab.bench_gate import rows, verdict
from memlane_lab.bench_gate.observe import Figure, Measurement, measured, options, pair
from memlane_lab.bench_gate.sides import Side
from memlane_lab.common.errors import LabError
from memlane_lab.statistics import stats

ROUNDS = 20
RULES = 100
MACHINES = 10_000
PREFIXES = 10_000
FLOWS = 1000
MANY_NAME = f"64 B of {FLOWS} flows in turn, {PREFIXES} prefixes"
PORTS = 40
"""Ports behind which the other machines are: a port may have 1024 MAC and 256 IP addresses."""
_PATIENCE = 60.0
"""Seconds until the switch knows all machines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all; returns 0 if every figure is within, 1 if one is not, 3 if some are undecided, 2 on a fault."""
    parser = argparse.ArgumentParser(prog="bench-addresses", description="What do rules about addresses cost?")
    chosen = options(parser, arguments, rounds=ROUNDS, seconds=(0.25, "length of a blast"))

    def row(name: str, ports: Callable[[Path], list[str]], tables: str, bar: float) -> tuple[str, Measurement]:
        return name, lambda side, work: [_row(name, side, work, (ports, tables), (chosen.rounds, chosen.seconds), bar)]

    return measured(
        parser.prog,
        dict(
            [
                row("64 B with anti-spoof", _guarded, "", 1 / 0.95),
                row(f"64 B with a policy of {RULES} rules", pair, _policy(), 1 / 0.95),
                row(f"64 B between two of {MACHINES} machines", _with_others, "", 1.3),
            ]
        )
        | {MANY_NAME: lambda side, work: [_in_turn(side, work, chosen.rounds, chosen.seconds)]},
        chosen.only,
    )


def _row(
    name: str,
    side: Side,
    work: Path,
    network: tuple[Callable[[Path], list[str]], str],
    rounds: tuple[int, float],
    bar: float,
) -> Figure:
    """How many times the cost in the plain network a frame costs in the other one."""
    row = _costs(name, side, work, network, rounds, rows.Blast("64 B", "--sizes", "64"))
    return Figure(name, "x", verdict.judge(row, bar - 1).ratio, bar)


def _in_turn(side: Side, work: Path, count: int, seconds: float) -> Figure:
    """The nanoseconds of the switch that a frame costs more by prefixes and a default, each frame of another flow.

    The blast's own rate is that of its generator here.
    """
    blast = _SwitchTime("64 B", "--sizes", "64", "--flows", str(FLOWS))
    row = _costs(MANY_NAME, side, work, (pair, _prefixes()), (count, seconds), blast)
    more = [new - old for old, new in zip(row.old, row.new, strict=True)]
    return Figure(MANY_NAME, "ns", stats.median(more), 100.0)


class _SwitchTime(rows.Blast):
    """As a blast; the cost is the time that the switch's workers spend on a frame."""

    def through(self, side: Side, work: Path, seconds: float) -> float:
        begun = _spent(side, work)
        super().through(side, work, seconds)
        frames, spent = (after - before for after, before in zip(_spent(side, work), begun, strict=True))
        if not frames:
            raise LabError("the switch carried no frame of the blast")
        return spent / frames


def _spent(side: Side, work: Path) -> tuple[int, float]:
    """Frames that all ports transmitted, and the nanoseconds that workers spent on them."""
    status = json.loads(
        rows.execute([side.programs["memlane"], "status", "--json", "--control", work / "control.sock"])
    )
    frames, cycles = (sum(port[key] for port in status["ports"]) for key in ("transmit-frames", "cycles"))
    return frames, 1e9 * cycles / status["cycles-per-second"]


def _costs(
    name: str,
    side: Side,
    work: Path,
    network: tuple[Callable[[Path], list[str]], str],
    rounds: tuple[int, float],
    blast: rows.Blast,
) -> verdict.Row:
    """The costs of a frame in the plain network and in the other one, by rounds."""
    (ports, tables), (count, seconds) = network, rounds
    row = verdict.Row(name)
    plain, other = work / "plain", work / "other"
    plain.mkdir()
    other.mkdir()
    with ExitStack() as stack:
        stack.enter_context(rows.network(side, plain, pair(plain)))
        stack.enter_context(rows.network(side, other, ports(other), tables=tables))
        if ports is _with_others:
            stack.enter_context(_others(side, other))
        for turn in range(count):
            costs = {each: blast.through(side, each, seconds) for each in ((plain, other), (other, plain))[turn % 2]}
            row.add(costs[plain], costs[other])
    return row


def _guarded(work: Path) -> list[str]:
    """Ports that allow the addresses of the blast's machines only."""
    identity = [f"mac = '02:00:00:00:00:0{n}'\naddresses = ['10.0.0.{n}']\nanti-spoof = 'all'" for n in (1, 2)]
    return [f"{port}\n{keys}" for port, keys in zip(pair(work), identity, strict=True)]


def _policy() -> str:
    """Rules of which the last one allows the blast's frames, and those before are about other ports of UDP."""
    others = [f"[[policy]]\nprotocol = 'udp'\nports = [{n}]\naction = 'deny'\n" for n in range(1, RULES)]
    return "".join([*others, "[[policy]]\nprotocol = 'udp'\naction = 'allow'\n"])


def _prefixes() -> str:
    """A default that refuses, and prefixes that do not touch, of which the last one has the blast's machines."""
    others = [f"'198.{18 + n // 128 // 256}.{n // 128 % 256}.{n % 128 * 2}/32'" for n in range(PREFIXES - 1)]
    prefixes = ", ".join([*others, "'10.0.0.0/24'"])
    return f"[[policy]]\ndestinations = [{prefixes}]\naction = 'allow'\n[[policy]]\ndefault = 'deny'\nsegment = 'lan'\n"


def _with_others(work: Path) -> list[str]:
    return [*pair(work), *(f"stream = '{work}/other{n}.sock'" for n in range(PORTS))]


@contextmanager
def _others(side: Side, work: Path) -> Iterator[None]:
    """Further machines, each of which announces its address once; begins when the switch knows all of them."""
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(PORTS)]
        for port, connection in enumerate(connections):
            connection.connect(str(work / f"other{port}.sock"))
            for number in range(MACHINES // PORTS):
                frame = _announcement(port, number)
                connection.sendall(len(frame).to_bytes(4, "big") + frame)
        end, wanted = time.monotonic() + _PATIENCE, MACHINES // PORTS * PORTS
        while min(known := _known(side, work)) < wanted:
            if time.monotonic() > end:
                raise LabError(f"of {wanted} machines, the switch knows {known[0]} MAC and {known[1]} IP addresses")
            _drain(connections)
        yield


def _asked(side: Side, work: Path, command: str) -> str:
    """The answer of a network to a command, as JSON."""
    return rows.execute([side.programs["memlane"], command, "--json", "--control", work / "control.sock"])


def _known(side: Side, work: Path) -> tuple[int, int]:
    """MAC and IP addresses that the switch has learned."""
    status, addresses = (json.loads(_asked(side, work, command)) for command in ("status", "addresses"))
    return sum(port["learned-addresses"] for port in status["ports"]), len(addresses[0]["addresses"])


def _drain(connections: Sequence[socket.socket]) -> None:
    """Reads the announcements of others, so that no machine is a stalled receiver."""
    for connection in connections:
        with suppress(BlockingIOError):
            while connection.recv(1 << 16, socket.MSG_DONTWAIT):
                pass


def _announcement(port: int, number: int) -> bytes:
    """An ARP announcement (RFC 5227)."""
    mac, address = bytes([2, 1, 0, port, *number.to_bytes(2, "big")]), bytes([10, 1 + port, *number.to_bytes(2, "big")])
    head = b"\xff" * 6 + mac + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, 1])
    return head + mac + address + bytes(6) + address + bytes(18)


if __name__ == "__main__":
    sys.exit(main())
