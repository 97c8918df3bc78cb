"""Tables of `memlane-lab profile` and `memlane-lab explain` for a terminal."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from rich.table import Column, Table

from memlane_lab.common.errors import LabError
from memlane_lab.profiling import costs, profile
from memlane_lab.profiling.explain import Difference, Explanation, explain
from memlane_lab.profiling.profile import Profile, Profiled
from memlane_lab.report import profile_plots
from memlane_lab.statistics.measures import significant


class By(StrEnum):
    """Keys by which costs are split into parts: `costs.BY`."""

    STAGE = "stage"
    PARTY = "party"
    BOTH = "both"
    FUNCTION = "function"


def tables(folder: Path) -> Iterator[Table]:
    """Of each experiment, the costs by stage and by party."""
    for _, found in profile.find(folder):
        for by in ("stage", "party"):
            for group, variants in profile_plots.groups(found).items():
                unit = costs.units(found.samples)[0]
                told = profile_plots.table(found, group, variants, by, unit)
                shown = Table(Column(told.header[0]), title=told.title, title_justify="left", box=None)
                for label in told.header[1:]:
                    shown.add_column(label, justify="right", no_wrap=True)
                for row in told.rows:
                    shown.add_row(*row)
                yield shown


def newest(folder: Path) -> Path:
    """The run in `folder` that was profiled last; raises if there is none."""
    runs = {path.parents[1] for path in folder.glob(f"*/*/{profile.NAME}")}
    if not runs:
        raise LabError(
            f"nothing in {folder} has been profiled: run `memlane-lab profile EXPERIMENT`, or name it by --in"
        )
    return max(runs, key=lambda path: path.stat().st_mtime)


def explanations(folder: Path, one: str, other: str, by: By, per: str | None, rows: int) -> Iterator[Table]:
    """A table for each pair of variants that have these labels and agree in all else."""
    found = [pair for _, each in profile.find(folder) for pair in _pairs(each, one, other)]
    if not found:
        raise LabError(
            f"no two profiled variants in {folder} differ in {one!r} and {other!r} alone; labels are: "
            f"{', '.join(labels(folder))}"
        )
    for stated, first, second in found:
        unit = per or costs.units([*first, *second])[0]
        yield _table(explain(first, second, by, unit), stated.unit, (one, other), rows)


def labels(folder: Path) -> list[str]:
    """All labels of the variants that were profiled there."""
    return sorted({label for _, each in profile.find(folder) for label in _labels(each)})


def _labels(found: Profile) -> set[str]:
    return {label for sample in found.samples for label in sample.labels.values()}


def _pairs(found: Profile, one: str, other: str) -> Iterator[tuple[Profile, list[Profiled], list[Profiled]]]:
    first, second = ([word.strip() for word in side.split(",")] for side in (one, other))
    variants = list(found.variants().values())
    for left in variants:
        for right in variants:
            if (
                left is not right
                and _matches(left, first)
                and _matches(right, second)
                and _alike(left, right, first, second)
            ):
                yield found, left, right


def _matches(samples: Sequence[Profiled], wanted: Sequence[str]) -> bool:
    return set(wanted) <= set(samples[0].labels.values())


def _alike(left: Sequence[Profiled], right: Sequence[Profiled], first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two variants agree in every label that was not asked for."""
    pairs = ((left[0].labels[name], right[0].labels[name]) for name in left[0].labels)
    return all(one == other or (one in first and other in second) for one, other in pairs)


def _table(found: Explanation, unit: str, names: tuple[str, str], most: int) -> Table:
    """`names` are the headings of the two variants' columns."""
    times = f"{significant(found.ratio)} x" if found.all.one else "-"
    title = f"{found.other} costs {times} of {found.one}: {unit} of CPU time per {found.unit}"
    shown = Table(Column("part", overflow="fold"), title=title, title_justify="left", box=None)
    for name in (*names, "more", "of all", ""):
        shown.add_column(name, justify="right", no_wrap=True)
    for part in found.parts[:most]:
        shown.add_row(*_row(part, found.all))
    if left := found.parts[most:]:
        rest = (sum(part.one for part in left), sum(part.other for part in left))
        shown.add_row(f"{len(left)} smaller ones", *map(significant, (*rest, rest[1] - rest[0])), "", "")
    shown.add_section()
    shown.add_row(*_row(found.all, found.all))
    return shown


def _row(part: Difference, every: Difference) -> list[str]:
    share = f"{part.more / every.more:.0%}" if every.told_apart else "-"
    more = f"{'+' if part.more > 0 else ''}{significant(part.more)} ± {significant(part.error, 2)}"
    sure = "" if part.told_apart else "unsure"
    return [part.name, significant(part.one), significant(part.other), more, share, sure]
