"""Costs: parts of a profile, per KB or per packet, with the error that sampling makes.

A function hit n times was hit by chance n times of many more opportunities, so n is Poisson's: the interval is the
exact one (Garwood 1936), scaled like the cost itself. It holds the truth in 95 % of all cases as far as chance of
sampling goes; the difference between rounds is told apart, as the smallest and the largest round.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memlane_lab.common.errors import LabError
from memlane_lab.profiling.profile import Part, Profiled

CONFIDENCE = 0.95
BY: dict[str, Callable[[Part], str]] = {
    "stage": lambda part: part.stage,
    "party": lambda part: str(part.party),
    "both": lambda part: f"{part.party}: {part.stage}",
    "function": lambda part: f"{part.party}: {part.function}",
}
"""Keys by which parts are put together."""


@dataclass(frozen=True)
class Cost:
    """The cost of a part, or of all of them, per unit of work."""

    hits: int
    value: float
    """In ns (or cycles) per unit of work, all rounds together."""
    low: float
    high: float
    """The bounds of the error of sampling."""
    rounds: tuple[float, ...]
    """The same of each sample by itself."""


def units(samples: Iterable[Profiled]) -> list[str]:
    """The units of work that all samples have, the best first."""
    told = [set(sample.per) for sample in samples]
    shared = set.intersection(*told) if told else set()
    return [unit for unit in ("KB", "packet", "exchange", "interaction", "second") if unit in shared]


def of(samples: Sequence[Profiled], by: str, unit: str) -> dict[str, Cost]:
    """The costs of one variant's samples, by `by` (see `BY`), for one `unit` of work."""
    work = [sample.seconds * _rate(sample, unit) for sample in samples]
    hits: dict[str, int] = defaultdict(int)
    rounds: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(samples))
    for at, sample in enumerate(samples):
        for part in sample.own:
            hits[BY[by](part)] += part.hits
            rounds[BY[by](part)][at] += part.cost
    return {name: _cost(hits[name], spent, work) for name, spent in rounds.items()}


def whole(samples: Sequence[Profiled], unit: str) -> Cost:
    """All of it."""
    work = [sample.seconds * _rate(sample, unit) for sample in samples]
    spent = [sum(part.cost for part in sample.own) for sample in samples]
    return _cost(sum(part.hits for sample in samples for part in sample.own), spent, work)


def _rate(sample: Profiled, unit: str) -> float:
    if rate := sample.per.get(unit):
        return rate
    raise LabError(
        f"{sample.variant} does not tell how many units of {unit!r} it did; it tells: {', '.join(sample.per)}"
    )


def _cost(hits: int, spent: Sequence[float], work: Sequence[float]) -> Cost:
    value = sum(spent) / sum(work)
    low, high = poisson(hits)
    return Cost(
        hits=hits,
        value=value,
        low=value * low / hits if hits else 0.0,
        high=value * high / hits if hits else 0.0,
        rounds=tuple(one / done for one, done in zip(spent, work, strict=True)),
    )


def poisson(hits: int) -> tuple[float, float]:
    """The bounds between which the mean lies of which so many hits came."""
    from scipy.stats import chi2

    tail = (1 - CONFIDENCE) / 2
    low = float(chi2.ppf(tail, 2 * hits)) / 2 if hits else 0.0
    return low, float(chi2.ppf(1 - tail, 2 * hits + 2)) / 2
