"""A referee's recomputation: every ratio of every published page, from the committed samples alone.

Nothing of the lab's own statistics, readers or tables is used here, so that a mistake in them is found.
"""

import csv
import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.experiment.experiment import known_measures

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
RUNS = sorted(BENCHMARKS.glob("*/*/run.json"))
RENAMED = {"calls": "path_interrupts", "calls_per_frame": "path_interrupts_per_frame"}
TITLES = {found.title: name for name, found in known_measures().items()}
RATIO = re.compile(r"\*\*([0-9.\u202f]+) x\*\* \((?:([0-9.\u202f]+) to ([0-9.\u202f]+), )?n = (\d+)")

Values = dict[str, dict[str, dict[int, float]]]
"""By variant, by measure, by round."""


def _values(file: Path) -> Values:
    """Those of whole samples that did not fail."""
    found: Values = {}
    with gzip.open(file, "rt") as opened:
        rows = list(csv.DictReader(opened))
    failed = {row["sample"] for row in rows if row["measure"] == "error"}
    for row in rows:
        if row["sample"] not in failed and not row["flow"]:
            measure = RENAMED.get(row["measure"], row["measure"])
            found.setdefault(row["variant"], {}).setdefault(measure, {})[int(row["round"])] = float(row["value"])
    return found


def _median(rising: list[float]) -> float:
    half = len(rising) // 2
    return rising[half] if len(rising) % 2 else (rising[half - 1] + rising[half]) / 2


def _interval(rising: list[float]) -> tuple[float, float] | None:
    """The narrowest pair of order statistics that the true median is outside of in at most 5 % of runs."""
    count, best = len(rising), None
    for outside in range(count // 2):
        tails = 2 * sum(math.comb(count, number) for number in range(outside + 1)) / 2**count
        if tails <= 0.05:
            best = (rising[outside], rising[-1 - outside])
    return best


def _ratio(one: dict[int, float], other: dict[int, float]) -> tuple[float, tuple[float, float] | None, int] | None:
    rounds = sorted(one.keys() & other.keys())
    if not rounds or min(other[at] for at in rounds) <= 0:
        return None
    rising = sorted(one[at] / other[at] for at in rounds)
    return _median(rising), _interval(rising), len(rising)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _number(text: str) -> float:
    return float(text.replace("\u202f", ""))


def _tables(page: str) -> Iterator[tuple[str, str, list[str], list[list[str]]]]:
    """Each table of a measure: the section's title, the measure's title, the header, the rows."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        for part in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
            lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("|---")]
            cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
            if cells:
                yield title, part.splitlines()[0], cells[0], cells[1:]


def _measure(heading: str) -> str | None:
    """The measure of a heading: its title, with or without a unit behind."""
    known = [title for title in TITLES if heading == title or heading.startswith(f"{title}, ")]
    return TITLES[max(known, key=len)] if known else None


def _compared(
    stated: dict[str, Any], values: Values, header: list[str], row: list[str], measure: str
) -> Iterator[tuple[str, Any]]:
    """Each ratio of a row: as the page has it, and as the samples say."""
    asked = stated["experiment"]
    compare = asked.get("compare", "path")
    dimensions = [name for name in asked.get("vary", {}) if name != compare]
    group = dict(zip(dimensions, row, strict=False))
    names = {json.dumps(each["labels"], sort_keys=True): each["name"] for each in stated["variants"]}
    for at, head in enumerate(header):
        if " / " in head and at >= len(dimensions):
            variants = [
                values.get(names.get(json.dumps(group | {compare: label}, sort_keys=True), ""), {})
                for label in head.split(" / ")
            ]
            sides = [each.get(measure, {}) for each in variants]
            dead = any(
                rate == 0 and at_round not in own
                for each, own in zip(variants, sides, strict=True)
                for at_round, rate in each.get("throughput", {}).items()
            )
            yield row[at], None if dead else _ratio(*sides)


def _pages() -> Iterator[tuple[Path, str, str, Any]]:
    """Every ratio of every page: the page, its place there, its text, and the ratio of the samples."""
    for run in RUNS:
        stated = {each["experiment"]["title"]: each for each in json.loads(run.read_text())["experiments"]}
        values = {title: _values(run.parent / f"{each['experiment']['name']}.csv.gz") for title, each in stated.items()}
        for title, heading, header, rows in _tables(run.parent.with_suffix(".md").read_text()):
            if title in stated and (measure := _measure(heading)):
                for row in rows:
                    for told, found in _compared(stated[title], values[title], header, row, measure):
                        yield run.parent, f"{title}, {heading}: {row[0]}", told, found


def _shown(told: str) -> tuple[float, list[float], int] | None:
    """A page's ratio, its bounds and its rounds."""
    if not (shown := RATIO.match(told)):
        return None
    return _number(shown[1]), [_number(each) for each in (shown[2], shown[3]) if each], int(shown[4])


def _said(found: Any) -> tuple[float, list[float], int] | None:
    """The same of the samples; an interval without any width is not shown."""
    if found is None:
        return None
    estimate, bounds, rounds = found
    wide = bounds and bounds[0] != bounds[1]
    return _rounded(estimate), [_rounded(each) for each in bounds] if wide else [], rounds


def test_every_ratio_of_every_page_is_what_the_samples_say() -> None:
    every = [(page.name, place, told, _said(found)) for page, place, told, found in _pages()]
    assert [each for each in every if _shown(each[2]) != each[3]] == []
    assert sum(each[3] is not None for each in every) > 600
    changed = [(_shown(told.replace("1", "2")), found) for _, _, told, found in every]
    assert sum(shown != found for shown, found in changed) > 300  # so other figures would be found


EXPECTED = re.compile(
    r"at (least|most) ([0-9.e+-]+) x of .+? \| \*\*.*?\*\* \(([0-9.\u202f]+) to ([0-9.\u202f]+),"
    r"[^|]*?(?:corrected ([0-9.]+))?\) \|.*\| (\w+)"
)
SIGNIFICANT = 0.05
"""Of a primary endpoint's p, corrected for their number."""


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parent.parent.name}-{run.parent.name}")
def test_every_verdict_of_a_ratio_follows_from_its_interval(run: Path) -> None:
    page = run.parent.with_suffix(".md").read_text().split("\n## Another run's")[0]
    for which, stated, low, high, corrected, word in EXPECTED.findall(page):
        bound, inner, outer = _number(stated), _number(low), _number(high)
        if bound in (inner, outer):
            continue  # the page's digits do not tell
        within = inner <= bound <= outer or (bool(corrected) and float(corrected) > SIGNIFICANT)
        better = inner > bound if which == "least" else outer < bound
        assert word.rstrip(":") == ("undecided" if within else "holds" if better else "fails"), (
            which,
            stated,
            low,
            high,
        )
