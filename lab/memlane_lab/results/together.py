"""Verdicts by all samples together: the two-way analysis of a ratio, beside the paired median that is judged."""

from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.results.summary import Verdict
from memlane_lab.statistics import two_way
from memlane_lab.statistics.measures import OTHERS
from memlane_lab.statistics.two_way import Effect, Taken


def effect(result: ExperimentResult, verdict: Verdict) -> Effect | None:
    """The ratio that a verdict judges, by the samples of all variants that stand beside the two; None without one."""
    claim, compared = verdict.claim, result.experiment.compare
    if claim.versus is None:
        return None
    group = {name: label for name, label in claim.variant.items() if name != compared}
    measure, places = claim.expectation.measure, _places(result)
    names = {tuple(sorted(each.labels.items())): each.name for each in result.variants}
    one, other = (names.get(tuple(sorted(labels.items()))) for labels in (claim.variant, claim.versus))
    if one is None or other is None:
        return None
    taken = [
        Taken(sample.round, sample.variant, places[sample.number], _others(sample), sample.values[measure])
        for sample in result.good
        if measure in sample.values
        and (sample.variant in {one, other} or all(sample.labels.get(name) == label for name, label in group.items()))
    ]
    return two_way.effect(taken, one, other)


def _others(sample: Sample) -> float:
    return max(0.0, sample.values.get(OTHERS.name, 0.0))


def _places(result: ExperimentResult) -> dict[int, int]:
    """By number of the sample: its place in the order of its round."""
    rounds: dict[int, list[int]] = {}
    for sample in sorted(result.samples, key=lambda each: each.number):
        rounds.setdefault(sample.round, []).append(sample.number)
    return {number: place for numbers in rounds.values() for place, number in enumerate(numbers)}
