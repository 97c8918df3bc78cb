"""Claims: the meaning of each expectation of an experiment, variant by variant.

An expectation that means nothing is a mistake of the file: one about variants that there are none of, one that compares
a variant with itself, one that so few samples could never decide.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memlane_lab.common.counted import counted
from memlane_lab.experiment.experiment import Expectation, Experiment
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.statistics.stats import FEWEST

MOST_PRIMARY = 8
"""Endpoints that an experiment may name primary."""
ADVISED = 12
"""Rounds of an experiment with primary endpoints: so that one round on the other side does not undecide them all."""


@dataclass(frozen=True)
class Claim:
    """One expectation of one variant."""

    expectation: Expectation
    variant: Labels
    versus: Labels | None
    """The other variant's labels; None where the measure stands alone."""


def of(experiment: Experiment, variants: Sequence[Labels]) -> Iterator[Claim]:
    """All claims about these variants."""
    for expected in experiment.expect:
        yield from _of_one(experiment, expected, variants)


def about(experiment: Experiment, expected: Expectation, variants: Sequence[Labels]) -> bool:
    """Whether the expectation is about one of the variants, and all that it compares is among them."""
    found = list(_of_one(experiment, expected, variants))
    return bool(found) and all(claim.versus is None or claim.versus in variants for claim in found)


def advice(experiment: Experiment) -> str:
    """A warning where there are too few rounds for the primary endpoints; empty without one."""
    if not any(each.primary for each in experiment.expect) or experiment.repeat >= ADVISED:
        return ""
    rounds = counted(experiment.repeat, "round")
    return (
        f"{experiment.name}: {rounds} {'is' if experiment.repeat == 1 else 'are'} few for primary endpoints, which are "
        f"corrected for their number: take {ADVISED} or more (--repeat {ADVISED})"
    )


def mistakes(experiment: Experiment, variants: Sequence[Labels]) -> Iterator[str]:
    """Expectations that match no variant, in words."""
    primary = [claim for claim in of(experiment, variants) if claim.expectation.primary]
    if len(primary) > MOST_PRIMARY:
        yield f"expect: {len(primary)} primary endpoints, but more than {MOST_PRIMARY} cannot be decided together"
    if experiment.expect and experiment.repeat < FEWEST:
        yield f"repeat: an expectation needs at least {FEWEST} samples, so that an interval can be told"
    for number, expected in enumerate(experiment.expect):
        found = list(_of_one(experiment, expected, variants))
        if not found:
            yield f"expect.{number}: there is no variant {words(expected.where)}, or nothing to compare it with"
        for claim in found:
            if claim.versus is not None and claim.versus not in variants:
                yield f"expect.{number}: {words(claim.variant)} has no {words(claim.versus)} to be compared with"


def _of_one(experiment: Experiment, expected: Expectation, variants: Sequence[Labels]) -> Iterator[Claim]:
    for variant in variants:
        if matches(variant, expected.where):
            for versus in _others(experiment, expected, variant):
                if versus != variant:
                    yield Claim(expected, variant, versus)


def _others(experiment: Experiment, expected: Expectation, variant: Labels) -> Iterator[Labels | None]:
    if expected.alone:
        yield None
    elif expected.versus:
        yield variant | expected.versus
    elif experiment.compare in variant and variant[experiment.compare] not in experiment.baseline:
        for label in experiment.baseline:
            yield variant | {experiment.compare: label}


def matches(variant: Labels, where: Mapping[str, str]) -> bool:
    """Whether the variant has these labels."""
    return all(variant.get(name) == label for name, label in where.items())
