"""Like with like: which samples of variants that stand side by side may be compared.

Samples are taken in **rounds**, each variant once a round, and compared within rounds. Where the
host's processors were (near, far) decides so much that a round counts in full only if its samples were of one
placement. So a **group** of variants is judged by the rounds of the placement that has most of them; where it has too
few, by all rounds, and the report says so.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memlane_lab.meters import placement
from memlane_lab.results.results import Sample
from memlane_lab.statistics.stats import FEWEST

MIXED = "mixed"

BY_VARIANT = Mapping[str, Sequence[Sample]]
"""The good samples of a group's variants."""


@dataclass(frozen=True)
class Chosen:
    """The samples that are compared."""

    placement: str
    """The placement that they have in common, or "mixed"."""
    samples: dict[str, list[Sample]]
    """By variant; sample number i of each is of the same round, unless the choice was `apart`."""


def rounds(group: BY_VARIANT) -> Chosen:
    """The rounds in which every variant has a good sample: those of one placement, if there are enough."""
    whole = _whole(group)
    place, count = _leading(whole)
    if place is None or count < min(FEWEST, len(whole)):
        return _chosen(MIXED, group, whole)
    return _chosen(place, group, [each for each in whole if _place(each) == place])


def apart(group: BY_VARIANT) -> Chosen:
    """Samples of variants that share no rounds: those of the placement of which each has enough, or all."""
    places = {sample.placement for samples in group.values() for sample in samples} - {placement.MOVED}
    fewest = {place: min(len(_of(samples, place)) for samples in group.values()) for place in sorted(places)}
    place = max(fewest, key=lambda name: fewest[name], default=None)
    if place is None or fewest[place] < min(FEWEST, *(len(samples) for samples in group.values())):
        return Chosen(MIXED, {name: list(samples) for name, samples in group.items()})
    return Chosen(place, {name: _of(samples, place) for name, samples in group.items()})


def lacking(group: BY_VARIANT, wanted: int) -> int:
    """How many rounds the group lacks in its leading placement; variants without a good sample are given up."""
    present = {name: samples for name, samples in group.items() if samples}
    return max(0, wanted - _leading(_whole(present))[1]) if present else 0


def _whole(group: BY_VARIANT) -> list[dict[str, Sample]]:
    """The rounds in which all have a sample, in their order."""
    found: dict[int, dict[str, Sample]] = defaultdict(dict)
    for name, samples in group.items():
        for sample in samples:
            found[sample.round][name] = sample
    return [found[number] for number in sorted(found) if len(found[number]) == len(group)]


def _place(samples: Mapping[str, Sample]) -> str:
    """The placement that a round's samples have in common."""
    places = {sample.placement for sample in samples.values()}
    return places.pop() if len(places) == 1 else placement.MOVED


def _leading(whole: Sequence[Mapping[str, Sample]]) -> tuple[str | None, int]:
    """The placement of most rounds, and how many they are."""
    counts = Counter(sorted(place for each in whole if (place := _place(each)) != placement.MOVED))
    return counts.most_common(1)[0] if counts else (None, 0)


def _chosen(place: str, group: BY_VARIANT, taken: Sequence[Mapping[str, Sample]]) -> Chosen:
    return Chosen(place, {name: [each[name] for each in taken] for name in group})


def _of(samples: Sequence[Sample], place: str) -> list[Sample]:
    return [sample for sample in samples if sample.placement == place]
