"""The two-way analysis, by simulated data: coverage of its intervals, power beside paired medians."""

import math
import random
import re

import pytest

from memlane_lab.commands import power
from memlane_lab.experiment import experiment
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.statistics import stats, two_way
from memlane_lab.statistics.two_way import Taken

VARIANTS = ("a", "b", "c", "d", "e")
TRUE = {"a": 0.0, "b": math.log(1.12), "c": 0.3, "d": -0.2, "e": 0.0}


def _run(seed: int, rounds: int = 12, spread: float = 0.1) -> list[Taken]:
    """Rounds that differ, places that slow down, other work that costs: all known by name only."""
    luck, found = random.Random(seed), []
    for number in range(rounds):
        day = luck.gauss(0, 0.3)
        order = luck.sample(VARIANTS, len(VARIANTS))
        for place, variant in enumerate(order):
            others = luck.choice((0.0, 0.0, 0.4, 1.2))
            off = day + TRUE[variant] - 0.03 * place - 0.2 * others + luck.gauss(0, spread)
            found.append(Taken(number, variant, place, others, 1e9 * math.exp(off)))
    return found


def _paired(taken: list[Taken]) -> stats.Interval | None:
    by_round = {(each.round, each.variant): each.value for each in taken}
    rounds = sorted({each.round for each in taken})
    return stats.ratio([by_round[at, "b"] for at in rounds], [by_round[at, "a"] for at in rounds])


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    seen = [two_way.effect(_run(seed), "b", "a") for seed in range(400)]
    bounds = [each.ratio.bounds for each in seen if each and each.ratio.bounds]
    assert len(bounds) == 400
    held = sum(low <= 1.12 <= high for low, high in bounds) / 400
    assert 0.92 <= held <= 0.98  # 0.95, with the spread of 400 tries


def test_no_difference_is_seen_in_one_of_twenty() -> None:
    seen = [two_way.effect(_run(seed), "e", "a") for seed in range(400)]
    assert 0.02 <= sum(each.probability < 0.05 for each in seen if each) / 400 <= 0.08


def test_the_same_samples_tell_more_than_paired_medians() -> None:
    runs = [_run(seed) for seed in range(60)]
    together = [each.ratio.bounds for run in runs if (each := two_way.effect(run, "b", "a"))]
    paired = [ratio.bounds for run in runs if (ratio := _paired(run))]
    sees = [sum(bounds[0] > 1 for bounds in found if bounds) for found in (together, paired)]
    assert sees[0] > 1.5 * sees[1]


def test_too_few_samples_have_no_interval() -> None:
    assert two_way.effect(_run(1, rounds=2), "b", "a") is None
    assert two_way.effect(_run(1), "b", "none") is None


@pytest.mark.parametrize(("rounds", "spread"), [(12, 0.19), (30, 0.1)])
def test_the_smallest_effect_is_told_with_the_stated_power(rounds: int, spread: float) -> None:
    luck = random.Random(7)
    effect = two_way.tellable(spread, rounds)

    def tells() -> bool:
        found = stats.median([effect * math.exp(luck.gauss(0, spread)) for _ in range(rounds)])
        return bool(found.bounds and found.bounds[0] > 1)

    assert 0.7 <= sum(tells() for _ in range(600)) / 600 <= 0.93
    assert two_way.tellable(spread, rounds, endpoints=4) > effect
    assert two_way.tellable(spread, 6, endpoints=6) == math.inf
    assert two_way.rounds_for(effect, spread) == rounds
    assert two_way.rounds_for(effect, spread, endpoints=4) > rounds
    assert two_way.tellable(spread, two_way.rounds_for(1.05, spread)) <= 1.05
    assert two_way.rounds_for(1000.0, spread) == 6  # of fewer, no interval is told


def test_the_rounds_of_a_small_effect_are_those_that_a_referee_counted() -> None:
    assert two_way.rounds_for(1.05, 0.19) == pytest.approx(190, abs=15)


def test_a_run_tells_beforehand_what_it_can_tell() -> None:
    planned = run.prepare([experiment.FOLDER / "promises.toml"], GuestKind.UML, 12, primary=True)
    told = list(power.sentences(planned))
    assert len(told) == sum(each.primary for each in planned[0].experiment.expect)
    assert told[0].startswith("promises: 12 rounds; they tell 1.")
    assert " x of memlane, TCP, 1 MB writes by ovs-dpdk, throughput (80 % power; spread 0." in told[0]
    assert re.search(r"; 1\.05 x would take \d+ rounds\)$", told[0])
    assert not any("unknown" in each for each in told)
    few = run.prepare([experiment.FOLDER / "promises.toml"], GuestKind.UML, 6, primary=True)
    assert "too few to tell anything of memlane, TCP, 1 MB writes by ovs-dpdk, throughput, beside" in next(
        power.sentences(few)
    )
