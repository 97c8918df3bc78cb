"""The command: `python -m memlane_lab.bench_gate COMMIT`."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from memlane_lab.bench_gate import rows, sides, verdict
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import bar, say, tell
from memlane_lab.statistics.stats import FEWEST

ROUNDS = 40
"""Many short rounds: what disturbs both sides of a shared machine changes between rounds, not within one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the gate; returns its exit code, 2 if it could not run."""
    parser = argparse.ArgumentParser(prog="bench-gate", description="Is this tree slower than COMMIT?")
    parser.add_argument("commit", help="the commit to compare with, as git names it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each side (default: {ROUNDS})")
    parser.add_argument("--percent", type=float, default=2.0, help="largest tolerated slowdown of a row (default: 2)")
    parser.add_argument("--seconds", type=float, default=0.25, help="length of one measurement (default: 0.25)")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--build", action="store_true", help="only build both sides")
    step.add_argument("--built", action="store_true", help="run the programs that --build has built")
    parser.add_argument("--only", metavar="WORD", help="only the rows that have WORD in their names")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < FEWEST:
        parser.error(f"fewer than {FEWEST} rounds have no interval")
    try:
        old, new = sides.commit(chosen.commit), sides.built_here() if chosen.built else sides.here()
        if chosen.build:
            return 0
        # A change of the generator of traffic is no change of the switch.
        measured = measure(old.with_rig_of(new), new, chosen.rounds, chosen.seconds, chosen.only)
        judged = [verdict.judge(row, chosen.percent / 100) for row in measured]
    except LabError as error:
        say(f"bench-gate: {error}")
        return 2
    tell(verdict.table(judged))
    return verdict.exit_code(judged)


def measure(old: sides.Side, new: sides.Side, rounds: int, seconds: float, only: str | None) -> list[verdict.Row]:
    """Runs both sides `rounds` times: each program of one right beside the other's, and first in every other round."""
    chosen = [one for one in rows.ALL if only is None or only in one.name]
    if not chosen:
        raise LabError(f"no row has {only!r} in its name: {', '.join(one.name for one in rows.ALL)}")
    measured: dict[str, verdict.Row] = {}
    with bar("bench-gate", rounds * len(chosen)) as done, tempfile.TemporaryDirectory() as work:
        for turn in range(rounds):
            for place, one in enumerate(chosen):
                order = (old, new) if turn % 2 == 0 else (new, old)
                costs = {side: one.run(side, Path(work), seconds) for side in order}
                # A bench that one side lacks has nothing beside it.
                for name in costs[old].keys() & costs[new].keys():
                    measured.setdefault(name, verdict.Row(name)).add(costs[old][name], costs[new][name])
                done(turn * len(chosen) + place + 1)
    return [measured[name] for name in sorted(measured)]


if __name__ == "__main__":
    sys.exit(main())
