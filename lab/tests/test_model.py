"""The model: it finds the true parameters, its bounds hold, and it refuses to extrapolate unasked."""

import itertools
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from memlane_lab.commands import published
from memlane_lab.common.errors import LabError
from memlane_lab.model import check, costs, discrepancy, fitted, host, page, tables, what_if
from memlane_lab.model.configuration import Configuration, Party, Work
from memlane_lab.model.costs import Cost, Costs
from memlane_lab.model.fitted import Model
from memlane_lab.model.host import Demand, Sharing
from memlane_lab.model.observations import Observation
from memlane_lab.model.predict import predict
from memlane_lab.model.sharing import Stages

MACHINE = {"cpu": "Abacus", "cpus": "2", "kernel": "Linux", "guests": "uml"}
TRUE = Stages(
    costs=Costs(
        of={
            Party.SENDER: Cost(message=5e-6, byte=4e-10, wakeup=2e-6),
            Party.SENDER_KERNEL: Cost(message=2e-6, byte=1e-10, wakeup=4e-6),
            Party.RECEIVER: Cost(message=1e-6, byte=5e-10, wakeup=2e-6),
            Party.RECEIVER_KERNEL: Cost(message=0, byte=2e-10, wakeup=4e-6),
            Party.SWITCH: Cost(message=5e-7, byte=2e-10, wakeup=3e-6),
        },
        wakeups={
            Party.SENDER: (-7.0, -3.0, 0.0, -0.5, 0.0, 0.0),
            Party.RECEIVER: (-8.0, -2.5, 0.0, -0.3, 0.0, 0.0),
            Party.SWITCH: (-8.0, -3.5, 0.0, -1.0, 0.0, 0.0),
        },
    ),
    overlap=2.0,
    overlap_large=4.0,
    latency=0.0,
    usable=0.95,
    grip=0.3,
    stall=1e-9,
    crowd=0.2,
    softness=5.0,
    polls=False,
)
POINTS = tuple(itertools.product((1, 2, 4, 8), (64, 1024, 16 << 10, 1 << 20), (0, 45, 90)))


def _observed(
    asked: Configuration, stages: Stages = TRUE, noise: float = 0.0, luck: random.Random | None = None
) -> Observation:
    """A sample as it would be if the model were right but for noise."""
    factor = float(np.exp(noise * (luck or random.Random(0)).gauss(0, 1)))
    rate = stages.flow(asked, 2).rate * factor
    return Observation(
        configuration=asked,
        rate=rate,
        cpu=stages.cpu(asked, 2),
        switches={party: rate * stages.costs.woken(party, asked) for party in stages.costs.wakeups},
        fairness=0.98 if asked.pairs > 1 else None,
    )


def _asked(pairs: int, message: int, load: int = 0, path: str = "memlane") -> Configuration:
    return Configuration(path=path, pairs=pairs, message=message, load=load)


@cache
def _model(points: tuple[tuple[int, int, int], ...] = POINTS, noise: float = 0.0) -> Model:
    luck = random.Random(1)
    return fitted.of_observations([_observed(_asked(*point), noise=noise, luck=luck) for point in points], MACHINE, 2)


# The host's arithmetic.


def test_whoever_wants_little_gets_it_and_all_others_get_the_same() -> None:
    assert host.water_level([(0.1, 2), (1.0, 3)], 2.0) == pytest.approx(0.6)
    assert host.water_level([(0.1, 2), (0.2, 3)], 2.0) == float("inf")
    assert host.water_level([(1.0, 16)], 2.0) == pytest.approx(0.125)


def _sharing(**changed: float | bool) -> Sharing:
    usual = {"overlap": 50.0, "latency": 0.0, "usable": 1.0, "grip": 0.5, "stall": 0.0, "softness": 50.0}
    return Sharing(**(usual | changed))  # type: ignore[arg-type]


def test_one_pair_is_as_fast_as_its_slowest_party() -> None:
    found = host.flow(Demand(2e-9, 1e-9, 5e-10), _sharing(), 1, 0, 4)
    assert found.rate == pytest.approx(1 / 2e-9, rel=0.05)


def test_many_pairs_are_as_fast_as_the_hosts_cpus() -> None:
    found = host.flow(Demand(2e-9, 1e-9, 5e-10), _sharing(), 8, 0, 2)
    assert found.rate == pytest.approx(2 / 3.5e-9, rel=0.05)
    assert found.sender + found.receiver + found.switch == pytest.approx(2, rel=0.05)


def test_stages_that_do_not_overlap_add_up() -> None:
    found = host.flow(Demand(2e-9, 1e-9, 1e-9), _sharing(overlap=1.0), 1, 0, 4)
    assert found.rate == pytest.approx(1 / 4e-9, rel=0.05)


def test_a_load_takes_its_part_and_no_more() -> None:
    without, with_ = (host.flow(Demand(1e-9, 1e-9, 0), _sharing(), 1, load, 2) for load in (0, 1.0))
    assert with_.rate == pytest.approx(without.rate / 2, rel=0.05)
    assert with_.load == pytest.approx(1, rel=0.1)


def test_a_flow_that_waits_its_turn_is_held_up_as_in_a_queue() -> None:
    demand, sharing = Demand(1e-9, 1e-9, 0), _sharing(grip=0.0, stall=1e-9)
    taken = [1 / host.flow(demand, sharing, 1, load, 2).rate for load in (0, 0.5, 0.9)]
    assert taken == pytest.approx([1e-9, 2e-9, 1e-8], rel=0.05)


@pytest.mark.parametrize("load", [0, 0.45, 0.9])
@pytest.mark.parametrize("polls", [False, True])
def test_nobody_uses_more_than_there_is(load: float, polls: bool) -> None:
    luck = random.Random(3)
    for _ in range(200):
        demand = Demand(*(10 ** luck.uniform(-10, -6) for _ in range(3)))
        pairs, cpus = luck.randint(1, 16), luck.randint(1, 8)
        found = host.flow(demand, _sharing(polls=polls, usable=0.9), pairs, load, cpus)
        assert found.rate > 0
        assert found.sender + found.receiver + found.switch <= 0.9 * cpus * 1.001
        assert found.switch <= 1.001
        assert max(found.sender, found.receiver) <= pairs * 1.001


def test_more_cpus_and_less_load_never_harm() -> None:
    luck = random.Random(4)
    for _ in range(200):
        demand = Demand(*(10 ** luck.uniform(-10, -7) for _ in range(3)))
        pairs, load = luck.randint(1, 8), luck.uniform(0, 0.9)
        sharing = _sharing(overlap=3.0, softness=4.0)
        rate = host.flow(demand, sharing, pairs, load, 2).rate
        assert host.flow(demand, sharing, pairs, load, 4).rate >= rate * 0.999
        assert host.flow(demand, sharing, pairs, load / 2, 2).rate >= rate * 0.999


# Fitted parameters are the true ones.


def test_costs_come_out_as_they_were_put_in() -> None:
    found = costs.fit([_observed(_asked(pairs, message)) for pairs, message, load in POINTS if not load])
    for party, true in TRUE.costs.of.items():
        for kind in ("message", "byte", "wakeup"):
            assert getattr(found.of[party], kind) == pytest.approx(getattr(true, kind), rel=0.02, abs=1e-12), party


def test_without_noise_points_between_are_predicted_to_a_few_per_cent() -> None:
    model = _model()
    for pairs, message, load in ((3, 300, 20), (6, 16384, 50), (5, 200_000, 0), (1, 5000, 70), (7, 100, 10)):
        asked = _asked(pairs, message, load)
        found = predict(model, asked)
        assert found.rate.estimate == pytest.approx(TRUE.flow(asked, 2).rate, rel=0.05)
        assert found.cpu.estimate == pytest.approx(sum(TRUE.cpu(asked, 2).values()), rel=0.05)
        assert sum(each.estimate for each in found.parties.values()) == pytest.approx(found.cpu.estimate)


def test_bounds_hold_as_many_samples_as_they_say() -> None:
    model, luck, held = _model(noise=0.1), random.Random(9), 0
    for _ in range(200):
        asked = _asked(luck.randint(1, 8), int(64 * 2 ** luck.uniform(0, 14)), luck.randint(0, 90))
        bounds = predict(model, asked).rate
        held += bounds.low <= _observed(asked, noise=0.1, luck=luck).rate <= bounds.high
    assert 0.85 <= held / 200 <= 1


def test_bounds_widen_where_nothing_was_calibrated() -> None:
    at = [(size, 0.0, 0.0, 0.0) for size in np.linspace(0, 1, 12)]
    luck = random.Random(2)
    found = discrepancy.fit(at, [0.3 * np.sin(6 * each[0]) + luck.gauss(0, 0.02) for each in at])
    assert found.told((0.5, 0.0, 0.0, 0.0))[1] < found.told((2.0, 0.0, 0.0, 0.0))[1]


# What-ifs.


def test_a_free_copy_speeds_large_messages_up_and_hardly_small_ones() -> None:
    model = _model()
    gain = [
        predict(model, _asked(4, message), what_if.parse(["copy=0"])).rate.estimate
        / predict(model, _asked(4, message)).rate.estimate
        for message in (64, 1 << 20)
    ]
    assert gain[0] < 1.05
    assert gain[1] > 3


def test_fewer_wakeups_and_more_cores_never_harm() -> None:
    model, asked = _model(), _asked(4, 16384)
    plain = predict(model, asked).rate.estimate
    assert predict(model, asked, what_if.parse(["wakeups=0.5"])).rate.estimate > plain
    assert predict(model, asked, what_if.parse(["cores=2x"])).rate.estimate > 1.5 * plain


@pytest.mark.parametrize("word", ["copy", "copy=", "copy=-1", "cores=0", "luck=2", "copy=1;rm"])
def test_a_what_if_that_says_nothing_is_refused(word: str) -> None:
    with pytest.raises(LabError, match="it takes copy, message, wakeups, calls, cores or ring"):
        what_if.parse([word])


# Configurations outside of the calibration are refused.


def test_what_lies_outside_is_refused_unless_extrapolated_and_then_marked() -> None:
    model = _model()
    for asked in (
        _asked(16, 1024),
        _asked(1, 16),
        _asked(1, 64, 95),
        _asked(1, 64).model_copy(update={"placement": "far"}),
    ):
        with pytest.raises(LabError, match=r"outside of what was calibrated .*--extrapolate predicts it none the less"):
            predict(model, asked)
        found = predict(model, asked, extrapolate=True)
        assert found.outside
        assert found.rate.low < found.rate.estimate < found.rate.high


def test_a_path_that_was_not_calibrated_is_refused() -> None:
    with pytest.raises(LabError, match="no tcp on path 'bridge'; it has: memlane"):
        predict(_model(), _asked(1, 64, path="bridge"))


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(LabError, match="no path has the 12 samples"):
        _model(POINTS[:5])


def test_other_machines_differ_in_words() -> None:
    assert fitted.differences(MACHINE, MACHINE) == ""
    assert fitted.differences(MACHINE, MACHINE | {"kernel": "Hurd"}) == "kernel: Linux, Hurd"


def test_answers_take_as_long_as_their_stages_and_wakeups() -> None:
    stages = TRUE.model_copy(update={"overlap": 1.0, "overlap_large": 1.0, "latency": 5e-5})
    asked = Configuration(path="memlane", work=Work.ANSWERS, pairs=1, message=64)
    demand = stages.demand(asked)
    assert 1 / stages.flow(asked, 2).rate == pytest.approx(demand.total + 5e-5, rel=0.02)


# The check.


def _held(count: int, off: float = 1.0) -> list[Observation]:
    """Three samples each of configurations between the calibrated ones; `off`: by how much they are above the truth."""
    luck = random.Random(5)
    asked = [_asked(luck.randint(1, 8), int(64 * 2 ** luck.uniform(0, 14)), luck.randint(1, 89)) for _ in range(count)]
    found = [_observed(each, noise=0.02, luck=luck) for each in asked for _ in range(3)]
    return [each.model_copy(update={"rate": each.rate * off}) for each in found]


def test_a_model_that_is_right_meets_its_goal_and_beats_interpolation_of_rates() -> None:
    found = check.check(_model(noise=0.02), _held(20))
    mine, theirs = check.errors([each.rate for each in found])
    assert mine.met
    assert mine.median < theirs.median
    assert mine.covered >= 0.8


def test_a_model_that_is_wrong_misses_its_goal() -> None:
    found = check.check(_model(), _held(20, off=1.5))
    assert not tables.goals_met(found)
    mine, _ = check.errors([each.rate for each in found])
    assert mine.median == pytest.approx(1 / 3, abs=0.05)


def test_what_was_calibrated_cannot_be_held_out() -> None:
    with pytest.raises(
        LabError, match="held-out points must be unknown to the calibration, but it contains memlane, 1 pa"
    ):
        check.check(_model(), [_observed(_asked(1, 64))])


def test_the_page_says_what_model_and_samples_say(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    held = page.HeldOut(machine=MACHINE, commands=["memlane-lab run held_out"], began="2026-11-25", observed=_held(20))
    written, _, index = published.publish_predictions(_model(noise=0.02), held, folder)
    assert written == folder / "2026-11-25" / "prediction.md"
    assert "(2026-11-25/prediction.md)" in index.read_text()
    text = written.read_text()
    assert "met**, over 20 configurations of streams" in text
    assert text.count("\n| memlane, ") == 20
    assert written.read_text() == page.made(written.with_suffix(""))
