"""Statistics against answers that are known, and the choice of samples that are alike."""

import itertools
import math
import random

import pytest
from scipy.stats import mannwhitneyu

from memlane_lab.results import alike
from memlane_lab.results.results import Sample
from memlane_lab.statistics import stats
from memlane_lab.statistics.measures import scale, significant


def test_jain_knows_equality_and_monopoly_and_that_nothing_is_not_fair() -> None:
    assert stats.jain([3, 3, 3, 3]) == pytest.approx(1.0)
    assert stats.jain([5, 0, 0, 0]) == pytest.approx(1 / 4)
    assert stats.jain([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert stats.jain([0, 0]) == 0.0


def test_an_interval_is_bounded_by_samples_and_needs_six() -> None:
    assert stats.median([1, 2, 3, 4, 100]) == stats.Interval(3)
    assert stats.median([6, 1, 5, 2, 4, 3]) == stats.Interval(3.5, 1, 6)
    assert stats.median(range(1, 10)) == stats.Interval(5, 2, 8)  # tables of the sign test: 96.1 % for 2 of 9
    assert stats.median(range(1, 16)) == stats.Interval(8, 4, 12)  # 96.5 %
    assert stats.median([5] * 8) == stats.Interval(5, 5, 5)


@pytest.mark.parametrize("count", range(6, 16))
def test_intervals_cover_what_they_say(count: int) -> None:
    """Samples as skewed as latencies are; the machine drifts from round to round by as much as they are spread."""
    source = random.Random(count)
    runs, single, paired = 1500, 0, 0
    for _ in range(runs):
        values = [source.lognormvariate(0, 0.5) for _ in range(count)]
        bounds = stats.median(values).bounds
        assert bounds is not None
        single += bounds[0] <= 1 <= bounds[1]
        drift = [source.lognormvariate(0, 1) for _ in range(count)]
        others = [each * source.lognormvariate(0, 0.5) for each in drift]
        found = stats.ratio([2 * each * source.lognormvariate(0, 0.5) for each in drift], others)
        assert found is not None
        assert found.bounds is not None
        paired += found.bounds[0] <= 2 <= found.bounds[1]
    # 95 % at least; three standard errors of 1500 runs are 1.7 %.
    assert single / runs >= 0.95 - 0.017
    assert paired / runs >= 0.95 - 0.017


def test_the_test_within_rounds_is_exact() -> None:
    one = [1.0, 2, 3, 4, 5, 6]
    assert stats.swap_test(one, [2 * each for each in one]) == pytest.approx(2 / 2**6)  # no p is below that of n
    assert stats.swap_test([1.1, 2.3, 3.6, 3.5], [1, 2, 3, 4]) == pytest.approx(_all_swaps([1.1, 2.3, 3.6, 3.5]))
    assert stats.swap_test([1, 1], [1, 1]) == 1.0
    assert stats.swap_test([], []) is None


def _all_swaps(values: list[float]) -> float:
    """The same against 1, 2, 3 ..., by trying every way to swap."""
    gaps = [(each - at) / (each + at) for at, each in enumerate(values, 1)]
    ranks = [sum(abs(other) <= abs(gap) for other in gaps) for gap in gaps]
    sums = [
        sum(sign * rank for sign, rank in zip(signs, ranks, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(ranks))
    ]
    seen = sum(rank if gap > 0 else -rank for rank, gap in zip(ranks, gaps, strict=True))
    return sum(abs(each) >= abs(seen) for each in sums) / len(sums)


def test_a_difference_shows_within_rounds_although_rounds_differ_more() -> None:
    drift = [1.0, 8, 2, 30, 4, 16, 3, 10]
    found = stats.ratio([1.5 * each for each in drift], drift)
    assert found == stats.Interval(1.5, 1.5, 1.5)
    assert stats.swap_test([1.2 * each for each in drift], drift) == pytest.approx(2 / 2**8)


def test_two_runs_are_compared_by_all_pairs() -> None:
    ours, theirs = [1.0, 2.5, 3.7, 4.1, 5.2, 6.6, 7.3], [2.0, 3.0, 3.5, 8.0, 9.0, 9.5]
    ratio, probability = stats.apart(ours, theirs)
    assert probability == pytest.approx(float(mannwhitneyu(ours, theirs, method="exact").pvalue))
    assert ratio is not None
    assert ratio.bounds is not None
    assert ratio.bounds[0] < ratio.estimate < ratio.bounds[1]
    # Mann and Whitney 1947: with 3 against 3 and no overlap, 2 of 20 orders are as extreme.
    ratio, probability = stats.apart([1, 2, 3], [4, 5, 6])
    assert ratio == stats.Interval(0.4)
    assert probability == pytest.approx(0.1)


def test_intervals_of_two_runs_cover_what_they_say() -> None:
    source = random.Random(5)
    covered = 0
    for _ in range(600):
        ours, theirs = ([source.lognormvariate(0, 0.5) for _ in range(8)] for _ in range(2))
        found, _ = stats.apart(ours, theirs)
        assert found is not None
        assert found.bounds is not None
        covered += found.bounds[0] <= 1 <= found.bounds[1]
    assert covered / 600 >= 0.95 - 0.027


def test_a_dead_baseline_has_no_ratio() -> None:
    assert stats.ratio([1, 2], [0, 1]) is None
    assert stats.ratio([], []) is None
    assert stats.ratio([0, 0], [1, 2]) == stats.Interval(0)


def test_probabilities_are_corrected_for_their_number() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # Holm 1979
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("bit/s", 2.1e9, "2.10 Gbit/s"),
        ("bit/s", 350.6e6, "351 Mbit/s"),
        ("s", 0.000123, "123 µs"),
        ("s", 12.5, "12.5 s"),
        ("1/s", 4440, "4\u202f440 1/s"),
        ("s/GB", 0.5, "0.500 s/GB"),
        ("", 0.987, "0.987"),
        ("bit/s", 0, "0 bit/s"),
    ],
)
def test_values_are_written_in_units_of_their_size(unit: str, value: float, text: str) -> None:
    assert scale(unit, [value]).text(value) == text


def test_digits_that_count_are_kept() -> None:
    assert [significant(value) for value in (1234567, 0.00123456, 1, math.nan)] == [
        "1\u202f230\u202f000", "0.00123", "1.00", "-",
    ]  # fmt: skip


def _samples(variant: str, places: str) -> list[Sample]:
    """One sample a round, a dot where it failed."""
    names = {"n": "near", "f": "far", "m": "moved"}
    return [
        Sample(
            number=number, round=number, variant=variant, labels={}, began="", took=1, placement=names[place],
            placements=("", ""), values={},
        )
        for number, place in enumerate(places) if place != "."
    ]  # fmt: skip


def _rounds(**places: str) -> tuple[str, list[int]]:
    return _told(alike.rounds({name: _samples(name, each) for name, each in places.items()}))


def _told(chosen: alike.Chosen) -> tuple[str, list[int]]:
    taken = [[sample.round for sample in samples] for samples in chosen.samples.values()]
    assert all(each == taken[0] for each in taken)
    return chosen.placement, taken[0]


def test_all_whole_rounds_are_compared_whatever_their_placement() -> None:
    assert _rounds(a="nnnnfnnf", b="nnnnfnnm") == (alike.MIXED, [0, 1, 2, 3, 4, 5, 6, 7])
    assert _rounds(a="nnnnfffn", b="nffmf.nn") == (alike.MIXED, [0, 1, 2, 3, 4, 6, 7])
    assert _rounds(a="fff", b="fff") == ("far", [0, 1, 2])
    assert _rounds(a="mm", b="mm") == (alike.MIXED, [0, 1])


def test_rounds_of_one_placement_are_a_sensitivity_where_there_are_others() -> None:
    both = {"a": _samples("a", "nnnnfnnf"), "b": _samples("b", "nnnnfnnm")}
    fewer = alike.of_one_placement(both)
    assert fewer is not None
    assert _told(fewer) == ("near", [0, 1, 2, 3, 5, 6])
    assert alike.of_one_placement({"a": _samples("a", "fff")}) is None
    assert alike.of_one_placement({"a": _samples("a", "mm")}) is None


def test_the_test_against_a_bound_is_the_inversion_of_the_interval() -> None:
    """The sign test's table: of 12 coins 10 or more fall alike in 3.86 % of throws (two-sided), 9 in 14.6 %."""
    assert stats.sign_test([2.0] * 10 + [0.5] * 2, 1) == pytest.approx(158 / 4096)
    assert stats.sign_test([2.0] * 9 + [0.5] * 3, 1) == pytest.approx(598 / 4096)
    assert stats.sign_test([1.0] * 8, 1) == 1.0
    assert stats.sign_test([], 1) is None
    for count in range(6, 20):
        values = [float(each) for each in range(1, count + 1)]
        low, high = stats.median(values).bounds or (0.0, 0.0)
        for bound in range(count + 2):
            told = stats.sign_test(values, bound + 0.5)
            assert told is not None
            assert (told <= 0.05) is not (low <= bound + 0.5 <= high)


def test_an_interval_between_runs_is_that_of_blocks() -> None:
    """Of five runs with logarithms -2 .. 2: s = 1.58, t(4) = 2.776, so 1.96 for the mean, 4.81 for one more run."""
    ratios = [math.exp(each) for each in (-2, -1, 0, 1, 2)]
    found = stats.between_runs(ratios)
    assert found is not None
    assert found.mean is not None
    assert found.another is not None
    assert found.estimate == pytest.approx(1.0)
    assert math.log(found.mean[1]) == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-4)
    assert math.log(found.another[1]) == pytest.approx(2.7764 * math.sqrt(2.5 * 1.2), rel=1e-4)
    assert found.apart == pytest.approx(math.exp(4))
    few = stats.between_runs(ratios[:4])
    assert few is not None
    assert few.another is None
    assert stats.between_runs([1, 0, 1, 1, 1]) is None


def test_the_interval_of_one_more_run_covers_what_it_says() -> None:
    source = random.Random(7)
    covered = 0
    for _ in range(2000):
        *seen, another = (source.lognormvariate(1, 0.4) for _ in range(6))
        found = stats.between_runs(seen)
        assert found is not None
        assert found.another is not None
        covered += found.another[0] <= another <= found.another[1]
    assert covered / 2000 >= 0.95 - 0.015
