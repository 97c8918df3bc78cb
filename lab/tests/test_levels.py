"""Variances of levels, from data that is made with known ones."""

import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memlane_lab import cli
from memlane_lab.commands import published
from memlane_lab.report import tables
from memlane_lab.results import levels
from memlane_lab.statistics import levels as statistic
from memlane_lab.statistics import stats
from memlane_lab.statistics.levels import Level, Unit, components
from tests import made_up

_NAMES = ("day", "run", "sample")


def _made(luck: random.Random, sizes: Sequence[Sequence[int]], deviations: Sequence[float]) -> list[tuple[Unit, float]]:
    """Days, each a list of its runs' numbers of samples."""
    day, run, sample = deviations
    made: list[tuple[Unit, float]] = []
    for number, runs in enumerate(sizes):
        of_day = luck.gauss(1.0, day)
        for place, samples in enumerate(runs):
            of_run = of_day + luck.gauss(0, run)
            made += [((number, place), of_run + luck.gauss(0, sample)) for _ in range(samples)]
    return made


@pytest.mark.parametrize(
    "sizes",
    [[[6] * 3] * 8, [[12, 4], [6], [3, 9, 5], [8, 2, 6, 1], [10], [4, 4]]],
    ids=["balanced", "unbalanced"],
)
@pytest.mark.parametrize("deviations", [(0.3, 0.2, 0.1), (0.05, 0.1, 0.3), (0.0, 0.2, 0.2)])
def test_variances_are_found_again(sizes: list[list[int]], deviations: tuple[float, float, float]) -> None:
    """In the mean of many data sets: estimates of variances are unbiased, whatever the units' sizes."""
    luck = random.Random(5)
    count = 800
    means = [0.0] * 3
    for _ in range(count):
        found = components(_NAMES, _made(luck, sizes, deviations))
        assert [each.name for each in found] == list(_NAMES)
        for place, each in enumerate(found):
            assert each.variance is not None
            means[place] += each.variance / count
    for mean, deviation in zip(means, deviations, strict=True):
        # Estimates below 0 are told as 0, which lifts the mean where the variance is small.
        assert mean == pytest.approx(deviation**2, rel=0.15, abs=0.012)


def test_one_large_data_set_tells_all_levels() -> None:
    found = components(_NAMES, _made(random.Random(3), [[5] * 5] * 300, (0.3, 0.2, 0.1)))
    assert [each.deviation for each in found] == pytest.approx([0.3, 0.2, 0.1], rel=0.1)
    assert [each.freedom for each in found] == [299, 1200, 6000]


def test_of_one_level_it_is_the_usual_variance() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    (only,) = components(["sample"], [((), value) for value in values])
    assert only.variance == pytest.approx(statistics.variance(values))
    assert only.freedom == 3


def test_levels_that_cannot_be_told_apart_are_told_together() -> None:
    luck = random.Random(1)
    a_run_a_day = _made(luck, [[4]] * 50, (0.3, 0.4, 0.1))
    found = components(_NAMES, a_run_a_day)
    assert [each.name for each in found] == ["day and run", "sample"]
    assert found[0].deviation == pytest.approx(0.5, rel=0.2)
    one_sample_each = _made(luck, [[1] * 4] * 50, (0.3, 0.4, 0.3))
    assert [each.name for each in components(_NAMES, one_sample_each)] == ["day", "run and sample"]
    one_day = components(_NAMES, _made(luck, [[4] * 9], (0.3, 0.4, 0.1)))
    assert [(each.name, each.variance is None, each.freedom) for each in one_day] == [
        ("day", True, 0), ("run", False, 8), ("sample", False, 27),
    ]  # fmt: skip
    one_run = components(_NAMES, _made(luck, [[4]], (0.3, 0.4, 0.1)))
    assert [(each.name, each.variance is None) for each in one_run] == [("day and run", True), ("sample", False)]
    (alone,) = components(_NAMES, [((1, 1), 2.0)])
    assert (alone.name, alone.variance) == ("day and run and sample", None)


def test_a_unit_names_each_level() -> None:
    with pytest.raises(ValueError, match="a name for each level"):
        components(_NAMES, [((1,), 2.0)])


def test_values_pay_until_the_level_above_decides() -> None:
    def of(sample: float | None, run: float | None) -> list[Level]:
        return [Level("day", 1.0, 3), Level("run", run, 3), Level("sample", sample, 9)]

    assert statistic.repetitions(of(0.09, 0.01)) == 3
    assert statistic.repetitions(of(0.09, 0.01), cost=16) == 12
    assert statistic.repetitions(of(0.01, 0.09)) == 1
    assert statistic.repetitions(of(0.01, 0.0)) is None
    assert statistic.repetitions(of(0.01, None)) is None
    assert statistic.repetitions([Level("sample", 1.0, 5)]) is None


# ---- runs


def _runs(tmp_path: Path, factors: Sequence[float]) -> list[Path]:
    return [
        made_up.headline(tmp_path / str(day), day, factor, versions={"memlane": "memlane 1"})
        for day, factor in enumerate(factors, 1)
    ]


def test_runs_tell_their_spread_beside_that_of_their_rounds(tmp_path: Path) -> None:
    folders = _runs(tmp_path, [1.0, 1.2, 0.9, 1.1, 0.8])
    spreads = levels.of_endpoints([published.read_either(folder) for folder in folders])
    assert len(spreads) == 2  # with load and without
    (first, _) = spreads
    assert first.runs == 5
    assert [each.name for each in first.levels] == ["build", "day and run", "boot and sample"]
    build, run, rounds = first.levels
    assert build.variance is None
    spread = statistics.stdev(math.log(factor) for factor in (1.0, 1.2, 0.9, 1.1, 0.8))
    assert run.deviation == pytest.approx(spread, rel=0.01)
    assert rounds.deviation == pytest.approx(0.0, abs=1e-9)  # both variants have the same luck in a round
    _, rows = tables.level_rows(spreads)
    assert first.mean == pytest.approx(2 * statistics.geometric_mean([1.0, 1.2, 0.9, 1.1, 0.8]))
    exact = stats.between_runs([2.0, 2.4, 1.8, 2.2, 1.6])
    assert exact is not None
    assert exact.another == pytest.approx(first.another)
    assert rows[0][-2:] == ["at least 1.5 x", "1.22 to 3.22: undecided"]
    assert rows[0][3] == f"build unknown; day + run {100 * spread:.0f} % (df 4); boot + sample 0 % (df 35)"
    told = CliRunner().invoke(cli.app, ["--json", "between", *map(str, folders)])
    assert "variance by level" in told.output


def test_other_guests_and_other_settings_are_left_out(tmp_path: Path) -> None:
    runs = [published.read_either(folder) for folder in _runs(tmp_path, [1.0, 1.2, 0.9])]
    record, found = runs[0]
    other = found[0].experiment.model_copy(update={"seconds": 99})
    runs[0] = (record, [found[0].model_copy(update={"experiment": other})])
    runs[1] = (runs[1][0].model_copy(update={"guest": "kvm"}), runs[1][1])
    assert [each.runs for each in levels.of_endpoints(runs)] == [1, 1]
    assert levels.of_endpoints([]) == []


def test_the_page_of_headlines_tells_variances() -> None:
    text = published.made()[published.FOLDER / "headlines.md"]
    section = text.partition("## Variance by level")[2]
    assert section.count("boot + sample") >= 4
    assert "Kalibera and Jones (2013)" in section
