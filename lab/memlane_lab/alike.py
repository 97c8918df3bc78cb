"""Like with like: which samples of variants that stand side by side may be compared.

Where the host's processors were (near, far) decides so much that samples of one placement say nothing about samples
of another. So a **group** of variants that are compared is judged by the samples of the one placement of which each
variant has enough; where there is none, by all samples, and the report says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memlane_lab.meters import placement
from memlane_lab.results import Sample

ENOUGH = 3
"""Samples of each variant in one placement; fewer, and all samples are compared."""
MIXED = "mixed"

BY_VARIANT = Mapping[str, Sequence[Sample]]
"""The good samples of a group's variants."""


@dataclass(frozen=True)
class Chosen:
    """The samples that are compared."""

    placement: str
    """The placement that they have in common, or "mixed"."""
    samples: dict[str, list[Sample]]


def leading(group: BY_VARIANT) -> str | None:
    """The placement that serves the group best: its rarest variant has most samples there."""
    places = {sample.placement for samples in group.values() for sample in samples} - {placement.MOVED}
    counts = {place: _counts(group, place) for place in sorted(places)}
    return max(counts, key=lambda place: (min(counts[place]), sum(counts[place])), default=None)


def choose(group: BY_VARIANT) -> Chosen:
    """The group's samples that are alike, or all of them."""
    present = {name: samples for name, samples in group.items() if samples}
    place = leading(present)
    enough = min(ENOUGH, *(len(samples) for samples in present.values())) if present else 0
    if place is not None and min(_counts(present, place)) >= enough:
        return Chosen(place, {name: _of(samples, place) for name, samples in group.items()})
    return Chosen(MIXED, {name: list(samples) for name, samples in group.items()})


def lacking(group: BY_VARIANT, wanted: int) -> dict[str, int]:
    """How many samples in the leading placement each variant lacks; a variant without any good sample is given up."""
    present = {name: samples for name, samples in group.items() if samples}
    place = leading(present)
    have = {name: len(_of(samples, place)) for name, samples in present.items()}
    return {name: wanted - count for name, count in have.items() if count < wanted}


def _of(samples: Sequence[Sample], place: str | None) -> list[Sample]:
    return [sample for sample in samples if sample.placement == place]


def _counts(group: BY_VARIANT, place: str) -> list[int]:
    return [len(_of(samples, place)) for samples in group.values()]
