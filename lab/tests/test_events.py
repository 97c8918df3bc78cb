"""Events: the moments at which a timeline triggers them, and the measures of disturbed flows."""

from types import SimpleNamespace
from typing import Any

import pytest

from memlane_lab.bed import events
from memlane_lab.bed.events import Event, Timeline, What
from memlane_lab.common.errors import LabError
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.plan import Turn, variants
from memlane_lab.experiment.setting import Setting
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring.sample import Sampler


def _series(*rates: float) -> list[tuple[float, float]]:
    """Four points a second."""
    return [((number + 1) / 4, rate) for number, rate in enumerate(rates)]


def test_an_outage_and_the_way_back_are_told() -> None:
    series = _series(8, 8, 8, 8, 0, 0, 2, 6, 8, 0, 8)
    assert events.told(1.0, [series]) == {"outage": 0.5, "recovery": 0.75}
    assert events.told(1.0, [series, _series(*[8] * 11)]) == {"outage": 0.5, "recovery": 0.75}


def test_a_flow_that_did_not_mind_was_not_out() -> None:
    assert events.told(1.0, [_series(8, 8, 8, 8, 5, 8)]) == {"outage": 0.0, "recovery": 0.0}
    assert events.told(1.0, []) == {}


def test_a_flow_that_does_not_come_back_fails_its_sample() -> None:
    with pytest.raises(LabError, match=r"did not recover in the 0\.5 s"):
        events.told(1.0, [_series(8, 8, 8, 8, 0, 3)])


def test_events_happen_in_their_order_when_they_are_due() -> None:
    happened: list[str] = []
    bed: Any = SimpleNamespace(restart=happened.append, restart_network=lambda: happened.append("network"))
    stated = [
        Event(at=2, what=What.NETWORK_RESTARTS),
        Event(at=1, what=What.MACHINE_RESTARTS, machine="s1"),
    ]
    timeline = Timeline(bed, stated)
    timeline.pass_time(0.5)
    assert (timeline.first, happened) == (None, [])
    timeline.pass_time(1.25)
    timeline.pass_time(1.5)
    assert (timeline.first, happened) == (1.25, ["s1"])
    timeline.pass_time(2.5)
    assert (timeline.first, happened) == (1.25, ["s1", "network"])


def test_an_event_happens_to_a_machine_that_is_there() -> None:
    stated = {"path": "bridge", "traffic": {"workload": "tcp"}, "events": [{"at": 1, "what": "link down"}]}
    with pytest.raises(ValueError, match="events names the machine ''; there are: c1, s1"):
        Setting.model_validate(stated)


@pytest.mark.real
@pytest.mark.parametrize(
    "happening",
    [
        [{"at": 2, "what": "network restarts"}],
        [{"at": 2, "what": "link down", "machine": "c1"}, {"at": 3, "what": "link up", "machine": "c1"}],
    ],
)
def test_a_paced_flow_lives_through_what_happens(happening: list[dict[str, Any]], tmp_path: Any) -> None:
    traffic = {"workload": "tcp", "rate": 5_000_000, "message": "8K"}
    asked = Experiment.model_validate({
        "name": "events", "title": "t", "question": "q?", "seconds": 12,
        "setting": {"path": "memlane", "traffic": traffic, "events": happening},
    })  # fmt: skip
    (variant,) = variants(asked)
    with Sampler(asked, GuestKind.UML, tmp_path) as sampler:
        sample = sampler.take(Turn(0, variant))
    assert sample.error is None
    assert 0 < sample.values["outage"] <= sample.values["recovery"] + 0.5
    assert "cpu" not in sample.values
