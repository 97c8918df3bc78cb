"""Before a run begins: its number of rounds, and the smallest effect that so many rounds can tell, from a pilot.

The pilot is the newest published run of the experiment: the spread of its rounds' ratios, of each primary endpoint.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from memlane_lab.commands import published
from memlane_lab.common.counted import counted
from memlane_lab.experiment import claims
from memlane_lab.experiment.claims import Claim
from memlane_lab.experiment.labels import words
from memlane_lab.measuring.run import Planned
from memlane_lab.report import shown
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult
from memlane_lab.statistics import two_way
from memlane_lab.statistics.measures import significant

_FEWEST = 4
"""Rounds of a pilot of which a spread is told."""
_SMALL = 1.05
"""A ratio that users would not mind: the rounds that tell it are told, too."""


def sentences(planned: Sequence[Planned], folder: Path = published.FOLDER) -> Iterator[str]:
    """The effects that each experiment with primary endpoints can tell, one sentence an endpoint."""
    for each in planned:
        stated = each.experiment
        labels = [*(own.labels for own in each.variants), *(own.labels for own in each.missing)]
        asked = claims.of(stated, labels)
        primary = [claim for claim in asked if claim.expectation.primary and claim.versus]
        pilots = list(_pilots(stated.name, folder)) if primary else []
        for claim in primary:
            told = _told(claim, pilots, stated.repeat, len(primary))
            yield f"{stated.name}: {counted(stated.repeat, 'round')}; {told}"


def _pilots(name: str, folder: Path) -> Iterator[tuple[str, ExperimentResult]]:
    """The published runs of an experiment, the newest first."""
    runs = {str(file.parent.relative_to(folder)): file.parent for file in folder.glob("*/*/run.json")}
    with_it = {run: published.read(own) for run, own in runs.items() if (own / f"{name}.csv.gz").exists()}
    for run, _, results in shown.newest_first(with_it):
        yield from ((run, each) for each in results if each.experiment.name == name)


def _told(claim: Claim, pilots: Sequence[tuple[str, ExperimentResult]], rounds: int, endpoints: int) -> str:
    own, other = claim.variant, claim.versus or {}
    rival = words({name: label for name, label in other.items() if own.get(name) != label})
    what = f"{words(own)} by {rival}, {claim.expectation.measure}"
    with_it = ((run, found) for run, pilot in pilots if len(found := _logarithms(claim, pilot)) >= _FEWEST)
    if (pilot := next(with_it, None)) is None:
        return f"the smallest effect that they tell is unknown for {what}: no published run is a pilot"
    spread = statistics.stdev(pilot[1])
    effect = two_way.tellable(spread, rounds, endpoints)
    if math.isinf(effect):
        return f"too few to tell anything of {what}, beside {endpoints - 1} other primary endpoints"
    wanted = two_way.rounds_for(_SMALL, spread, endpoints)
    known = f"80 % power; spread {spread:.2g} in {pilot[0]}; {_SMALL:g} x would take {counted(wanted, 'round')}"
    return f"they tell {significant(effect)} x of {what} ({known})"


def _logarithms(claim: Claim, pilot: ExperimentResult) -> list[float]:
    known = summary.known(pilot)
    if claim.versus is None or claim.variant not in known or claim.versus not in known:
        return []
    ratios = summary.ratios(pilot, claim.expectation.measure, claim.variant, claim.versus)
    return [math.log(each) for each in ratios if each > 0]
