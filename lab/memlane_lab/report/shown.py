"""The figures that README, index and performance show: chosen by a rule among the published runs, never by hand.

**The rule.** A cell is the ratio of memlane to another path at one work and placement. Of all published runs of this
release that measured both, the newest is shown: its median ratio, its interval, its number of rounds, its commit. The
column *all runs* has the lowest and the highest bound of all such runs with the same kind of guests. A cell without any
run says *not measured*. Only published samples count, and each of them does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlane_lab.experiment.labels import Labels
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult, RunRecord
from memlane_lab.statistics.measures import significant
from memlane_lab.statistics.stats import Interval

Runs = Mapping[str, tuple[RunRecord, Sequence[ExperimentResult]]]
"""Published runs by DATE/NAME."""


@dataclass(frozen=True)
class Row:
    """One measure at one work."""

    title: str
    measure: str
    work: Labels


@dataclass(frozen=True)
class Column:
    """One rival at one placement of the CPUs."""

    title: str
    path: str
    cpus: str


ROWS = (
    Row("TCP, 1 MB writes: throughput", "throughput", {"work": "TCP, 1 MB writes"}),
    Row("the same: CPU per GB", "cpu_per_gb", {"work": "TCP, 1 MB writes"}),
    Row("TCP, 128 KB writes: throughput", "throughput", {"work": "TCP, 128 KB writes"}),
    Row("the same: CPU per GB", "cpu_per_gb", {"work": "TCP, 128 KB writes"}),
    Row("TCP at 941 Mbit/s, a full line of 1 Gbit/s: CPU", "cpu", {"flow": "941 Mbit/s"}),
    Row("request and answer: median", "rtt_p50", {"work": "request and answer"}),
    Row("the same: 99th percentile", "rtt_p99", {"work": "request and answer"}),
    Row("the same: CPU", "cpu_per_exchange", {"work": "request and answer"}),
    Row("UDP, 1400 B: datagrams", "datagrams", {"work": "UDP, 1400 B"}),
)
COLUMNS = (
    Column("bridge", "bridge", "free"),
    Column("bridge behind memlane's driver", "memlane-bridge", "free"),
    Column("bridge, all on one CPU", "bridge", "one CPU"),
    Column("bridge behind memlane's driver, all on one CPU", "memlane-bridge", "one CPU"),
    Column("OVS-DPDK, its core polls", "ovs-dpdk", "free"),
)
_PLACES: Mapping[str, Mapping[str, Labels]] = {
    "free": {"promises": {}, "fair_baselines": {"cpus": "free"}, "what_virtualisation_costs": {"load": "no load"}},
    "one CPU": {"fair_baselines": {"cpus": "one CPU"}},
}
"""By placement: the experiments that have it, each with the labels that say so."""
_SUBJECT = "memlane"
GUESTS = {"uml": "User Mode Linux", "tcg": "QEMU TCG", "kvm": "QEMU with KVM"}
_OTHERS = "other work"
"""The entry of a machine's prices that is no time (`measuring/prices.py`)."""
_BETTER = "more is better of throughput and datagrams, less of all else"


@dataclass(frozen=True)
class Found:
    """A ratio in one run."""

    run: str
    """DATE/NAME."""
    record: RunRecord
    ratio: Interval
    rounds: int


@dataclass(frozen=True)
class Cell:
    """A ratio in every run that has it, the newest first."""

    row: Row
    column: Column
    runs: Sequence[Found]

    @property
    def newest(self) -> Found | None:
        """The run that is shown."""
        return self.runs[0] if self.runs else None

    @property
    def reach(self) -> tuple[float, float, int] | None:
        """The lowest and the highest bound of all runs with the guests of the newest, and how many runs these are."""
        alike = [each for each in self.runs if each.record.guest == self.runs[0].record.guest]
        if not alike:
            return None
        bounds = [bound for each in alike for bound in each.ratio.bounds or (each.ratio.estimate,)]
        return min(bounds), max(bounds), len(alike)


def release(record: RunRecord) -> str:
    """The release of a run's switch, as 0.1.0; empty: unknown."""
    told = str(record.machine.get("versions", {}).get("memlane", "")).split()
    return told[1] if len(told) > 1 else ""


def of_release(runs: Runs, wanted: str) -> Runs:
    """The runs of one release."""
    return {name: run for name, run in runs.items() if release(run[0]) == wanted}


def newest_first(runs: Runs) -> list[tuple[str, RunRecord, Sequence[ExperimentResult]]]:
    """The runs by their beginning, the newest first."""
    every = [(name, record, found) for name, (record, found) in runs.items()]
    return sorted(every, key=lambda each: each[1].began, reverse=True)


def newest_of(runs: Runs, experiment: str) -> tuple[str, RunRecord, ExperimentResult] | None:
    """The newest run of an experiment."""
    for name, record, found in newest_first(runs):
        for each in found:
            if each.experiment.name == experiment:
                return name, record, each
    return None


def cells(runs: Runs, rows: Sequence[Row] = ROWS) -> list[list[Cell]]:
    """Every cell of the table, row by row."""
    return [[Cell(row, column, list(_found(runs, row, column))) for column in COLUMNS] for row in rows]


def _found(runs: Runs, row: Row, column: Column) -> Iterator[Found]:
    for name, record, results in newest_first(runs):
        for result in results:
            place = _PLACES[column.cpus].get(result.experiment.name)
            found = None if place is None else contrast(result, row, place, column.path)
            if found and found.ratio:
                yield Found(name, record, found.ratio, found.rounds)


def contrast(result: ExperimentResult, row: Row, place: Labels, rival: str) -> summary.Contrast | None:
    """The ratio of memlane to the rival in one experiment; None where it has no such variants."""
    own, other = ({"path": path} | row.work | place for path in (_SUBJECT, rival))
    if set(own) != set(result.experiment.vary) or not all(each in summary.known(result) for each in (own, other)):
        return None
    return summary.contrast(result, row.measure, own, other)


def table(runs: Runs, folder: str, rows: Sequence[Row] = ROWS) -> str:
    """The table in Markdown, with the runs that it is of; `folder`, with a slash, leads to docs/benchmarks."""
    every = [row for row in cells(runs, rows) if any(cell.runs for cell in row)]
    shown = list(dict.fromkeys(cell.newest.run for row in every for cell in row if cell.newest))
    letters = {run: chr(ord("a") + number) for number, run in enumerate(shown)}
    head = ["", f"{COLUMNS[0].title}, newest run", "all runs", *(each.title for each in COLUMNS[1:])]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join([row[0].row.title, *_texts(row, letters)])} |" for row in every]
    records = {run: runs[run][0] for run in shown}
    return "\n".join([*lines, "", *_sources(records, letters, folder), ""])


def _texts(row: Sequence[Cell], letters: Mapping[str, str]) -> list[str]:
    told = [_text(cell, letters) for cell in row]
    return [told[0], _reach(row[0]), *told[1:]]


def _text(cell: Cell, letters: Mapping[str, str]) -> str:
    if (found := cell.newest) is None:
        return "*not measured*"
    return f"{ratio(found)} <sup>{letters[found.run]}</sup>"


def ratio(found: Found) -> str:
    """A ratio with its interval and its number of rounds."""
    bounds = " to ".join(significant(bound, 3) for bound in found.ratio.bounds or ())
    return f"{significant(found.ratio.estimate, 3)} x ({', '.join(filter(None, (bounds, f'n = {found.rounds}')))})"


def _reach(cell: Cell) -> str:
    if (reach := cell.reach) is None:
        return "*not measured*"
    low, high, count = reach
    return f"{significant(low, 3)} to {significant(high, 3)}, {count} run{'s' if count > 1 else ''}"


def _sources(records: Mapping[str, RunRecord], letters: Mapping[str, str], folder: str) -> Iterator[str]:
    """Where the figures are from: each run with its commit, guests, machine, and the rule."""
    machines = ", ".join(dict.fromkeys(map(_machine, records.values())))
    told = "; ".join(dict.fromkeys(prices(record.machine) for record in records.values()))
    yield f"memlane to the other path ({_BETTER}), with intervals of 95 % in that run; {machines}."
    yield f"What the machine takes for a system call and for waking a process: {told}."
    runs = (
        f"<sup>{letters[run]}</sup> [{run}]({folder}{run}.md), commit {record.machine.get('commit', 'unknown')}"
        for run, record in records.items()
    )
    yield f"Runs, by [a rule]({folder}figures.md): " + ";\n".join(runs) + "."


def _machine(record: RunRecord) -> str:
    guests = GUESTS.get(record.guest, record.guest)
    return f"{guests} guests on {record.machine.get('cpus', '?')} CPUs of {record.machine.get('cpu', 'unknown')}"


def prices(machine: Mapping[str, Any]) -> str:
    """The prices of a machine's primitives, in words."""
    told = machine.get("prices")
    if not isinstance(told, dict):
        return "not recorded"
    times = (f"{name} {significant(value * 1e6, 2)} µs" for name, value in told.items() if name != _OTHERS)
    return f"{', '.join(times)}, beside {significant(told.get(_OTHERS, 0.0), 2)} CPUs of other work"


def page(runs: Runs, measuring: str) -> str:
    """The page docs/benchmarks/figures.md: the rule, the table, and every run behind each cell."""
    lines = [_HEAD.format(measuring=measuring), table(runs, ""), "## Every run behind a figure", ""]
    lines += ["| figure | against | run | commit | ratio |", "|---|---|---|---|---|"]
    for cell in (cell for row in cells(runs) for cell in row):
        for found in cell.runs:
            named = title(cell.row)
            place = f"[{found.run}]({found.run}.md)"
            commit = found.record.machine.get("commit", "unknown")
            lines.append(f"| {named} | {cell.column.title} | {place} | {commit} | {ratio(found)} |")
    return "\n".join([*lines, ""])


def title(row: Row) -> str:
    """A row's title where none stands above it."""
    return f"{next(iter(row.work.values()))}: {row.title.removeprefix('the same: ').split(': ')[-1]}"


_HEAD = """<!-- Generated by `memlane-lab figures`. Do not edit. -->

# Figures of the front page, by rule

Each cell is the ratio of memlane to another path at one work and placement of the CPUs. Of all published runs of this
release that measured both, **the newest is shown**, whatever it says, with its commit. *All runs*: the lowest and the
highest bound of all such runs with the same kind of guests. A ratio that no run has is *not measured*. Plots of
[performance](../explanation/performance.md) are of the newest run of their experiment. `memlane-lab figures` writes the
figures of README and docs again; `memlane-lab figures --check` names each shown run since which the data path changed,
and fails at a release ([how the lab measures]({measuring})).
"""

BEGIN = "<!-- Figures: generated by `memlane-lab figures`. Do not edit. -->"
END = "<!-- End of figures -->"


def placed(text: str, block: str) -> str:
    """A page with `block` between its marks, in place of an earlier one."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}" if found and ended else text


def in_short(row: Row) -> bool:
    """Whether a row stands on the index, too."""
    return row in (ROWS[0], ROWS[1], ROWS[4], ROWS[5])


def commits(runs: Runs) -> dict[str, list[str]]:
    """Commits of all shown figures, with the runs of each."""
    told: dict[str, list[str]] = {}
    for cell in (cell for row in cells(runs) for cell in row if cell.newest):
        assert cell.newest
        names = told.setdefault(str(cell.newest.record.machine.get("commit", "unknown")), [])
        if cell.newest.run not in names:
            names.append(cell.newest.run)
    return told
