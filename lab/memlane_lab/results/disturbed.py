"""Samples beside other work of the machine: more than a tenth of a CPU meanwhile.

The reading is a measure of its own (`others`), which the two-way analysis has as a covariate.
"""

from collections.abc import Iterable

from memlane_lab.common.counted import counted
from memlane_lab.results.results import Sample
from memlane_lab.statistics.measures import OTHERS, TAKEN_AGAIN

QUIET = 0.1
"""CPUs that other work may take beside a sample."""


def disturbed(sample: Sample) -> bool:
    """Whether other work took too much; no, of failed samples and of those without that reading."""
    return sample.error is None and sample.values.get(OTHERS.name, 0.0) > QUIET


def told(samples: Iterable[Sample]) -> str:
    """How many samples are disturbed, and how many were taken again, in words; empty where no reading is known."""
    known = [each for each in samples if OTHERS.name in each.values]
    if not known:
        return ""
    said = f"more than {QUIET:g} beside {sum(map(disturbed, known))} of {counted(len(known), 'sample')}"
    again = sum(TAKEN_AGAIN.name in each.values for each in known)
    return f"{said}, {again} of them taken again" if again else said
