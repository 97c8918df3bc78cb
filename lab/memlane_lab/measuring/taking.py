"""Parts that all samples share: times, the placement of the host's CPUs, and the error of one that failed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from memlane_lab.common import errors
from memlane_lab.experiment.plan import Turn
from memlane_lab.meters import placement
from memlane_lab.meters.account import Account
from memlane_lab.results.results import FlowRecord, Sample


@dataclass(frozen=True)
class Measured:
    """The figures of a sample."""

    account: Account = field(default_factory=lambda: Account({}, {}))
    flows: list[FlowRecord] = field(default_factory=list)


def take(
    turn: Turn, number: int, measure: Callable[[], Measured], probe: Callable[[], str] = placement.probe
) -> Sample:
    """The sample with the figures of `measure`, or its error; `probe` tells the placement before and after.

    Any error fails this sample alone: paths, guests and workloads may be plugins, and other samples are none the worse.
    """
    began, clock, before = datetime.now(UTC), time.monotonic(), probe()
    measured, error = Measured(), None
    try:
        measured = measure()
    except Exception as fault:
        error = errors.told(fault)
    after = probe()
    return Sample(
        number=number,
        round=turn.round,
        variant=turn.variant.name,
        labels=turn.variant.labels,
        began=began.isoformat(timespec="seconds"),
        took=time.monotonic() - clock,
        placement=placement.of_sample(before, after),
        placements=(before, after),
        values=measured.account.values,
        parties=measured.account.parties,
        drops=measured.account.drops,
        flows=measured.flows,
        error=error,
    )
