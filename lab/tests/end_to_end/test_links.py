"""A link between real guests: pings meet the delay and loss of its port, in that direction and no other."""

import re

import pytest

from memlane_lab.bed import bed
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import HOST, UML, Lan, Plan

pytestmark = [pytest.mark.real, pytest.mark.timed]

_COUNT = 500
_LINK = {"delay": "20ms", "jitter": "4ms", "loss": 0.1}


def test_pings_meet_the_delay_and_the_losses_that_were_asked_for(build: Builder) -> None:
    lan = build(UML, Plan(UML, stated={"link": _LINK}), HOST)
    lan.reach(0, 1)
    trips = _ping(lan, 1, _COUNT)
    lost = _COUNT - len(trips)
    # The way back has no link; beside it there is the time that two guests take on a busy machine.
    assert trips[0] >= 16
    # Four standard deviations: of the median of so many delays spread evenly over 8 ms; of a binomial distribution.
    assert 20 - 4 * 8 / (2 * len(trips) ** 0.5) <= trips[len(trips) // 2] < 40, trips
    assert abs(lost - 0.1 * _COUNT) < 4 * (_COUNT * 0.1 * 0.9) ** 0.5
    assert lan.switch.port("b")["drops"]["link-loss"] >= lost
    # The third, on the same segment, has no link.
    lan.reach(0, 2)
    assert _ping(lan, 2, 20)[0] < 16


def _ping(lan: Lan, target: int, count: int) -> list[float]:
    """The round trips from the first guest, in milliseconds, the shortest first."""
    command = ["ping", "-i", "0.01", "-c", str(count), "-W", "1", bed.ipv4(target)]
    lan.guests[0].wait_for_ping()
    said = lan.guests[0].run(command, timeout=60).stdout
    return sorted(float(trip) for trip in re.findall(r"time=([\d.]+) ms", said))
