#!/usr/bin/env python3
"""A referee: recomputes every published figure from the committed samples, with nothing of the lab's own code.

lab/tests/referee.py [TOP]    prints each figure that differs, then how many agree; exit code 1 if any differs

Read are the pages docs/benchmarks/DATE/NAME.md, or their whole in DATE/NAME/page.md.gz; README.md and the pages with
its table; the samples beside them; and the names and units of measures in docs/reference/lab-measures.md. Recomputed
are medians, ratios within rounds, their intervals and numbers of rounds, the same of one placement of the CPUs, p of
sign tests with Holm's correction, the two-way analysis of primary endpoints, each path at its best, and which run the
front page shows.
"""

import csv
import gzip
import itertools
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

RENAMED = {"calls": "path_interrupts", "calls_per_frame": "path_interrupts_per_frame"}
SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3, "µ": 1e-6, "n": 1e-9}
NUMBER = r"(-?[0-9][0-9.\u202f]*)"
FIGURE = re.compile(rf"\*{{0,2}}{NUMBER}(?: (?!x)([^*(]+?))?\*{{0,2}} \((?:{NUMBER} to {NUMBER}, )?n = (\d+)")
RATIO = re.compile(rf"\*{{0,2}}{NUMBER} x\*{{0,2}} \((?:{NUMBER} to {NUMBER}, )?n = (\d+)")
TOGETHER = re.compile(rf"\*\*{NUMBER} x\*\* \({NUMBER} to {NUMBER}, (\d+) rounds, p = (\S+), corrected (\S+)\)")
TESTED = re.compile(r"n = \d+, p = ([0-9.e-]+)(?:, corrected ([0-9.e-]+))?\)")

Told = tuple[list[float], int]
"""An estimate with its bounds, if any, and the number of samples or rounds."""
Check = tuple[str, object, object]
"""Where a figure stands; as told; as found."""


class Run(NamedTuple):
    """A published run: its page, its statement, and the good samples by experiment, variant, measure and round."""

    name: str
    page: str
    stated: dict[str, Any]
    values: dict[str, dict[str, dict[str, dict[int, float]]]]
    places: dict[str, dict[str, dict[int, str]]]
    order: dict[str, dict[int, list[str]]]
    """By experiment and round, the variants in the order in which they were taken, failed ones among them."""


Read = tuple[dict[str, dict[str, dict[int, float]]], dict[str, dict[int, str]], dict[int, list[str]]]


def samples(file: Path) -> Read:
    """Values by variant, measure and round, placements by variant and round, of good samples; the order of all."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    places: dict[str, dict[int, str]] = {}
    with gzip.open(file, "rt") as opened:
        rows = list(csv.DictReader(opened))
    failed = {row["sample"] for row in rows if row["measure"] == "error"}
    for row in rows:
        if row["sample"] not in failed and not row["flow"]:
            name, at = RENAMED.get(row["measure"], row["measure"]), int(row["round"])
            values.setdefault(row["variant"], {}).setdefault(name, {})[at] = float(row["value"])
            places.setdefault(row["variant"], {})[at] = row["placement"]
    order: dict[int, list[str]] = {}
    for _, at, variant in sorted({(int(row["sample"]), int(row["round"]), row["variant"]) for row in rows}):
        order.setdefault(at, []).append(variant)
    return values, places, order


def runs(top: Path) -> list[Run]:
    """Every published run, the newest first."""
    found = []
    for file in top.glob("docs/benchmarks/*/*/run.json"):
        stated = json.loads(file.read_text())
        read = {
            each["experiment"]["name"]: samples(file.parent / f"{each['experiment']['name']}.csv.gz")
            for each in stated["experiments"]
        }
        values, places, order = ({name: each[part] for name, each in read.items()} for part in range(3))
        name = f"{file.parents[1].name}/{file.parent.name}"
        archive = file.parent / "page.md.gz"
        page = gzip.decompress(archive.read_bytes()).decode() if archive.exists() else ""
        page = page or file.parent.with_suffix(".md").read_text()
        found.append(Run(name, page, stated, values, places, order))  # type: ignore[arg-type]
    return sorted(found, key=lambda run: str(run.stated["record"]["began"]), reverse=True)


def measures(top: Path) -> dict[str, tuple[str, str, str]]:
    """By title: name, base unit and which way is better."""
    rows = [line.split(" | ") for line in (top / "docs/reference/lab-measures.md").read_text().splitlines()]
    return {row[1]: (row[0].strip("| `"), row[2].strip(), row[3]) for row in rows if row[0].startswith("| `")}


def summary(values: Sequence[float]) -> Told:
    """The median between the order statistics that hold it with 95 %; an interval without width is not told."""
    rising, bounds = sorted(values), []
    for outside in range(len(rising) // 2):
        if 2 * sum(math.comb(len(rising), number) for number in range(outside + 1)) / 2 ** len(rising) <= 0.05:
            bounds = [rising[outside], rising[-1 - outside]]
    return [statistics.median(rising), *(bounds if bounds and bounds[0] != bounds[1] else [])], len(rising)


def ratio(run: Run, experiment: str, measure: str, pair: tuple[str, str], place: str = "") -> tuple[Told, list[float]]:
    """The ratio of two variants by the rounds that both have, or those of one placement; none: no samples."""
    variants = [run.values[experiment].get(name, {}) for name in pair]
    one, other = (each.get(measure, {}) for each in variants)
    for variant, own in zip(variants, (one, other), strict=True):
        if any(rate == 0 and at not in own for at, rate in variant.get("throughput", {}).items()):
            return ([], 0), []
    where = [run.places[experiment].get(name, {}) for name in pair]
    shared = [at for at in sorted(one.keys() & other.keys()) if not place or {each[at] for each in where} == {place}]
    if not shared or min(other[at] for at in shared) <= 0:
        return ([], 0), []
    ratios = [one[at] / other[at] for at in shared]
    return summary(ratios), ratios


def commonest(run: Run, experiment: str, measure: str, pair: tuple[str, str]) -> str:
    """The placement of most rounds of a ratio; empty where that is all of them, or none."""
    one, other = (run.values[experiment].get(name, {}).get(measure, {}) for name in pair)
    rounds = [{run.places[experiment][name][at] for name in pair} for at in one.keys() & other.keys()]
    counts = Counter(sorted(place for each in rounds if len(each) == 1 for place in each if place != "moved"))
    place, count = next(iter(counts.most_common(1)), ("", 0))
    return place if count < len(rounds) else ""


def two_way(run: Run, experiment: str, measure: str, pair: tuple[str, str], beside: set[str]) -> tuple[Told, float]:
    """The first variant's coefficient, with the second as the base, in a fit of all that stand `beside`; and its p."""
    values, order = run.values[experiment], run.order[experiment]
    have = [
        (name, at, value, max(0.0, values[name].get("others", {}).get(at, 0.0)))
        for name in sorted(beside)
        for at, value in values.get(name, {}).get(measure, {}).items()
        if value > 0
    ]
    names, rounds = sorted({each[0] for each in have} - {pair[1]}), sorted({each[1] for each in have})
    rows = np.array([
        [1, *(name == one for one in names), *(at == one for one in rounds[1:]), order[at].index(name), others]
        for name, at, _, others in have
    ], dtype=float)  # fmt: skip
    rows = rows[:, rows.any(axis=0)]  # no reading of other work: no such column
    found, left, rank, _ = np.linalg.lstsq(rows, np.log([each[2] for each in have]), rcond=None)
    free, at = len(have) - rank, 1 + names.index(pair[0])
    error = math.sqrt(left[0] / free * np.linalg.inv(rows.T @ rows)[at, at])
    reach = t.ppf(0.975, free) * error
    return (
        [math.exp(found[at] + sign * reach) for sign in (0, -1, 1)],
        len(rounds),
    ), 2 * float(t.sf(abs(found[at]) / error, free))


def number(text: str) -> float:
    """A number as a page tells it."""
    return float(text.replace("\u202f", ""))


def told_by(pattern: re.Pattern[str], text: str) -> Told:
    """A cell's figures: a unit, if any, is left to the caller."""
    if not (found := pattern.search(text)):
        return [], 0
    parts = found.groups()
    return [number(each) for each in (parts[0], *parts[-3:-1]) if each], int(parts[-1])


def alike(told: object, found: object) -> bool:
    """Whether both are the same, to the three digits that pages have."""
    if isinstance(told, list) and isinstance(found, list):
        return len(told) == len(found) and all(map(alike, told, found))
    if isinstance(told, tuple) and isinstance(found, tuple):
        return all(map(alike, told, found))
    if isinstance(told, float) and isinstance(found, float):
        return math.isclose(told, found, rel_tol=0.006)
    return told == found


def tables(page: str) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Each table below a heading of the third level: section, heading, rows with their header."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        for part in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
            lines = [line for line in part.splitlines() if line.startswith("|") and not line.startswith("|---")]
            rows = [[cell.strip() for cell in re.split(r" ?\| ", f"{line} ")[1:-1]] for line in lines]
            if rows:
                yield section.splitlines()[0], part.splitlines()[0], rows


class Page:
    """One experiment on one run's page."""

    def __init__(self, run: Run, stated: dict[str, Any], known: dict[str, tuple[str, str, str]]) -> None:
        self.run, self.asked, self.known = run, stated["experiment"], known
        self.name, self.compare = self.asked["name"], self.asked.get("compare", "path")
        self.variants = {json.dumps(each["labels"], sort_keys=True): each["name"] for each in stated["variants"]}
        self.labels = {each["name"]: each["labels"] for each in stated["variants"]}

    def variant(self, labels: dict[str, str]) -> str:
        """The name of the variant with these labels; empty: there is none."""
        return str(self.variants.get(json.dumps(labels, sort_keys=True), ""))

    def title(self, heading: str) -> str:
        """The measure's title that a heading begins with; empty: none."""
        return max(
            (each for each in self.known if heading == each or heading.startswith((f"{each}, ", f"{each}: each"))),
            key=len,
            default="",
        )

    def figure(self, cell: str, variant: str, title: str, heading: str) -> Iterator[Check]:
        """A variant's median in a cell; the unit is the cell's own or that of the heading."""
        measure, base, _ = self.known[title]
        if not (shown := FIGURE.match(cell)):
            return
        unit = shown[2] or heading.removeprefix(title).removeprefix(", ")
        size = SIZES.get(unit.removesuffix(base).strip()) if unit.endswith(base) else None
        if size:
            values = [value / size for value in self.run.values[self.name].get(variant, {}).get(measure, {}).values()]
            yield f"{self.name}, {heading}, {variant}", told_by(FIGURE, cell), summary(values) if values else ([], 0)

    def ratio(self, cell: str, pair: tuple[str, str], title: str) -> Iterator[Check]:
        """A ratio in a cell, and the same of one placement alone."""
        measure, place = self.known[title][0], f"{self.name}, {title}, {pair[0]} / {pair[1]}"
        found, _ = ratio(self.run, self.name, measure, pair)
        yield place, told_by(RATIO, cell), found
        if "only: " in cell:
            only = commonest(self.run, self.name, measure, pair)
            told, behind = re.search(r"(\w+) only: (.*)", cell).groups()  # type: ignore[union-attr]
            yield (
                f"{place}, {only}",
                (told, *told_by(RATIO, behind)),
                (only, *ratio(self.run, self.name, measure, pair, only)[0]),
            )

    def table(self, heading: str, rows: list[list[str]]) -> Iterator[Check]:
        """The table of a measure: groups down, compared labels and their ratios across."""
        title, best = self.title(heading), ": each at the best of " in heading
        dimensions = [name for name in self.asked.get("vary", {}) if name != self.compare]
        if not title or (not best and rows[0][: len(dimensions)] != dimensions):
            return
        for row in rows[1:]:
            at = dict(zip(rows[0], row, strict=False))
            group = {} if best else {name: at[name] for name in dimensions}
            own = {label: self.variant(group | {self.compare: label}) for label in rows[0][len(group) :]}
            if not dimensions and self.compare not in self.asked.get("vary", {}):
                own = {rows[0][0]: self.variant({})}
            if best:
                own = self.best(title, row[0], [head for head in rows[0][1:] if " / " not in head])
            for head, cell in itertools.islice(at.items(), len(group) or int(best), None):
                if " / " in head:
                    pair = tuple(
                        own.get(label, "") or self.variant(group | {self.compare: label}) for label in head.split(" / ")
                    )
                    yield from self.ratio(cell, pair, title)  # type: ignore[arg-type]
                elif variant := own.get(head):
                    yield from self.figure(cell, variant, title, heading)
                    if best and cell != "-":
                        yield (
                            f"{heading}, {head}",
                            cell.rsplit("), ")[-1],
                            self.labels[variant][self.asked["best_over"]],
                        )

    def best(self, title: str, group: str, compared: Sequence[str]) -> dict[str, str]:
        """By compared label, the variant of a group with the best median."""
        measure, _, better = self.known[title]
        found = {}
        for label in compared:
            have = [
                (statistics.median(values[measure].values()), name)
                for name, values in self.run.values[self.name].items()
                if measure in values
                and self.labels[name][self.compare] == label
                and group in self.labels[name].values()
            ]
            if have:
                found[label] = (max if better == "more" else min)(have)[1]
        return found

    def verdicts(self, lines: Sequence[str]) -> Iterator[tuple[bool, float | None, str, float]]:
        """Each tested ratio of the page's expectations: is it primary, corrected p as told, line, and p as found."""
        for line in lines:
            what, title, wanted, told, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
            tested, stated = TESTED.search(told), re.match(r"at (?:least|most) ([0-9.e+-]+) x of (.+)", wanted)
            subject = what.removeprefix(f"{self.asked['title']}: ")
            if tested and stated and subject in self.labels:
                rival = self.rival(subject, stated[2])
                ratios = ratio(self.run, self.name, self.known[title][0], (subject, rival))[1]
                sides = [
                    sum(each > float(stated[1]) for each in ratios),
                    sum(each < float(stated[1]) for each in ratios),
                ]
                tail = sum(math.comb(len(ratios), count) for count in range(max(sides), len(ratios) + 1)) / 2 ** len(
                    ratios
                )
                yield tested[2] is not None, number(tested[2]) if tested[2] else None, line, min(1.0, 2 * tail)

    def rival(self, subject: str, versus: str) -> str:
        """The variant with labels that differ from the subject's by these alone."""
        return next(
            str(name)
            for name, labels in self.labels.items()
            if versus == ", ".join(label for key, label in labels.items() if self.labels[subject][key] != label)
        )

    def together(self, cells: Sequence[str]) -> tuple[str, str, float, Told, float]:
        """A row of the two-way table: its place, its cell, corrected p as told; the ratio and p as found."""
        subject = cells[0].removeprefix(f"{self.asked['title']}: ")
        group = {key: label for key, label in self.labels[subject].items() if key != self.compare}
        pair = subject, self.rival(subject, cells[2])
        beside = {name for name, labels in self.labels.items() if group.items() <= labels.items()}
        told, p = two_way(self.run, self.name, self.known[cells[1]][0], pair, beside | set(pair))
        return " | ".join(cells[:3]), cells[3], float(TOGETHER.match(cells[3])[6]), told, p  # type: ignore[index]


def of_page(run: Run, known: dict[str, tuple[str, str, str]]) -> Iterator[Check]:
    """Every figure of a run's page."""
    pages = {each["experiment"]["title"]: Page(run, each, known) for each in run.stated["experiments"]}
    for section, heading, rows in tables(run.page):
        if section in pages:
            yield from pages[section].table(heading, rows)
    lines = [
        line
        for line in run.page.split("\n## Another")[0].splitlines()
        if re.match(r"\| .+: .+ \| at (least|most)", line)
    ]
    judged = [
        each
        for title, page in pages.items()
        for each in page.verdicts([line for line in lines if line.startswith(f"| {title}: ")])
    ]
    for _, _, line, p in judged:
        yield line, number(TESTED.search(line)[1]), float(f"{p:.2g}")  # type: ignore[index]
    yield from holm("Holm", [(p, told) for is_primary, told, _, p in judged if is_primary])
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in run.page.splitlines()
        if TOGETHER.search(line)
    ]
    analysed = [
        next(page for title, page in pages.items() if row[0].startswith(f"{title}: ")).together(row) for row in rows
    ]
    for place, cell, _, found, p in analysed:
        parts = TOGETHER.match(cell).groups()  # type: ignore[union-attr]
        told = [number(each) for each in parts[:3]], int(parts[3])
        yield f"together, {place}", (told, float(parts[4])), (found, float(f"{p:.2g}"))
    yield from holm("together, Holm", [(each[4], each[2]) for each in analysed])


def holm(place: str, tested: Sequence[tuple[float, float | None]]) -> Iterator[Check]:
    """Each p as the page corrects it for their number, and as found."""
    largest = 0.0
    for at, (p, told) in enumerate(sorted(tested, key=lambda each: each[0])):
        largest = max(largest, min(1.0, p * (len(tested) - at)))
        yield f"{place}, {at}", told, float(f"{largest:.2g}")


WORKS = {
    "TCP, 1 MB writes": ("work", "TCP, 1 MB writes"),
    "TCP, 128 KB writes": ("work", "TCP, 128 KB writes"),
    "TCP at 941 Mbit/s, a full line of 1 Gbit/s": ("flow", "941 Mbit/s"),
    "request and answer": ("work", "request and answer"),
    "UDP, 1400 B": ("work", "UDP, 1400 B"),
}
MEASURED = {
    "throughput": "throughput",
    "CPU per GB": "cpu_per_gb",
    "median": "rtt_p50",
    "99th percentile": "rtt_p99",
    "datagrams": "datagrams",
}
RIVALS = {
    "bridge, newest run": ("bridge", "free"),
    "bridge behind memlane's driver": ("memlane-bridge", "free"),
    "bridge, all on one CPU": ("bridge", "one CPU"),
    "bridge behind memlane's driver, all on one CPU": ("memlane-bridge", "one CPU"),
    "OVS-DPDK, its core polls": ("ovs-dpdk", "free"),
}
PLACES = {"free": [{}, {"cpus": "free"}, {"load": "no load"}], "one CPU": [{"cpus": "one CPU"}]}
SHOWN = ("promises", "fair_baselines", "what_virtualisation_costs")


def in_runs(every: Sequence[Run], work: str, what: str, rival: tuple[str, str]) -> list[tuple[Run, Told]]:
    """A ratio of the front page in each run that has it, the newest first."""
    dimension, label = WORKS[work]
    measure = MEASURED.get(what) or ("cpu" if dimension == "flow" else "cpu_per_exchange")
    found = []
    for run in every:
        for stated in run.stated["experiments"]:
            asked, page = stated["experiment"], Page(run, stated, {})
            for place in PLACES[rival[1]]:
                labels = {dimension: label} | place
                pair = tuple(page.variant({"path": path} | labels) for path in ("memlane", rival[0]))
                if asked["name"] in SHOWN and all(pair):
                    told, _ = ratio(run, asked["name"], measure, pair)  # type: ignore[arg-type]
                    found += [(run, told)] if told[0] else []
    return found


def front(page: Path, every: Sequence[Run]) -> Iterator[Check]:
    """The table of a page: each cell has letter, commit and figure of the newest run."""
    block = (
        page.read_text().partition("<!-- Figures:")[2].partition("<!-- End")[0] or page.read_text().split("\n## ")[0]
    )
    letters = {run: letter for letter, run in re.findall(r"<sup>(\w)</sup> \[([^]]+)\]", block)}
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if re.match(r"\| .+: .+ \| ", line)]
    header = ["bridge, newest run", "all runs", *list(RIVALS)[1:]]
    before = ""
    for title, *row in rows:
        before, what = (before if title.startswith("the same") else title.split(": ")[0]), title.split(": ")[1]
        for head, cell in zip(header, row, strict=True):
            found = in_runs(every, before, what, RIVALS.get(head, ("bridge", "free")))
            place = f"{page.name}, {before}, {title}, {head}"
            if head == "all runs":
                alike_runs = [
                    told
                    for run, told in found
                    if run.stated["record"]["guest"] == found[0][0].stated["record"]["guest"]
                ]
                bounds = [bound for told, _ in alike_runs for bound in (told[1:] or told)]
                low, high, count = re.match(rf"{NUMBER} to {NUMBER}, (\d+) run", cell).groups()  # type: ignore[union-attr]
                yield place, ([number(low), number(high)], int(count)), ([min(bounds), max(bounds)], len(alike_runs))
            elif not found:
                yield place, cell, "*not measured*"
            else:
                run, told = found[0]
                letter = cell.partition("<sup>")[2].partition("<")[0]
                yield place, (letter, *told_by(RATIO, cell)), (letters.get(run.name), *told)
                yield (
                    f"{place}, commit",
                    f"{run.name}.md), commit {run.stated['record']['machine']['commit']}" in block,
                    True,
                )


def checks(top: Path) -> Iterator[Check]:
    """Every figure that is checked."""
    every, known = runs(top), measures(top)
    for run in every:
        yield from ((f"{run.name}: {place}", told, found) for place, told, found in of_page(run, known))
    for name in ("README.md", "docs/index.md", "docs/explanation/performance.md", "docs/benchmarks/figures.md"):
        yield from front(top / name, every)


def main() -> int:
    """Checks all; returns the exit code."""
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    every = list(checks(top))
    wrong = [each for each in every if not alike(each[1], each[2])]
    for place, told, found in wrong:
        print(f"{place}: the page says {told}, the samples {found}")
    print(f"{len(every) - len(wrong)} of {len(every)} figures are what the samples say")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
