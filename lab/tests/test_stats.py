"""Statistics against answers that are known, and the choice of samples that are alike."""

import math
import random

import pytest

from memlane_lab import alike, stats
from memlane_lab.measures import scale, significant
from memlane_lab.results import Sample


def test_jain_knows_equality_and_monopoly() -> None:
    assert stats.jain([3, 3, 3, 3]) == pytest.approx(1.0)
    assert stats.jain([5, 0, 0, 0]) == pytest.approx(1 / 4)
    assert stats.jain([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert stats.jain([0, 0]) == 1.0


def test_the_rank_test_gives_the_tables_probabilities() -> None:
    # Mann and Whitney 1947: with 3 against 3 and no overlap, 2 of 20 orders are as extreme; with 5 against 5, 2 of 252.
    assert stats.rank_test([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)
    assert stats.rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert stats.rank_test([1, 4], [2, 3]) == pytest.approx(1.0)
    assert stats.rank_test([1], [2, 3]) is None


def test_a_median_lies_in_its_interval_and_a_single_value_is_its_own() -> None:
    found = stats.median([1, 2, 3, 4, 100])
    assert found.estimate == 3
    assert 1 <= found.low <= 3 <= found.high <= 100
    assert stats.median([7]) == stats.Interval(7, 7, 7)
    assert stats.median([5, 5, 5, 5]) == stats.Interval(5, 5, 5)


def test_the_bootstrap_covers_the_true_median_about_as_often_as_it_says() -> None:
    source = random.Random(7)
    covered = 0
    for _ in range(60):
        found = stats.median([source.gauss(10, 2) for _ in range(15)])
        covered += found.low <= 10 <= found.high
    assert 50 <= covered <= 60  # 95 % of 60 is 57


def test_a_ratio_is_that_of_medians_and_repeats() -> None:
    found = stats.ratio([20, 22, 24], [10, 11, 12])
    assert found is not None
    assert found.estimate == pytest.approx(2.0)
    assert 20 / 12 <= found.low <= found.high <= 24 / 10
    assert found == stats.ratio([20, 22, 24], [10, 11, 12])
    assert stats.ratio([1, 2], [0, 0, 1]) == stats.Interval(math.inf, math.inf, math.inf)
    assert stats.ratio([0, 0], [0, 0, 1]) is None
    assert stats.ratio([1, 2], [0, 1, 1]) == stats.Interval(1.5, 1.0, math.inf)


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
    names = {"n": "near", "f": "far", "m": "moved"}
    return [
        Sample(
            number=number, round=0, variant=variant, labels={}, began="", took=1, placement=names[place],
            placements=("", ""), values={},
        )
        for number, place in enumerate(places)
    ]  # fmt: skip


def test_samples_of_the_placement_that_all_have_enough_of_are_compared() -> None:
    chosen = alike.choose({"a": _samples("a", "nnnff"), "b": _samples("b", "nnnfm")})
    assert chosen.placement == "near"
    assert [len(samples) for samples in chosen.samples.values()] == [3, 3]


def test_where_no_placement_has_enough_all_are_compared_and_it_is_said() -> None:
    chosen = alike.choose({"a": _samples("a", "nnnnf"), "b": _samples("b", "fffmn")})
    assert chosen.placement == alike.MIXED
    assert [len(samples) for samples in chosen.samples.values()] == [5, 5]


def test_a_variant_without_samples_does_not_spoil_the_others() -> None:
    chosen = alike.choose({"a": _samples("a", "fff"), "b": [], "c": _samples("c", "fffn")})
    assert (chosen.placement, len(chosen.samples["c"]), chosen.samples["b"]) == ("far", 3, [])
    assert alike.lacking({"a": _samples("a", "fff"), "b": [], "c": _samples("c", "ffnn")}, 3) == {"c": 1}
    assert alike.choose({}).samples == {}
