"""Two runs compared: only what was asked alike, on machines alike, with at most one thing changed between them.

The **inputs** of a run are what its figures depend on and its samples do not vary: the experiments as they were stated,
the machine, the versions. Two runs whose inputs differ in one **dimension** tell what that dimension does; if they
differ in more, nobody could say which of them it was, and the comparison is refused.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from memlane_lab import alike, results, summary
from memlane_lab.errors import LabError
from memlane_lab.experiment import Experiment, measure
from memlane_lab.labels import Labels, words
from memlane_lab.measures import scale, significant
from memlane_lab.results import ExperimentResult, RunRecord
from memlane_lab.stats import median

_OF_MACHINE = ("cpu", "cpus", "memory", "kernel", "governor", "sysctls")
_FREE = frozenset({"repeat", "paper", "expect", "title", "question", "source", "found", "reading", "measures"})
"""What an experiment says that does not change what is measured."""


def compare(before: Path, after: Path) -> Iterator[Table]:
    """A table for each experiment; raises if the two runs cannot be compared."""
    (one, mine), (other, theirs) = results.read(before), results.read(after)
    changed = _changed(_inputs(one, mine), _inputs(other, theirs))
    names, others = ({result.experiment.name for result in found} for found in (mine, theirs))
    if names != others:
        raise LabError(f"only one of the two runs has measured {', '.join(sorted(names ^ others))}")
    if len(changed) > 1:
        raise LabError(f"the two runs differ in more than one thing, so neither explains the other: {_told(changed)}")
    what = _told(changed) if changed else "nothing was changed between them"
    counterparts = {result.experiment.name: result for result in theirs}
    for result in mine:
        yield _table(result, counterparts[result.experiment.name], what)


def differences(before: RunRecord, after: RunRecord) -> str:
    """In what the circumstances of two runs differ, in words; empty if in nothing."""
    return _told(_changed(_inputs(before, []), _inputs(after, [])))


def _inputs(record: RunRecord, found: list[ExperimentResult]) -> dict[str, str]:
    """Everything that must be equal, by dimension."""
    inputs: dict[str, Any] = {"guests": record.guest}
    inputs |= {f"machine: {name}": record.machine.get(name) for name in _OF_MACHINE}
    inputs |= {f"version: {name}": told for name, told in record.machine.get("versions", {}).items()}
    inputs |= {f"experiment {result.experiment.name}": _stated(result.experiment) for result in found}
    return {name: json.dumps(value, sort_keys=True) for name, value in inputs.items()}


def _stated(asked: Experiment) -> dict[str, Any]:
    return {name: value for name, value in asked.model_dump(mode="json").items() if name not in _FREE}


def _changed(mine: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys((*mine, *theirs))
    pairs = {name: (mine.get(name, "absent"), theirs.get(name, "absent")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _told(changed: Mapping[str, tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {_short(one)} against {_short(other)}" for name, (one, other) in changed.items())


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _table(mine: ExperimentResult, theirs: ExperimentResult, what: str) -> Table:
    table = Table("variant", "measure", "first", "second", "ratio", "p", "placement", title=mine.experiment.name)
    table.caption = what
    for labels in (each.labels for each in mine.variants):
        for name in mine.experiment.measures:
            if words := _words(mine, theirs, labels, name):
                table.add_row(*words)
    return table


def _words(mine: ExperimentResult, theirs: ExperimentResult, labels: Labels, name: str) -> list[str] | None:
    good = {
        side: [sample for sample in result.good if sample.labels == labels and name in sample.values]
        for side, result in (("first", mine), ("second", theirs))
    }
    if not all(good.values()):
        return None
    chosen = alike.choose(good)
    first, second = ([sample.values[name] for sample in chosen.samples[side]] for side in ("first", "second"))
    used = scale(measure(name).unit, [*first, *second])
    found = summary.contrast(second, first)
    ratio = f"{_ratio(found.ratio.estimate, found.ratio.low, found.ratio.high)}" if found.ratio else "-"
    sure = significant(found.probability, 2) if found.probability is not None else "-"
    medians = [used.text(median(values).estimate) for values in (first, second)]
    return [words(labels) or "all", measure(name).title, *medians, ratio, sure, chosen.placement]


def _ratio(estimate: float, low: float, high: float) -> str:
    return f"{significant(estimate)} x ({significant(low)} to {significant(high)})"
