"""A change judged: two runs, or two builds within one run, with at most one thing changed between them.

The **inputs** of a run determine its figures, and its samples do not vary them: the experiments as they were stated,
the machine, the versions. Two runs whose inputs differ in one **dimension** show the effect of that dimension; if they
differ in more, the effect could be of any of them, and the comparison is refused.

Each measure of each variant gets a **verdict**, by the interval of the ratio of after to before.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from memlane_lab.common.errors import LabError
from memlane_lab.experiment.experiment import Experiment, measure
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.results import alike, results, summary
from memlane_lab.results.results import ExperimentResult, RunRecord, Sample
from memlane_lab.statistics import stats
from memlane_lab.statistics.measures import Better, scale, significant
from memlane_lab.statistics.stats import Interval

ALIKE = 1.05
"""So many times more or less is no difference that anybody would mind."""

_OF_MACHINE = ("cpu", "cpus", "memory", "kernel", "governor", "sysctls")
_FREE = frozenset(
    {
        "repeat", "paper", "expect", "title", "question", "source", "found", "reading", "measures", "skip", "baseline",
        "best_over",
    }
)  # fmt: skip
"""Keys of an experiment that do not change its samples."""


class Verdict(StrEnum):
    """The change of a measure."""

    BETTER = "better"
    WORSE = "worse"
    ALIKE = "alike"
    UNDECIDED = "undecided"
    """The interval holds 1 and more than the band that counts as alike, or there is none."""


@dataclass(frozen=True)
class Change:
    """One measure of one variant, before and after."""

    experiment: str
    variant: str
    measure: str
    before: float
    """Median."""
    after: float
    ratio: Interval | None
    """After to before."""
    probability: float | None
    placement: str

    @property
    def verdict(self) -> Verdict:
        """By the interval of the ratio."""
        if self.ratio is None or self.ratio.bounds is None:
            return Verdict.UNDECIDED
        low, high = self.ratio.bounds
        if low >= 1 / ALIKE and high <= ALIKE:
            return Verdict.ALIKE
        if low <= 1 <= high:
            return Verdict.UNDECIDED
        more = measure(self.measure).better is Better.MORE
        return Verdict.BETTER if (low > 1) == more else Verdict.WORSE


def compare(before: Path, after: Path) -> tuple[list[Change], str]:
    """The change of each measure, and the changed input; raises if the two runs cannot be compared."""
    (one, mine), (other, theirs) = results.read(before), results.read(after)
    changed = _changed(_inputs(one, mine), _inputs(other, theirs))
    names, others = ({result.experiment.name for result in found} for found in (mine, theirs))
    if names != others:
        raise LabError(f"only one of the two runs has measured {', '.join(sorted(names ^ others))}")
    if len(changed) > 1:
        raise LabError(
            f"the two runs differ in more than one thing, so their comparison explains nothing: {_told(changed)}"
        )
    counterparts = {result.experiment.name: result for result in theirs}
    changes = [each for result in mine for each in _between(result, counterparts[result.experiment.name])]
    told = _told(changed) if changed else "nothing was changed between them"
    own = _told(_changed(_lab(one), _lab(other)))
    return changes, f"{told}; the lab itself has changed, too ({own})" if own else told


def within(found: Iterable[ExperimentResult]) -> list[Change]:
    """The change of each measure where two builds were measured in one run, round by round."""
    return [
        each
        for result in found
        for name in _judged(result.experiment)
        for row in summary.rows(result, name)
        for each in _of_row(result, row)
    ]


def exit_code(changes: Sequence[Change]) -> int:
    """1 if anything became worse, 3 if anything is undecided, else 0."""
    verdicts = {change.verdict for change in changes}
    return 1 if Verdict.WORSE in verdicts else 3 if Verdict.UNDECIDED in verdicts or not changes else 0


def tables(changes: Sequence[Change], caption: str) -> Iterator[Table]:
    """A table for each experiment; each p is corrected for the number of all."""
    corrected = iter(stats.holm([each.probability for each in changes if each.probability is not None]))
    sure = [None if each.probability is None else next(corrected) for each in changes]
    for name in dict.fromkeys(each.experiment for each in changes):
        table = Table("variant", "measure", "before", "after", "ratio", "p, of all", "placement", "", title=name)
        table.caption = caption
        for each, probability in zip(changes, sure, strict=True):
            if each.experiment == name:
                table.add_row(*_words(each, probability))
        yield table


def _words(change: Change, corrected: float | None) -> list[str]:
    used = scale(measure(change.measure).unit, [change.before, change.after])
    sure = "-"
    if change.probability is not None and corrected is not None:
        sure = f"{significant(change.probability, 2)}, {significant(corrected, 2)}"
    return [
        change.variant,
        measure(change.measure).title,
        used.text(change.before),
        used.text(change.after),
        _ratio(change.ratio) if change.ratio else "-",
        sure,
        change.placement,
        change.verdict,
    ]


def _ratio(found: Interval) -> str:
    bounds = f" ({significant(found.bounds[0])} to {significant(found.bounds[1])})" if found.bounds else ""
    return f"{significant(found.estimate)} x{bounds}"


def _judged(asked: Experiment) -> list[str]:
    """The measures of which more or less is better."""
    return [name for name in asked.measures if measure(name).better is not Better.NEITHER]


def _of_row(result: ExperimentResult, row: summary.Row) -> Iterator[Change]:
    for (label, base), contrast in row.contrasts.items():
        before, after = (stats.median(row.cells[each].values).estimate for each in (base, label))
        name = result.experiment.name
        yield Change(
            name, row.name, row.measure, before, after, contrast.ratio, contrast.probability, contrast.placement
        )


def _between(mine: ExperimentResult, theirs: ExperimentResult) -> Iterator[Change]:
    for labels in (each.labels for each in mine.variants):
        for name in _judged(mine.experiment):
            have = {"before": _having(mine, labels, name), "after": _having(theirs, labels, name)}
            if all(have.values()):
                before, after = ([each.values[name] for each in samples] for samples in have.values())
                ratio, probability = stats.apart(after, before)
                yield Change(
                    experiment=mine.experiment.name,
                    variant=words(labels) or "all",
                    measure=name,
                    before=stats.median(before).estimate,
                    after=stats.median(after).estimate,
                    ratio=ratio,
                    probability=probability,
                    placement=alike.common_placement(each for samples in have.values() for each in samples),
                )


def _having(result: ExperimentResult, labels: Labels, name: str) -> list[Sample]:
    return [sample for sample in result.good if sample.labels == labels and name in sample.values]


def differences(before: RunRecord, after: RunRecord) -> str:
    """The differences between the circumstances of two runs, in words; empty without any."""
    return _told(_changed(_inputs(before, []) | _lab(before), _inputs(after, []) | _lab(after)))


def _inputs(record: RunRecord, found: list[ExperimentResult]) -> dict[str, str]:
    """Everything that must be equal, by dimension."""
    inputs: dict[str, Any] = {"guests": record.guest}
    inputs |= {f"machine: {name}": record.machine.get(name) for name in _OF_MACHINE}
    inputs |= {f"version: {name}": told for name, told in record.machine.get("versions", {}).items() if name != _LAB}
    inputs |= {f"image: {name}": told for name, told in record.machine.get("guests' images", {}).items()}
    inputs |= {f"experiment {result.experiment.name}": stated(result.experiment) for result in found}
    return {name: json.dumps(value, sort_keys=True) for name, value in inputs.items()}


_LAB = "memlane-lab"


def lab(record: RunRecord) -> str:
    """The lab's own version and build: changed, it is told, but does not forbid a comparison."""
    return str(record.machine.get("versions", {}).get(_LAB, "unknown"))


def _lab(record: RunRecord) -> dict[str, str]:
    return {_LAB: lab(record)}


def stated_differently(before: Experiment, after: Experiment) -> str:
    """The differences between two experiments that are to be one, in words; empty without any that matters."""
    one, other = ({name: json.dumps(value) for name, value in stated(each).items()} for each in (before, after))
    return _told(_changed(one, other))


def stated(asked: Experiment) -> dict[str, Any]:
    """The keys of an experiment that determine its samples."""
    return {name: value for name, value in asked.model_dump(mode="json").items() if name not in _FREE}


def _changed(mine: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys((*mine, *theirs))
    pairs = {name: (mine.get(name, "absent"), theirs.get(name, "absent")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _told(changed: Mapping[str, tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {_short(one)} against {_short(other)}" for name, (one, other) in changed.items())


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
