"""Whether two runs say the same: the ratios that both judge, side by side.

Figures are those of a machine and of a day; ratios ought to outlast both. Two runs **agree** on a ratio if their
intervals have a value in common, and are **apart** if not. Wide intervals agree with nearly anything, so they are
always shown beside the word. Two runs of other builds may differ because their builds do: it is said.

**Between runs** of one build, five or more, each run is a block: `between_runs` gives every ratio its interval.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memlane_lab.common.errors import LabError
from memlane_lab.results import comparison, summary
from memlane_lab.results.results import ExperimentResult, RunRecord
from memlane_lab.results.summary import Judgement, Verdict
from memlane_lab.statistics import stats
from memlane_lab.statistics.stats import BetweenRuns


class Agreement(StrEnum):
    """A ratio in two runs."""

    AGREE = "agree"
    APART = "apart"
    UNDECIDED = "undecided"
    """One of them has no interval: too few samples, or none."""


@dataclass(frozen=True)
class Both:
    """An expectation, and its verdict in each of the two runs."""

    experiment: str
    """Its title."""
    one: Verdict
    other: Verdict

    @property
    def agreement(self) -> Agreement:
        """By the intervals alone, without the expectation."""
        bounds = [each.found.bounds for each in (self.one, self.other) if each.found and each.found.bounds]
        if len(bounds) < 2:
            return Agreement.UNDECIDED
        (low, high), (least, most) = bounds
        return Agreement.AGREE if low <= most and least <= high else Agreement.APART


def between(ones: Sequence[ExperimentResult], others: Sequence[ExperimentResult]) -> list[Both]:
    """Every ratio that both runs judge by the same bounds, in the order of the first.

    Left out are experiments of which more than that was changed, and those of other guests.
    """
    counterparts = {each.experiment.name: each for each in others}
    return [
        both
        for one in ones
        if (other := counterparts.get(one.experiment.name))
        and one.guest == other.guest
        and not comparison.stated_differently(one.experiment, other.experiment)
        for both in _of_experiment(one, other)
    ]


def _of_experiment(one: ExperimentResult, other: ExperimentResult) -> Iterator[Both]:
    theirs = {_about(each): each for each in summary.verdicts(other)}
    for mine in summary.verdicts(one):
        if mine.versus and (match := theirs.get(_about(mine))):
            yield Both(one.experiment.title, mine, match)


def _about(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.what, verdict.claim.expectation.measure, verdict.versus, verdict.wanted


def came(found: Sequence[Both]) -> str:
    """How many agree, are apart and are undecided."""
    counts = Counter(each.agreement for each in found)
    return ", ".join(f"{counts[word]} {word}" for word in Agreement)


def exit_code(found: Sequence[Both]) -> int:
    """1 if any are apart, 3 if any are undecided or there are none, else 0."""
    seen = {each.agreement for each in found}
    return 1 if Agreement.APART in seen else 3 if Agreement.UNDECIDED in seen or not found else 0


_BUILDS = ("memlane", "open vswitch", "uml kernel", "qemu")
"""Versions of programs that carry frames."""


def builds(record: RunRecord) -> dict[str, str]:
    """The builds of a run, and its commits."""
    versions = record.machine.get("versions", {})
    return {name: str(versions.get(name, "unknown")) for name in _BUILDS}


_SWITCH = "memlane"
LAB_COMMIT = "lab commit"
"""Key of a machine's description: the lab's own commit, where the switch was built from another one."""


def alike(one: RunRecord, other: RunRecord) -> bool:
    """Whether both have the same switch: the same program, or one built from the same commit (`revisions.py`)."""
    commits = {each.machine.get("commit") if LAB_COMMIT in each.machine else None for each in (one, other)}
    return builds(one)[_SWITCH] == builds(other)[_SWITCH] or (len(commits) == 1 and None not in commits)


def other_builds(one: RunRecord, other: RunRecord) -> str:
    """The differing builds of two runs, in words; empty: they have the same."""
    mine, theirs = builds(one), builds(other)
    if alike(one, other):
        mine[_SWITCH] = theirs[_SWITCH]
    return "; ".join(f"{name}: {mine[name]} there, {theirs[name]} here" for name in mine if mine[name] != theirs[name])


@dataclass(frozen=True)
class Headline:
    """One expectation in several runs of one build."""

    what: str
    """The experiment, and the variant."""
    expectation: Verdict
    """In the first of the runs."""
    ratios: list[float]
    """The estimates, run by run."""
    found: BetweenRuns | None

    @property
    def judgement(self) -> Judgement:
        """Whether one more run of this build would hold, by the prediction interval."""
        if self.found is None or self.found.another is None:
            return Judgement.UNDECIDED
        return summary.within(self.found.another, self.expectation.claim.expectation)


Run = tuple[RunRecord, Sequence[ExperimentResult]]
"""A run, and its experiments with their samples."""


def between_runs(runs: Sequence[Run]) -> list[Headline]:
    """Every ratio that all these runs judge, each run a block; raises for runs that are no repetitions of one."""
    first, stated = runs[0]
    for record, found in runs[1:]:
        if changed := other_builds(first, record):
            raise LabError(f"an interval between runs is that of a single build, but these runs differ: {changed}")
        if first.guest != record.guest:
            raise LabError(f"these runs have {first.guest} guests and {record.guest} guests: name runs of one kind")
        if changed := _stated_differently(stated, found):
            raise LabError(f"these runs are not of one experiment: {changed}")
    began = Counter((record.began, str(record.machine.get("kernel"))) for record, _ in runs)
    if twice := [moment for (moment, _), times in began.items() if times > 1]:
        raise LabError(f"the run that began at {twice[0]} is named twice: name each run once")
    if not (headlines := _in_common(runs)):
        raise LabError("these runs have no judged ratio in common: name runs of one experiment")
    return headlines


def _stated_differently(ones: Sequence[ExperimentResult], others: Sequence[ExperimentResult]) -> str:
    counterparts = {each.experiment.name: each.experiment for each in others}
    told = {
        one.experiment.name: comparison.stated_differently(one.experiment, counterparts[one.experiment.name])
        for one in ones
        if one.experiment.name in counterparts
    }
    return "; ".join(f"{name}, {changed}" for name, changed in told.items() if changed)


def _in_common(runs: Sequence[Run]) -> list[Headline]:
    judged = [
        {
            (result.experiment.title, *_about(each)): each
            for result in found
            for each in summary.verdicts(result)
            if each.versus and each.found
        }
        for _, found in runs
    ]
    common = [about for about in judged[0] if all(about in each for each in judged)]
    return [_headline(about, [each[about] for each in judged]) for about in common]


def _headline(about: tuple[str, ...], verdicts: Sequence[Verdict]) -> Headline:
    ratios = [each.found.estimate for each in verdicts if each.found]
    return Headline(f"{about[0]}: {about[1]}", verdicts[0], ratios, stats.between_runs(ratios))


def of_one_build(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that are blocks of one interval between runs, together: one build, kind of guests, set of endpoints."""
    groups: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: run[0].began):
        own = next((group for group in groups if any(_repeats(run, each) for each in group)), None)
        if own is None:
            groups.append(own := [])
        own.append(run)
    return groups


def _repeats(one: Run, other: Run) -> bool:
    """Whether two runs are of one build and ask the same."""
    return not other_builds(one[0], other[0]) and one[0].guest == other[0].guest and _asked(one) == _asked(other)


def _asked(run: Run) -> str:
    stated = [comparison.stated(each.experiment) | {"expect": _endpoints(each)} for each in run[1]]
    return json.dumps(stated, sort_keys=True)


def _endpoints(result: ExperimentResult) -> list[str]:
    return [each.model_dump_json() for each in result.experiment.expect if each.primary]


def primary(runs: Sequence[Run]) -> list[Headline]:
    """The primary endpoints of runs of one build, each run a block."""
    return [each for each in _in_common(runs) if each.expectation.primary]


def _machine(record: RunRecord) -> str:
    """A kind of machine: another kernel on the same CPUs is no other one, so that none is counted twice."""
    return f"{record.machine.get('cpu')}, {record.machine.get('cpus')}"


def places(records: Sequence[RunRecord]) -> str:
    """The days and machines of several runs, and the number that a headline lacks."""
    days, machines = len({record.began[:10] for record in records}), len({_machine(record) for record in records})
    told = f"{len(records)} run{'s' if len(records) > 1 else ''} (days: {days}, machines: {machines})"
    if len(records) >= stats.FEWEST_RUNS and max(days, machines) >= HEADLINE_PLACES:
        return told
    return f"{told}: no headline yet, which needs {stats.FEWEST_RUNS} runs on {HEADLINE_PLACES} days or machines"


HEADLINE_PLACES = 3
"""Days or machines that a headline's runs are spread over."""


def between_exit_code(found: Sequence[Headline]) -> int:
    """1 if one more run would fail an expectation, 3 if that is undecided, else 0."""
    seen = {each.judgement for each in found}
    return 1 if Judgement.FAILS in seen else 3 if Judgement.UNDECIDED in seen else 0
