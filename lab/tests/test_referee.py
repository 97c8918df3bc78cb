"""A referee's recomputation: every ratio of every published page, from the committed samples alone.

Nothing of the lab's own statistics, readers or tables is used here, so that a mistake in them is found.
"""

import csv
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t

from memlane_lab.commands import published
from memlane_lab.experiment.experiment import known_measures
from tests import made_up

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
RUNS = sorted(BENCHMARKS.glob("*/*/run.json"))
RENAMED = {"calls": "path_interrupts", "calls_per_frame": "path_interrupts_per_frame"}
TITLES = {found.title: name for name, found in known_measures().items()}
SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3, "µ": 1e-6, "n": 1e-9}
UNITS = {name: found.unit for name, found in known_measures().items()}
FIGURE = re.compile(r"\*\*(-?[0-9.\u202f]+)(?: ([^*]+))?\*\* \((?:(-?[0-9.\u202f]+) to (-?[0-9.\u202f]+), )?n = (\d+)")
RATIO = re.compile(r"\*\*([0-9.\u202f]+) x\*\* \((?:([0-9.\u202f]+) to ([0-9.\u202f]+), )?n = (\d+)")

Values = dict[str, dict[str, dict[int, float]]]
"""By variant, by measure, by round."""


@cache
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


def _size(heading: str, measure: str, own: str | None) -> float | None:
    """How many base units a figure's unit is: the one beside it, else the one of the heading; None: unknown."""
    title = next(title for title, name in TITLES.items() if name == measure)
    stated, base = own or heading.removeprefix(title).removeprefix(", "), UNITS[measure]
    return SIZES.get(stated.removesuffix(base).strip()) if stated.endswith(base) else None


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


def _figures() -> Iterator[tuple[str, tuple[list[float], int], tuple[list[float], int]]]:
    """Every figure of a variant: its place; median, bounds and number of samples, as told and as the samples say."""
    for run in RUNS:
        stated = {each["experiment"]["title"]: each for each in json.loads(run.read_text())["experiments"]}
        for title, heading, header, rows in _tables(run.parent.with_suffix(".md").read_text()):
            if title not in stated or (measure := _measure(heading)) is None:
                continue
            asked = stated[title]["experiment"]
            values = _values(run.parent / f"{asked['name']}.csv.gz")
            compare = asked.get("compare", "path")
            dimensions = [name for name in asked.get("vary", {}) if name != compare]
            names = {json.dumps(each["labels"], sort_keys=True): each["name"] for each in stated[title]["variants"]}
            for row in rows:
                group = dict(zip(dimensions, row, strict=False))
                for at, head in list(enumerate(header))[len(dimensions) :]:
                    labels = group | ({compare: head} if compare in asked.get("vary", {}) else {})
                    variant = names.get(json.dumps(labels, sort_keys=True))
                    told = FIGURE.match(row[at]) if at < len(row) else None
                    if variant is None or told is None or (size := _size(heading, measure, told[2])) is None:
                        continue
                    rising = sorted(value / size for value in values[variant].get(measure, {}).values())
                    bounds = _interval(rising) if rising else None
                    wide = list(bounds) if bounds and bounds[0] != bounds[1] else []
                    shown = [_number(each) for each in (told[1], told[3], told[4]) if each]
                    place = f"{run.parent.name}: {title}, {heading}, {row[0]}, {head}"
                    yield place, (shown, int(told[5])), ([_median(rising), *wide] if rising else [], len(rising))


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


def _alike(told: tuple[list[float], int], found: tuple[list[float], int]) -> bool:
    """Whether a page's figures are those of the samples, to the three digits that are told of both."""
    pairs = zip(told[0], found[0], strict=False)
    near = all(math.isclose(one, other, rel_tol=0.006, abs_tol=1e-9) for one, other in pairs)
    return near and len(told[0]) == len(found[0]) and told[1] == found[1]


def test_every_figure_of_every_page_is_the_median_of_its_samples() -> None:
    every = list(_figures())
    assert [each for each in every if not _alike(each[1], each[2])] == []
    assert len(every) > 1000
    assert {place.split(":")[0] for place, *_ in every} == {run.parent.name for run in RUNS}
    assert not _alike(([4.09, 3.07, 7.55], 6), ([4.19, 3.07, 7.55], 6))  # so other figures would be found


OF_SEVERAL, WITH_CHANGES = "mixes samples of several commits", "had changes that were not committed"
OLDER = {
    "across-hosts": WITH_CHANGES,
    "path-length": WITH_CHANGES,
    "guests-beside-guests": WITH_CHANGES,
    "xen-memory": WITH_CHANGES,
    "xen-path-length": WITH_CHANGES,
    "guests-and-windows": OF_SEVERAL,
    "links": OF_SEVERAL,
}
"""Pages of before such runs were refused (docs/benchmarks/notes/review.md)."""


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parent.parent.name}-{run.parent.name}")
def test_every_page_is_of_one_commit_or_says_that_it_is_not(run: Path) -> None:
    page = run.parent.with_suffix(".md").read_text()
    commit = json.loads(run.read_text())["record"]["machine"]["commit"]
    assert f"on commit {commit}" in page
    said = OLDER.get(run.parent.name)
    assert bool(re.fullmatch("[0-9a-f]{12}", commit)) == (said is None)
    assert [each for each in (OF_SEVERAL, WITH_CHANGES) if each in page] == ([said] if said else [])
    for name, digest in json.loads(run.read_text())["digests"].items():
        assert hashlib.sha256((run.parent / name).read_bytes()).hexdigest() == digest


CHECKS = sorted(BENCHMARKS.glob("*/*/held-out.json"))
HELD = re.compile(r"\| (\S+), (answers, )?(\d+) pairs?, ([0-9KM]+), load (\d+) %, \w+ \| ([0-9.\u202f]+) (\S+) \|")
RATES = {"1/s": 1.0, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}


def _held(file: Path) -> dict[tuple[str, bool, int, int, int], list[float]]:
    """Rates of each configuration's samples of its commonest placement, the first of several alike."""
    found: dict[tuple[str, bool, int, int, int], list[tuple[str, float]]] = {}
    for each in json.loads(file.read_text())["observed"]:
        asked = each["configuration"]
        key = (asked["path"], asked["work"] != "tcp", asked["pairs"], asked["message"], asked["load"])
        found.setdefault(key, []).append((asked["placement"], each["rate"]))
    told = {}
    for key, samples in found.items():
        places = [place for place, _ in samples]
        commonest = max(dict.fromkeys(places), key=places.count)
        told[key] = [rate for place, rate in samples if place == commonest]
    return told


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KM]?)", text).groups()  # type: ignore[union-attr]
    return int(number) << {"": 0, "K": 10, "M": 20}[unit]


@pytest.mark.parametrize("file", CHECKS, ids=lambda file: file.parents[1].name)
def test_errors_of_predictions_are_those_of_the_held_out_samples(file: Path) -> None:
    page, held, off = file.parent.with_suffix(".md").read_text(), _held(file), []
    calibrated = [each["configuration"] for each in json.loads((file.parent / "model.json").read_text())["observed"]]
    known = {(each["path"], each["work"] != "tcp", each["pairs"], each["message"], each["load"]) for each in calibrated}
    assert not known & held.keys()
    rows = list(HELD.finditer(page))
    assert len(rows) == len(held)
    for row in rows:
        key = (row[1], bool(row[2]), int(row[3]), _bytes(row[4]), int(row[5]))
        size = RATES[row[7]]
        measured, predicted = _median(sorted(held[key])), _number(row[6]) * size
        cells = [cell.strip() for cell in page[row.start() :].splitlines()[0].split("|")]
        shown = re.match(r"[0-9.\u202f]+", cells[4])
        assert shown
        assert _number(shown[0]) * size == pytest.approx(measured, rel=0.006)
        error = predicted / measured - 1
        assert float(cells[5].removesuffix(" %")) == pytest.approx(100 * error, abs=1.3)
        if not row[2]:
            off.append(abs(error))
    rising = sorted(off)
    said = re.search(r"\| all \d+ \| throughput \| ([0-9.]+) %, ([0-9.]+) %, ([0-9.]+) % \|", page)
    assert said
    found = [_median(rising), *(rising[math.ceil(share * len(rising)) - 1] for share in (0.9, 0.95))]
    assert [float(each) for each in said.groups()] == pytest.approx([100 * each for each in found], abs=0.6)


Blocks = dict[str, list[tuple[str, dict[tuple[str, str], float]]]]
"""By build, its runs as they began: name, and the ratio of each primary endpoint by variant and measure."""


def _blocks(folder: Path) -> Blocks:
    found: list[tuple[str, str, str, dict[tuple[str, str], float]]] = []
    for run in folder.glob("*/*/run.json"):
        told = json.loads(run.read_text())
        for stated in told["experiments"]:
            primary = [each for each in stated["experiment"].get("expect", []) if each.get("primary")]
            if stated["experiment"]["name"] == "promises" and primary:
                ratios = _endpoints(stated, primary, _values(run.parent / "promises.csv.gz"))
                name = f"{run.parent.parent.name}/{run.parent.name}"
                build = told["record"]["machine"]["versions"]["memlane"]
                found.append((told["record"]["began"], build, name, ratios))
    blocks: Blocks = {}
    for _, build, name, ratios in sorted(found, key=lambda each: each[0]):
        blocks.setdefault(build, []).append((name, ratios))
    return blocks


def _endpoints(stated: dict[str, Any], primary: list[dict[str, Any]], values: Values) -> dict[tuple[str, str], float]:
    """The ratio of each primary endpoint."""
    ratios, names = {}, {json.dumps(each["labels"], sort_keys=True): each["name"] for each in stated["variants"]}
    for each in primary:
        for labels in (variant["labels"] for variant in stated["variants"]):
            if all(labels.get(name) == label for name, label in each["where"].items()):
                sides = [names[json.dumps(own, sort_keys=True)] for own in (labels, labels | each["versus"])]
                ratio = _ratio(*(values[side][each["measure"]] for side in sides))
                assert ratio
                place = ", ".join(each["versus"].values())
                ratios[f"{sides[0]} against {place}", each["measure"]] = ratio[0]
    return ratios


def _between(ratios: list[float]) -> tuple[float, ...]:
    """The geometric mean; of five and more, the bounds of that mean and of one more run (Student's t)."""
    logarithms = [math.log(each) for each in ratios]
    count = len(logarithms)
    middle = sum(logarithms) / count
    if count < 5:
        return (math.exp(middle),)
    spread = math.sqrt(sum((each - middle) ** 2 for each in logarithms) / (count - 1))
    halves = [float(t.ppf(0.975, count - 1)) * spread * math.sqrt(part) for part in (1 / count, 1 + 1 / count)]
    return math.exp(middle), *(math.exp(middle + sign * half) for half in halves for sign in (-1, 1))


def _told_and_found(folder: Path) -> Iterator[tuple[object, object]]:
    """Of each build on the page of headlines: runs, days and figures as told, and as the samples say."""
    page, blocks = (folder / "headlines.md").read_text(), _blocks(folder)
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    yield sorted(section.splitlines()[0] for section in sections), sorted(blocks)
    for section in sections:
        runs = blocks[section.splitlines()[0]]
        counted = re.search(r"\*\*(\d+) runs? \(days: (\d+)", section)
        assert counted
        days = {name.split("/")[0] for name, _ in runs}
        yield tuple(map(int, counted.groups())), (len(runs), len(days))
        yield ("no headline yet" not in section) <= (len(runs) >= 5), True
        yield re.findall(r"^\| \[(\S+)\]\(", section, re.MULTILINE), [name for name, _ in runs]
        rows = [re.split(r" ?\| ?", line)[1:-1] for line in section.splitlines() if re.search(r"(least|most) ", line)]
        told = sorted((TITLES[row[1]], [float(each) for each in row[3].split(", ")]) for row in rows)
        each = [(key[1], [ratios[key] for _, ratios in runs]) for key in runs[0][1]]
        yield told, sorted((measure, [_rounded(ratio) for ratio in ratios]) for measure, ratios in each)
        for row in rows:
            bounds = re.match(r"([0-9.]+) x(?: \(([0-9.]+) to ([0-9.]+)\))?", row[4])
            assert bounds
            more = row[5].split(" to ") if row[5] != "-" else []
            figures = [float(value) for value in (*filter(None, bounds.groups()), *more)]
            said = [[_rounded(value) for value in _between(ratios)] for _, ratios in each]
            yield figures in said, True


def test_headlines_are_what_the_samples_of_their_runs_say(tmp_path: Path) -> None:
    every = list(_told_and_found(BENCHMARKS))
    assert [each for each in every if each[0] != each[1]] == []
    folder = tmp_path / "docs" / "benchmarks"
    for number, factor in enumerate((0.9, 0.97, 1.0, 1.05, 1.2)):
        run = made_up.headline(tmp_path / str(number), number, factor, spread=(0.8, 0.9, 1.0))
        published.publish(run, "headlines", folder)
    other = made_up.headline(tmp_path / "other", 4, 0.7, versions={"memlane": "another"})
    published.publish(other, "headlines-too", folder)
    every = list(_told_and_found(folder))
    assert [each for each in every if each[0] != each[1]] == []
    assert len(every) > 10
    page = folder / "headlines.md"
    page.write_text(page.read_text().replace("| 1.80, ", "| 1.60, "))
    assert [each for each in _told_and_found(folder) if each[0] != each[1]] != []


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
