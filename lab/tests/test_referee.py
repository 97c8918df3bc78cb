"""A referee's recomputation of published pages, from the committed samples alone (`referee.py`).

Nothing of the lab's own statistics, readers or tables is used, so that a mistake in them is found.
"""

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from scipy.stats import t

from memlane_lab.commands import published
from tests import made_up, referee

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
TOP = BENCHMARKS.parents[1]
RUNS = sorted(BENCHMARKS.glob("*/*/run.json"))
TITLES = {title: name for title, (name, _, _) in referee.measures(TOP).items()}

Values = dict[str, dict[str, dict[int, float]]]
"""By variant, by measure, by round."""


def _values(file: Path) -> Values:
    return referee.samples(file)[0]


def _ratio(one: dict[int, float], other: dict[int, float]) -> float:
    return median(one[at] / other[at] for at in one.keys() & other.keys())


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


_number = referee.number


def _referee(top: Path) -> subprocess.CompletedProcess[str]:
    """Runs the referee without the lab's own code: -I leaves out the folder that it is in."""
    command = [sys.executable, "-I", str(Path(__file__).with_name("referee.py")), str(top)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_published_figure_is_what_the_samples_say() -> None:
    told = _referee(TOP)
    assert told.returncode == 0, told.stdout
    count, every = map(int, re.findall(r"\d+", told.stdout))
    assert count == every > 7000
    assert not re.search("^(import|from) memlane", Path(referee.__file__).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "told", "instead", "place"),
    [
        ("2026-11-29/fair-baselines.md", "**13.9 Gbit/s** (13.5", "**13.7 Gbit/s** (13.2", "throughput, received"),
        ("2026-11-29/fair-baselines.md", "**4.06 x** (3.39", "**4.16 x** (3.39", "TCP, 1 MB writes, free / bridge"),
        ("2026-11-29/fair-baselines.md", "far only: 0.827 x", "far only: 0.727 x", "request and answer, free, far"),
        ("2026-11-29/fair-baselines.md", "n = 6), one CPU | 12.2", "n = 6), free | 12.2", "one CPU"),
        ("2026-11-29/fair-baselines.md", "corrected 0.12", "corrected 0.03", "Holm"),
        ("2026-11-29/fair-baselines.md", "**1.12 x** (0.952 to", "**1.12 x** (0.912 to", "together, Fair baselines"),
        ("2026-11-29/fair-baselines.md", "p = 0.016, corrected", "p = 0.013, corrected", "together, Fair baselines"),
        ("2026-11-29/fair-baselines.md", "0.016, corrected 0.048", "0.016, corrected 0.016", "together, Holm"),
    ],
)  # fmt: skip
def test_a_figure_that_the_samples_do_not_say_is_found(
    page: str, told: str, instead: str, place: str, tmp_path: Path
) -> None:
    _copy_pages(tmp_path)
    changed = tmp_path / "docs" / "benchmarks" / page
    assert told in changed.read_text()
    changed.write_text(changed.read_text().replace(told, instead))
    found = _referee(tmp_path)
    assert found.returncode == 1
    assert place in found.stdout


def _copy_pages(to: Path) -> None:
    for name in ("docs/benchmarks", "docs/reference", "docs/explanation"):
        shutil.copytree(TOP / name, to / name, ignore=shutil.ignore_patterns("*.svg"))
    for name in ("README.md", "docs/index.md"):
        shutil.copy(TOP / name, to / name)


@pytest.mark.parametrize(
    ("told", "instead", "place"),
    [
        (r"(TCP, 1 MB writes: throughput \| )[\d.]+ x", r"\g<1>9.99 x", "README.md, TCP, 1 MB writes"),
        (r"\| [\d.]+ to [\d.]+, \d+ runs", "| 0.01 to 0.02, 1 run", "all runs"),
        (r"(1 Gbit/s: CPU \| )[\d.]+ x[^|]*", r"\g<1>*not measured* ", "941 Mbit/s"),
    ],
)
def test_a_figure_of_the_front_page_that_no_run_says_is_found(
    told: str, instead: str, place: str, tmp_path: Path
) -> None:
    _copy_pages(tmp_path)
    front = tmp_path / "README.md"
    changed, count = re.subn(told, instead, front.read_text(), count=1)
    assert count == 1
    front.write_text(changed)
    found = _referee(tmp_path)
    assert found.returncode == 1
    assert place in found.stdout


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
HELD = re.compile(r"\| (\S+), (answers, )?(\d+) pairs?, ([0-9KM]+), load (\d+) % \| ([0-9.\u202f]+) (\S+) \|")
RATES = {"1/s": 1.0, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}
Key = tuple[str, bool, int, int, int]
"""Path, whether answers are waited for, pairs, bytes a message, load."""


def _key(asked: dict[str, Any]) -> Key:
    return asked["path"], asked["work"] != "tcp", asked["pairs"], asked["message"], asked["load"]


def _held(file: Path) -> dict[Key, list[float]]:
    """Rates of each configuration's samples."""
    found: dict[Key, list[float]] = {}
    for each in json.loads(file.read_text())["observed"]:
        found.setdefault(_key(each["configuration"]), []).append(each["rate"])
    return found


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KM]?)", text).groups()  # type: ignore[union-attr]
    return int(number) << {"": 0, "K": 10, "M": 20}[unit]


def _errors(off: list[float]) -> list[float]:
    """Median, worst decile and root mean square of logarithms, in per cent."""
    rising = sorted(map(abs, off))
    rms = math.sqrt(sum(math.log1p(each) ** 2 for each in off) / len(off))
    return [100 * each for each in (median(rising), rising[math.ceil(0.9 * len(rising)) - 1], rms)]


@pytest.mark.parametrize("file", CHECKS, ids=lambda file: file.parents[1].name)
def test_errors_of_predictions_are_those_of_the_held_out_samples(file: Path) -> None:
    page, held, off = file.parent.with_suffix(".md").read_text(), _held(file), []
    calibrated = json.loads((file.parent / "model.json").read_text())["observed"]
    assert not {_key(each["configuration"]) for each in calibrated} & held.keys()
    rows = list(HELD.finditer(page))
    assert len(rows) == len(held)
    for row in rows:
        key = (row[1], bool(row[2]), int(row[3]), _bytes(row[4]), int(row[5]))
        size = RATES[row[7]]
        measured, predicted = median(held[key]), _number(row[6]) * size
        cells = [cell.strip() for cell in page[row.start() :].splitlines()[0].split("|")]
        shown = re.match(r"[0-9.\u202f]+", cells[4])
        assert shown
        assert _number(shown[0]) * size == pytest.approx(measured, rel=0.006)
        error = predicted / measured - 1
        assert float(cells[5].removesuffix(" %")) == pytest.approx(100 * error, abs=1.3)
        if not row[2]:
            off.append(error)

    def told(name: str) -> list[float]:
        cell = re.search(rf"^\| {re.escape(name)} \| ([^|]+) \|", page, re.MULTILINE)
        assert cell, name
        return [float(each) for each in re.findall(r"[0-9.]+", cell[1])]

    assert told("this model") == pytest.approx(_errors(off), abs=0.6)
    for model in json.loads((file.parent / "withdrawn.json").read_text())["models"]:
        rates = {_key(each["configuration"]): each["rate"] for each in model["predicted"]}
        off = [rates[key] / median(held[key]) - 1 for key in held if not key[1]]
        assert told(model["name"]) == pytest.approx(_errors(off), abs=0.06)


Blocks = dict[str, list[tuple[str, dict[tuple[str, str], float]]]]
"""By build, its runs as they began: name, and the ratio of each primary endpoint by variant and measure."""


def _blocks(folder: Path) -> Blocks:
    found: list[tuple[str, str, str, dict[tuple[str, str], float]]] = []
    titles: dict[str, str] = {}
    """By commit of a kept switch, or by build: the build of its first run."""
    for run in sorted(folder.glob("*/*/run.json")):
        told = json.loads(run.read_text())
        for stated in told["experiments"]:
            primary = [each for each in stated["experiment"].get("expect", []) if each.get("primary")]
            if stated["experiment"]["name"] == "promises" and primary:
                ratios = _endpoints(stated, primary, _values(run.parent / "promises.csv.gz"))
                name = f"{run.parent.parent.name}/{run.parent.name}"
                machine = told["record"]["machine"]
                of = machine["commit"] if "lab commit" in machine else machine["versions"]["memlane"]
                build = titles.setdefault(of, machine["versions"]["memlane"])
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
                place = ", ".join(each["versus"].values())
                ratios[f"{sides[0]} against {place}", each["measure"]] = ratio
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
    page, blocks = (folder / "headlines.md").read_text().split(_VARIANCE)[0], _blocks(folder)
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


_VARIANCE = "## Variance by level"


def test_variances_by_level_are_what_the_samples_say() -> None:
    """By hand, of the published runs: days and builds, runs within them, and samples within those."""
    section = (BENCHMARKS / "headlines.md").read_text().partition(_VARIANCE)[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| memlane")]
    days: dict[tuple[str, str], list[Path]] = {}
    for file in sorted(BENCHMARKS.glob("*/*/promises.csv.gz")):
        run = json.loads((file.parent / "run.json").read_text())["record"]
        days.setdefault((run["began"][:10], run["machine"]["commit"]), []).append(file)
    assert len(rows) == 8
    for what, title, count, levels, _, _, five in rows:
        variant, _, rival = what.rpartition(" by ")
        other, measure = variant.replace("memlane", rival, 1), TITLES[title]
        groups = [list(_ratios(files, (variant, other), measure)) for files in days.values()]
        groups = [runs for runs in groups if runs]
        told = re.fullmatch(
            r"build \+ day (\d+) % \(df (\d+)\); run (\d+) % \(df (\d+)\); boot \+ sample (\d+) % \(df (\d+)\)", levels
        )
        assert told
        assert int(count) == sum(map(len, groups))
        variances, freedom = _nested(groups)
        deviations = [round(100 * variance**0.5) for variance in variances]
        assert [*map(int, told.groups())] == [each for pair in zip(deviations, freedom, strict=True) for each in pair]
        each = [run for runs in groups for run in runs]
        middle, size = fmean([fmean(run) for run in each]), sum(map(len, each)) / len(each)
        day, within, sample = variances
        half = float(t.ppf(0.975, 4)) * math.sqrt((day + within + sample / size) * (1 + 1 / 5))
        bounds = [_rounded(math.exp(middle + sign * half)) for sign in (-1, 1)]
        assert [float(each) for each in five.split(": ")[0].split(" to ")] == bounds


def _ratios(files: list[Path], variants: tuple[str, str], measure: str) -> Iterator[list[float]]:
    """The logarithms of each run's ratios, of the runs that have both variants."""
    for values in map(_values, files):
        if measure in values.get(variants[0], {}) and measure in values.get(variants[1], {}):
            one, two = (values[variant][measure] for variant in variants)
            yield [math.log(one[at] / two[at]) for at in one.keys() & two.keys()]


def _nested(groups: list[list[list[float]]]) -> tuple[list[float], list[int]]:
    """Variances of groups, of runs in a group, and of values in a run, none below 0, and their degrees of freedom.

    Searle, Casella and McCulloch, Variance Components, appendix F.1, two-way nested data of any size.
    """
    runs = [(number, run) for number, group in enumerate(groups) for run in group]
    sizes = [sum(map(len, group)) for group in groups]
    means = [fmean([value for run in group for value in run]) for group in groups]
    total = sum(sizes)
    grand = sum(size * mean for size, mean in zip(sizes, means, strict=True)) / total
    freedom = [len(groups) - 1, len(runs) - len(groups), total - len(runs)]
    sample = sum((value - fmean(run)) ** 2 for _, run in runs for value in run) / freedom[2]
    inner = sum(len(run) ** 2 / sizes[number] for number, run in runs)
    squares = sum(len(run) * (fmean(run) - means[number]) ** 2 for number, run in runs)
    within = (squares - freedom[1] * sample) / (total - inner)
    squares = sum(size * (mean - grand) ** 2 for size, mean in zip(sizes, means, strict=True))
    left = inner - sum(len(run) ** 2 for _, run in runs) / total
    group = (squares - freedom[0] * sample - left * within) / (total - sum(size**2 for size in sizes) / total)
    return [max(0.0, group), max(0.0, within), sample], freedom


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
