"""Events: faults of machines or of the network in the measured part, and how long flows take to recover.

An experiment states them in its setting: `events = [{ at = 1, what = "link down", machine = "s1" }, ...]`.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from pydantic import Field

from memlane_lab.bed.bed import Bed
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.statistics.measures import Across, Better, Measure

MEASURES = (
    Measure("outage", "longest time without any data after the first event", "s", Better.LESS, Across.WORST),
    Measure("recovery", "from the first event until half of the rate before", "s", Better.LESS, Across.WORST),
)
"""Measures of flows that were disturbed by events: the worst flow counts."""

Series = Sequence[tuple[float, float]]
"""A flow's rate over time: (seconds since the measured part began, bit/s until then)."""


class What(StrEnum):
    """Kinds of events."""

    LINK_DOWN = "link down"
    """The machine's own side of its NIC goes down."""
    LINK_UP = "link up"
    MACHINE_RESTARTS = "machine restarts"
    """Power failure: the machine boots again, without the programs that ran in it."""
    NETWORK_RESTARTS = "network restarts"
    """The switch is killed and started again; guests that lost their NIC with it get it back."""


class Event(Strict):
    """One of them."""

    at: float = Field(ge=0)
    """Seconds after the measured part has begun."""
    what: What
    """The event."""
    machine: str = ""
    """The machine that it happens to; none for the network."""


class Timeline:
    """The events of one sample."""

    def __init__(self, bed: Bed, events: Sequence[Event]) -> None:
        self._bed = bed
        self._left = sorted(events, key=lambda event: event.at)
        self.first: float | None = None
        """When the first of them happened, in seconds after the measured part had begun."""

    def pass_time(self, elapsed: float) -> None:
        """Triggers the events that are due after so many seconds."""
        while self._left and self._left[0].at <= elapsed:
            event = self._left.pop(0)
            self.first = elapsed if self.first is None else self.first
            self._happen(event)

    def _happen(self, event: Event) -> None:
        bed, machine = self._bed, event.machine
        happenings: dict[What, Callable[[], object]] = {
            What.LINK_DOWN: lambda: bed.named[machine].run("ip link set dev net0 down").check(),
            What.LINK_UP: lambda: bed.named[machine].run("ip link set dev net0 up").check(),
            What.MACHINE_RESTARTS: lambda: bed.restart(machine),
            What.NETWORK_RESTARTS: bed.restart_network,
        }
        happenings[event.what]()


def told(first: float, flows: Sequence[Series]) -> dict[str, float]:
    """The measures of flows' series, given when the first event happened."""
    if not flows:
        return {}
    return {
        "outage": max(_outage(first, series) for series in flows),
        "recovery": max(_recovery(first, series) for series in flows),
    }


def _outage(first: float, series: Series) -> float:
    longest = current = last = 0.0
    for end, rate in series:
        current = current + end - max(last, first) if rate == 0 and end > first else 0.0
        longest, last = max(longest, current), end
    return longest


def _recovery(first: float, series: Series) -> float:
    """Nothing if the flow never fell below half of its rate."""
    before = [rate for end, rate in series if end <= first]
    if not before:
        raise LabError("an event came before its flows had a steady rate: set it later")
    half = sorted(before)[len(before) // 2] / 2
    down = None
    for end, rate in ((end, rate) for end, rate in series if end > first):
        if rate < half:
            down = end
        elif down is not None:
            return down - first
    if down is None:
        return 0.0
    raise LabError(f"a flow did not recover in the {series[-1][0] - first:.1f} s after the event")
