"""Like with like: which samples of variants that stand side by side are compared.

Samples are taken in **rounds**, each variant once a round, and compared within rounds: all rounds in which every
variant has a good sample. Where the host's processors were (near, far) is noted with each sample. The rounds of the
placement that most of them have are a **sensitivity**: the same ratio once more, beside the one that is judged.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memlane_lab.meters import placement
from memlane_lab.results.results import Sample

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
    """All rounds in which every variant has a good sample."""
    whole = _whole(group)
    return _chosen(_common(_place(each) for each in whole), group, whole)


def of_one_placement(group: BY_VARIANT) -> Chosen | None:
    """The rounds of the placement that most of them have; None where that is all of them, or none."""
    whole = _whole(group)
    counts = Counter(sorted(place for each in whole if (place := _place(each)) != placement.MOVED))
    if not counts or counts.total() == 0:
        return None
    place, count = counts.most_common(1)[0]
    return _chosen(place, group, [each for each in whole if _place(each) == place]) if count < len(whole) else None


def common_placement(samples: Iterable[Sample]) -> str:
    """The placement of all these samples, or "mixed"."""
    return _common(sample.placement for sample in samples)


def _common(places: Iterable[str]) -> str:
    found = set(places)
    return found.pop() if len(found) == 1 and placement.MOVED not in found else MIXED


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


def _chosen(place: str, group: BY_VARIANT, taken: Sequence[Mapping[str, Sample]]) -> Chosen:
    return Chosen(place, {name: [each[name] for each in taken] for name in group})
