"""Disturbed samples (`results/disturbed.py`) are taken again, by their reading of other work alone.

That is decided before any value of a sample is stored or shown, so that no value can be chosen. A sample is taken again
twice at most; the last one is kept, even if disturbed, with the number of those before it (`taken_again`).
"""

from collections.abc import Callable

from memlane_lab.common.progress import say
from memlane_lab.results.disturbed import disturbed
from memlane_lab.results.results import Sample
from memlane_lab.statistics.measures import OTHERS, TAKEN_AGAIN, significant

MOST = 2
"""Times that a sample is taken again."""


def undisturbed(take: Callable[[], Sample], most: int) -> Sample:
    """The first sample that is not disturbed, or else the last of `most` further ones."""
    sample = take()
    for again in range(1, most + 1):
        if not disturbed(sample):
            break
        reading = significant(sample.values[OTHERS.name], 2)
        say(f"  {sample.variant}: taken again, because other work took {reading} CPUs meanwhile")
        sample = take()
        if sample.error is None:
            sample = sample.model_copy(update={"values": sample.values | {TAKEN_AGAIN.name: float(again)}})
    return sample
