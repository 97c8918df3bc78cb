"""Each guest's own account, read over its control channel, all guests at a time.

A guest that is hard at work may take its time to answer. It is waited for after the measured part, not in it; if its
answer is too old or too late to be of that part, only this guest's rows are left out.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from memlane_lab.common.errors import LabError
from memlane_lab.guests import Guest
from memlane_lab.meters import reading
from memlane_lab.meters.reading import Reading

LOSSES = {"discards": "Ip.OutDiscards", "unassembled": "Ip.ReasmFails", "overflows": "Udp.RcvbufErrors"}
"""Where datagrams get lost inside guests, in the order in which they might: by the guest's own counters."""
_SLACK = 0.25
"""Of the measured part, within which a guest must have answered for its figures to be of that part."""


@dataclass(frozen=True)
class Asked:
    """A question that guests have been asked, and may not have answered yet."""

    answers: dict[str, "Future[Reading]"]
    """By guest."""

    def wait(self) -> None:
        """Waits until all have answered."""
        wait(self.answers.values())


def ask(guests: Sequence[Guest]) -> Asked:
    """Asks every guest for its counters; returns at once."""
    asking = ThreadPoolExecutor(max_workers=len(guests))
    answers = {guest.name: asking.submit(reading.take, partial(_counts, guest)) for guest in guests}
    asking.shutdown(wait=False)
    return Asked(answers)


def rates(before: Asked, after: Asked, seconds: float) -> dict[str, Mapping[str, float] | None]:
    """Each guest's rates over a measured part of so many seconds, or None if it has not answered in time."""
    return {name: _rates(before.answers[name], answer, seconds) for name, answer in after.answers.items()}


def _rates(before: "Future[Reading]", after: "Future[Reading]", seconds: float) -> Mapping[str, float] | None:
    try:
        pair = before.result(), after.result()
    except LabError:
        return None
    return reading.rates(*pair) if max(each.took for each in pair) <= _SLACK * seconds else None


def _counts(guest: Guest) -> dict[str, float]:
    told = guest.inside()
    counts: dict[str, float] = {**vars(told.cpu), "frames": told.received.frames, "bytes": told.received.bytes}
    counts |= {name: told.stack[counter] for name, counter in LOSSES.items()}
    return counts if told.interrupts is None else counts | {"interrupts": told.interrupts}
