"""Variance by level: how much of a figure's spread comes from samples, boots, runs, days and builds.

After Kalibera and Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013): repetitions are nested, and the level
with the largest variance is the one to repeat. Components are those of the analysis of variance for nested data with
units of any size (Searle, Casella and McCulloch, Variance Components, 1992): the sum of squares of each level has an
expectation that is linear in the variances of this level and of all finer ones.
"""

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Unit = tuple[Hashable, ...]
"""A unit of a level: its own name behind the names of the units around it."""


@dataclass(frozen=True)
class Level:
    """One level, or several that the data cannot tell apart."""

    name: str
    variance: float | None
    """Of one unit of this level within the unit around it, never below 0; None where the data cannot tell."""
    freedom: int
    """Degrees of freedom that the variance rests on."""

    @property
    def deviation(self) -> float | None:
        """The standard deviation."""
        return None if self.variance is None else math.sqrt(self.variance)


def components(names: Sequence[str], observed: Sequence[tuple[Unit, float]]) -> list[Level]:
    """The variance of each level, the coarsest first.

    `names` are those of the levels, the last that of single values; the unit of a value has a name for each level but
    that one. A level whose units hold one finer unit each is told together with that finer level.
    """
    depth = len(names)
    units = [(*unit, number) for number, (unit, _) in enumerate(observed)]
    values = [value for _, value in observed]
    if any(len(unit) != depth for unit in units):
        raise ValueError("a unit needs a name for each level but the last")
    groups = [_grouped(units, size) for size in range(depth + 1)]  # groups[0]: all of them
    freedom = [len(groups[size]) - len(groups[size - 1]) for size in range(1, depth + 1)]
    raw: list[float | None] = [None] * depth
    for level in reversed(range(depth)):
        if freedom[level]:
            known = sum(
                _weight(groups, level, finer) * (raw[finer] or 0.0) for finer in range(level + 1, depth) if raw[finer]
            )
            raw[level] = (_squares(groups, values, level) - known) / _weight(groups, level, level)
    return _told(names, raw, freedom)


def _grouped(units: Sequence[Unit], size: int) -> dict[Unit, list[int]]:
    """The numbers of the values in each unit of that depth."""
    found: dict[Unit, list[int]] = {}
    for number, unit in enumerate(units):
        found.setdefault(unit[:size], []).append(number)
    return found


def _squares(groups: Sequence[dict[Unit, list[int]]], values: Sequence[float], level: int) -> float:
    """The sum of squares of a level: each unit's mean by the mean of the unit around it."""

    def mean(members: Sequence[int]) -> float:
        return statistics.fmean(values[number] for number in members)

    around = {unit: mean(members) for unit, members in groups[level].items()}
    return sum(
        len(members) * (mean(members) - around[unit[:level]]) ** 2 for unit, members in groups[level + 1].items()
    )


def _weight(groups: Sequence[dict[Unit, list[int]]], level: int, finer: int) -> float:
    """How often the variance of the level `finer` is in the expected sum of squares of `level`."""

    def part(size: int) -> float:
        own, inner = groups[size], groups[finer + 1]
        return sum(len(members) ** 2 / len(own[unit[:size]]) for unit, members in inner.items())

    return part(level + 1) - part(level)


def _told(names: Sequence[str], raw: Sequence[float | None], freedom: Sequence[int]) -> list[Level]:
    told: list[Level] = []
    for name, variance, free in zip(names, raw, freedom, strict=True):
        if told and not free:
            told[-1] = Level(f"{told[-1].name} and {name}", told[-1].variance, told[-1].freedom)
        else:
            told.append(Level(name, None if variance is None else max(0.0, variance), free))
    return told


def repetitions(levels: Sequence[Level], cost: float = 1.0) -> int | None:
    """Single values that pay within a unit of the next level, by the rule of Kalibera and Jones.

    `cost`: of one more such unit, in those of a value. None where coarser levels have no variance, or it is unknown:
    then further values always pay.
    """
    finest, above = levels[-1].variance, levels[-2].variance if len(levels) > 1 else None
    if finest is None or not above:
        return None
    return max(1, math.ceil(math.sqrt(cost * finest / above)))
