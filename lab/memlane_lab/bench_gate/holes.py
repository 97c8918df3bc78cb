"""A pair of guests beside a hostile one whose frames lie in holes of its memory: `make bench-holes`.

Each round measures the pair's 99th percentile of one-way latency beside frames of 60 KB that lie in memory, and beside
the same frames in holes, one right after the other. All guests share one worker.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from memlane_lab.bench_gate import rows, verdict
from memlane_lab.bench_gate.observe import Figure, measured, options, pair
from memlane_lab.bench_gate.sides import Side

ROUNDS = 20
BAR = 1.5
"""How many times as late a frame of the pair may be beside holes."""
_PACED = ("--pattern", "one-way", "--sizes", "64", "--rate-pps", "5k")
_HOSTILE = ("--pattern", "one-way", "--sizes", "60000", "--tso", "1448")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures it; returns 0 if the figure is within, 1 if it is not, 3 if it is undecided, 2 on a fault."""
    parser = argparse.ArgumentParser(prog="bench-holes", description="What do holes of one guest cost others?")
    chosen = options(parser, arguments, rounds=ROUNDS, seconds=(1.0, "length of a blast"))
    return measured(
        parser.prog, {"holes": lambda side, work: [_late(side, work, chosen.rounds, chosen.seconds)]}, chosen.only
    )


def _late(side: Side, work: Path, rounds: int, seconds: float) -> Figure:
    name = "99th percentile of a pair beside holes"
    row = verdict.Row(name)
    # In a segment of their own: their MAC addresses are those of the pair.
    others = (f"vhost-user = '{work}/{name}.sock'\nsegment = 'others'" for name in ("hostile", "sink"))
    with rows.network(side, work, [*pair(work), *others]):
        for turn in range(rounds):
            late = {}
            for holes in (False, True) if turn % 2 == 0 else (True, False):
                with _hostile(side, work, holes=holes):
                    late[holes] = _percentile(side, work, seconds)
            row.add(late[False], late[True])
    return Figure(name, "x", verdict.judge(row, BAR - 1).ratio, BAR)


@contextmanager
def _hostile(side: Side, work: Path, *, holes: bool) -> Iterator[None]:
    """Frames of 60 KB as fast as they go, in the rest that the pair leaves of its CPU."""
    places = ("--port", f"vu:{work}/hostile.sock", "--port", f"vu:{work}/sink.sock")
    command: list[str | Path] = [side.programs["memlane-rig"], "blast", *_HOSTILE, *places, "--seconds", "3600"]
    hostile = subprocess.Popen(
        [*command, *(["--holes"] if holes else [])],
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.nice(19),
    )
    try:
        yield
    finally:
        hostile.terminate()
        hostile.wait()


def _percentile(side: Side, work: Path, seconds: float) -> float:
    """Microseconds."""
    places = ("--port", f"vu:{work}/a.sock", "--port", f"vu:{work}/b.sock")
    shared = ("--json", "--seconds", f"{seconds:g}", "--warm-up", "0.5")
    report = json.loads(rows.execute([side.programs["memlane-rig"], "blast", *shared, *_PACED, *places]))
    return float(report["latency_us"]["p99"])


if __name__ == "__main__":
    sys.exit(main())
