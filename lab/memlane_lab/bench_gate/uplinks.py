"""An uplink by AF_XDP against one by TAP and bridge, against the bar of its promise: `make bench-uplinks`.

```text
  machine -- segment left -- NIC ------------- veth pair ------------- NIC -- segment right -- machine
  machine -- segment left -- TAP -- bridge -- veth pair -- bridge -- TAP -- segment right -- machine
```

Each row is a blast of frames between two machines, in turn over both ways, one right beside the other. One worker
serves both segments.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from memlane_lab.bench_gate import rows, verdict
from memlane_lab.bench_gate.observe import Figure, Measurement, measured, options, pair
from memlane_lab.bench_gate.sides import Side

ROUNDS = 20
SEGMENTS = ("left", "right")
SIZES = {64: 1 / 1.5, 1514: 1.0}
"""Bytes of frames, and how much of the cost by TAP and bridge the cost by AF_XDP may be."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all; returns 0 if every figure is within, 1 if one is not, 3 if some are undecided, 2 on a fault."""
    parser = argparse.ArgumentParser(prog="bench-uplinks", description="What does an uplink by AF_XDP gain?")
    chosen = options(parser, arguments, rounds=ROUNDS, seconds=(0.5, "length of a blast"))

    def row(size: int, bar: float) -> tuple[str, Measurement]:
        name = f"{size} B by AF_XDP, of the cost by TAP"
        return name, lambda side, work: [_row(name, side, work, size, (chosen.rounds, chosen.seconds), bar)]

    return measured(parser.prog, dict(row(size, bar) for size, bar in SIZES.items()), chosen.only)


def _row(name: str, side: Side, work: Path, size: int, rounds: tuple[int, float], bar: float) -> Figure:
    count, seconds = rounds
    blast = rows.Blast(f"{size} B", "--sizes", f"{size}", "--window", "256")
    row = verdict.Row(name)
    tap, xdp = work / "tap", work / "xdp"
    with ExitStack() as stack:
        netns = stack.enter_context(rows.namespace())
        for folder in (tap, xdp):
            folder.mkdir()
        _ip(
            netns,
            "link add wire-left type veth peer name wire-right",
            "link add nic-left type veth peer name nic-right",
        )
        ports = [f"{place}\nsegment = '{segment}'" for place, segment in zip(pair(tap), SEGMENTS, strict=True)]
        taps = [f"tap = 'tap-{segment}'\nnetns = '{netns}'\nsegment = '{segment}'" for segment in SEGMENTS]
        stack.enter_context(rows.network(side, tap, [*ports, *taps]))
        for segment in SEGMENTS:
            bridge, ends = f"bridge-{segment}", (f"tap-{segment}", f"wire-{segment}")
            _ip(netns, f"link add {bridge} type bridge", f"link set {bridge} up")
            _ip(netns, *(f"link set {end} master {bridge} up" for end in ends), f"link set nic-{segment} up")
        ports = [f"{place}\nsegment = '{segment}'" for place, segment in zip(pair(xdp), SEGMENTS, strict=True)]
        nics = "".join(f"[[segment]]\nname = '{one}'\nnic = 'nic-{one}'\nnetns = '{netns}'\n" for one in SEGMENTS)
        stack.enter_context(rows.network(side, xdp, ports, tables=nics))
        for turn in range(count):
            costs = {each: blast.through(side, each, seconds) for each in ((tap, xdp), (xdp, tap))[turn % 2]}
            row.add(costs[tap], costs[xdp])
    return Figure(name, "x", verdict.judge(row, bar - 1).ratio, bar)


def _ip(netns: str, *commands: str) -> None:
    for command in commands:
        rows.execute(["ip", "-n", netns, *command.split()])


if __name__ == "__main__":
    sys.exit(main())
