"""A run: experiments measured one after the other, each sample appended to the results as soon as it is taken.

Samples that were taken are kept: an interrupted run is reported as interrupted.
"""

import os
import secrets
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from memlane_lab.common import errors
from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say, span
from memlane_lab.experiment import claims, experiment, plan
from memlane_lab.experiment.experiment import Experiment, Where
from memlane_lab.experiment.plan import Turn, Variant
from memlane_lab.host import cgroup
from memlane_lab.host.ports import GuestKind
from memlane_lab.images import foreign
from memlane_lab.measuring import counted as counting
from memlane_lab.measuring import machine, prices, retaking, rig
from memlane_lab.measuring.builds import Unchanged
from memlane_lab.measuring.counted import CountingSampler
from memlane_lab.measuring.rig import RigSampler
from memlane_lab.measuring.sample import Sampler
from memlane_lab.measuring.scoreboard import Scoreboard
from memlane_lab.paths import memlane
from memlane_lab.profiling.profiler import Profiler
from memlane_lab.results import comparison, results
from memlane_lab.results.results import ExperimentResult, Missing, RunRecord, Sample, VariantRecord

_OVERHEAD = 2.5
"""Seconds that a sample takes beside warm-up and measured part, until the first ones have shown it."""


@dataclass(frozen=True)
class Planned:
    """An experiment with all that is known before it is measured."""

    experiment: Experiment
    file: Path
    variants: list[Variant]
    missing: list[Missing]

    @property
    def samples(self) -> int:
        """How many samples are taken at least."""
        return len(self.variants) * self.experiment.repeat

    @property
    def seconds(self) -> float:
        """About how long they take."""
        if self.experiment.bed is Where.COUNTED:
            return self.experiment.repeat * sum(counting.seconds(each.setting) for each in self.variants)
        if self.experiment.bed is Where.RIG:
            unpaced = self.experiment.seconds
            return self.experiment.repeat * sum(rig.seconds(each.setting, unpaced) for each in self.variants)
        return self.samples * (self.experiment.warm_up + self.experiment.seconds + _OVERHEAD)


def prepare(
    files: Sequence[Path],
    kind: GuestKind,
    repeat: int | None = None,
    *,
    only: Sequence[str] = (),
    versus: Path | None = None,
    primary: bool = False,
) -> list[Planned]:
    """Reads and checks all experiments before anything is started; `only` and `versus` are those of `plan`.

    With `primary`, experiments and variants of primary endpoints only.
    """
    found = [experiment.load(path) for path in files]
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LabError(f"two experiments have the same name: {', '.join(sorted(twice))}")
    for each in found:
        plan.variants(each)  # the file is checked before it is changed
    found = plan.narrowed(found, only)
    if primary:
        compared = [(path, plan.of_primaries(each)) for path, each in zip(files, found, strict=True)]
        files, found = [path for path, each in compared if each], [each for _, each in compared if each]
        if not found:
            raise LabError("none of these experiments names a primary endpoint: leave out --primary")
    if versus:
        found = [plan.versus(each, versus) for each in found]
    planned = [_planned(each, path, kind) for each, path in zip(found, files, strict=True)]
    if repeat:
        changed = {"repeat": repeat}
        planned = [replace(each, experiment=each.experiment.model_copy(update=changed)) for each in planned]
    return planned


def measure(
    planned: Sequence[Planned],
    kind: GuestKind,
    out: Path,
    seed: int | None = None,
    *,
    resume: bool = False,
    narrowing: Sequence[str] = (),
    rate: int | None = None,
    retake: int = 0,
) -> None:
    """Measures all of them into the folder `out`, beside experiments measured there before in the same circumstances.

    `narrowing` are the words of the command line by which `planned` differs from the files. With `resume`,
    experiments begun there continue: with samples that an interruption left out, or more rounds. With a `rate`, all are
    profiled, at so many hits a second on each CPU. Samples beside other work are taken again, `retake` times at most.
    """
    if reason := cgroup.lack():
        raise LabError(f"CPU time cannot be measured: {reason}")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    record = RunRecord(
        commands=[_command(planned, kind, seed, narrowing, rate)],
        guest=kind,
        began=_now(),
        machine=machine.describe() | {"prices": prices.measure(), "other builds": _other_builds(planned)},
        experiments=[each.experiment.name for each in planned],
    )
    before: dict[str, ExperimentResult] = {}
    if (out / "run.json").exists():
        earlier, found = results.read(out)
        before = {each.experiment.name: each for each in found}
        record = _added(earlier, record, out, resume=resume)
    results.write(out, record)
    begun = [going_on(_empty(each, kind, seed), before.get(each.experiment.name)) for each in planned]
    for each in begun:  # so that a run that ends early can be read
        results.write_experiment(out, each)
    for warning in filter(None, (claims.advice(each.experiment) for each in planned)):
        say(warning)
    unchanged = Unchanged(_programs(planned))
    with Scoreboard(sum(each.seconds for each in planned)) as board:
        for stated, result in zip(planned, begun, strict=True):
            profiler = Profiler(stated.experiment, rate, out / stated.experiment.name) if rate else None
            _measure(stated, result, kind, out, board, profiler, unchanged, retake)
    results.write(out, record.model_copy(update={"ended": _now()}))


def within(planned: Sequence[Planned], seconds: float) -> list[Planned]:
    """The experiments with as many rounds as about fit into that time; raises if not one does."""
    a_round = sum(each.seconds / each.experiment.repeat for each in planned)
    rounds = int(seconds / a_round) if a_round else 1
    if rounds < 1:
        raise LabError(
            f"a budget of {span(seconds)} is too small for one round, which takes about {span(a_round)}: give more, or "
            "leave variants out by --only"
        )
    rounds = min(rounds, _MOST_ROUNDS)
    return [replace(each, experiment=each.experiment.model_copy(update={"repeat": rounds})) for each in planned]


_MOST_ROUNDS = 100


def shops(planned: Sequence[Planned]) -> set[tuple[int, int]]:
    """The sizes of all shops that the experiments need: books and customers."""
    found = [variant.setting.shop for each in planned for variant in each.variants]
    return {(shop.items, shop.customers) for shop in found if shop}


def _programs(planned: Sequence[Planned]) -> set[Path]:
    """The switches that are measured."""
    settings = [variant.setting for each in planned for variant in each.variants]
    builds = {each.build or memlane.program() for each in settings if each.path.startswith(memlane.Memlane.name)}
    return {build for build in builds if build}


def _other_builds(planned: Sequence[Planned]) -> dict[str, str]:
    """The switches that are measured beside the one built here."""
    settings = [variant.setting for each in planned for variant in each.variants]
    found = {each.program: each.build for each in settings if each.program and each.build}
    told = {program: machine.build(build) for program, build in sorted(found.items())}
    newest = any(each.path_options.get("newest") for each in settings)
    return told | ({"newest Open vSwitch": foreign.ovs_version()} if newest else {})


def outlook(planned: Sequence[Planned]) -> Table:
    """The planned samples, and about how long they take."""
    table = Table("experiment", "variant", "samples", "about", "note")
    for each in planned:
        for variant in each.variants:
            seconds = each.seconds / len(each.variants)
            table.add_row(each.experiment.name, variant.name, str(each.experiment.repeat), span(seconds), "")
        for lost in each.missing:
            table.add_row(each.experiment.name, lost.variant, "-", "-", f"missing: {lost.reason}")
    table.add_section()
    table.add_row(
        "all", "", str(sum(each.samples for each in planned)), span(sum(each.seconds for each in planned)), ""
    )
    return table


def going_on(asked: ExperimentResult, before: ExperimentResult | None) -> ExperimentResult:
    """An experiment that goes on where it was; raises if it is not the same."""
    if before is None:
        return asked
    if changed := comparison.stated_differently(before.experiment, asked.experiment):
        raise LabError(f"{asked.experiment.name} cannot be resumed, because it has changed: {changed}")
    if before.samples and (moved := _primary(before.experiment) ^ _primary(asked.experiment)):
        raise LabError(
            f"{asked.experiment.name} cannot be resumed, because its primary endpoints have changed since its first "
            f"sample ({'; '.join(sorted(moved))}): name another folder with --out"
        )
    if before.samples and _primary(asked.experiment) and asked.experiment.repeat != before.experiment.repeat:
        rounds = counted(before.experiment.repeat, "round")
        raise LabError(
            f"{asked.experiment.name} began with {rounds}, and its report may have been seen: "
            "another number of rounds after a look gives more than 5 % of false verdicts on primary endpoints; "
            f"continue with --repeat {before.experiment.repeat}, measure all rounds anew into another folder with "
            "--out, or join runs with `memlane-lab between`"
        )
    facts = {each.name: each.facts for each in before.variants}
    variants = [each.model_copy(update={"facts": facts.get(each.name, {})}) for each in asked.variants]
    known = {each.name for each in variants}
    kept = [each for each in before.variants if each.name not in known]
    return asked.model_copy(
        update={"seed": before.seed, "samples": before.samples, "variants": [*variants, *kept], "complete": False}
    )


def _primary(stated: Experiment) -> set[str]:
    return {each.model_dump_json() for each in stated.expect if each.primary}


def _added(before: RunRecord, now: RunRecord, out: Path, *, resume: bool) -> RunRecord:
    """The record of a folder to which experiments or samples are added."""
    twice = set(before.experiments) & set(now.experiments)
    if twice and not resume:
        raise LabError(
            f"{out} holds results of {', '.join(sorted(twice))} already: name another folder with --out, or go on "
            "there with --resume"
        )
    if changed := comparison.differences(before, now):
        raise LabError(f"{out} holds results of a different set-up ({changed}): name another folder with --out")
    commits = dict.fromkeys((*before.machine.get("commit", "").split(", "), now.machine.get("commit", "")))
    return now.model_copy(
        update={
            "machine": now.machine | {"commit": ", ".join(filter(None, commits))},
            "commands": [*before.commands, *now.commands],
            "began": before.began,
            "experiments": list(dict.fromkeys((*before.experiments, *now.experiments))),
        }
    )


def _planned(stated: Experiment, file: Path, kind: GuestKind) -> Planned:
    found, missing = [], []
    for variant in plan.variants(stated):
        if reason := _lacking(variant, stated.bed, kind):
            missing.append(Missing(variant=variant.name, labels=variant.labels, reason=reason))
        else:
            found.append(variant)
    return Planned(stated, file, found, missing)


def _lacking(variant: Variant, bed: Where, kind: GuestKind) -> str | None:
    """Why the variant cannot be measured on this machine, or None."""
    match bed:
        case Where.COUNTED:
            return errors.reason(lambda: counting.missing(variant.setting))
        case Where.RIG:
            return errors.reason(lambda: rig.missing(variant.setting))
        case Where.LIVE:
            return errors.reason(lambda: plan.missing(variant, kind))


def _empty(planned: Planned, kind: GuestKind, seed: int) -> ExperimentResult:
    variants = [
        VariantRecord(name=each.name, labels=each.labels, setting=each.setting.model_dump(mode="json", by_alias=True))
        for each in planned.variants
    ]
    return ExperimentResult(
        experiment=planned.experiment,
        file=_named(planned.file),
        guest=kind,
        seed=seed,
        variants=variants,
        missing=planned.missing,
    )


def _measure(
    planned: Planned,
    result: ExperimentResult,
    kind: GuestKind,
    out: Path,
    board: Scoreboard,
    profiler: Profiler | None,
    unchanged: Unchanged,
    retake: int,
) -> None:
    board.begin(result, planned.seconds, remaining(planned, result.samples))
    for missing in planned.missing:
        say(f"{planned.experiment.name}: {missing.variant} cannot be measured: {missing.reason}")
    raw = out / planned.experiment.name / "raw"
    try:
        with _sampler(planned, kind, raw, result.samples, profiler) as sampler:

            def take(turn: Turn) -> Sample:
                nonlocal result
                board.next(turn.variant.name)
                unchanged.check()
                sample = retaking.undisturbed(lambda: sampler.take(turn), retake)
                if profiler:
                    profiler.add(sample)
                result = _with(result, sample, sampler)
                results.append_sample(out, result, sample)
                board.add(result, sample)
                return sample

            take_all(planned, list(result.samples), take, result.seed)
        result = result.model_copy(update={"complete": True})
    finally:  # an interruption too: appended samples go into the files that outlive the lab's versions
        results.write_experiment(out, result)
        if profiler:
            profiler.close()
    board.end()


def _sampler(
    planned: Planned, kind: GuestKind, raw: Path, taken: Sequence[Sample], profiler: Profiler | None
) -> Sampler | CountingSampler | RigSampler:
    if planned.experiment.bed is Where.COUNTED:
        return CountingSampler(planned.variants, raw, rounds=planned.experiment.repeat, taken=taken)
    first = max((each.number for each in taken), default=0) + 1
    if planned.experiment.bed is Where.RIG:
        return RigSampler(planned.experiment.seconds, raw, first=first)
    return Sampler(planned.experiment, kind, raw, first=first, profiler=profiler)


def _with(
    result: ExperimentResult, sample: Sample, sampler: Sampler | CountingSampler | RigSampler
) -> ExperimentResult:
    variants = [
        each if each.facts else each.model_copy(update={"facts": sampler.facts.get(each.name, {})})
        for each in result.variants
    ]
    return result.model_copy(update={"samples": [*result.samples, sample], "variants": variants})


def remaining(planned: Planned, taken: Sequence[Sample]) -> int:
    """How many samples are still to be taken."""
    counted = planned.experiment.bed is Where.COUNTED
    names = {each.name for each in planned.variants}
    have = {
        (each.round, each.variant)
        for each in taken
        if each.variant in names and each.round < planned.experiment.repeat and not (counted and each.error)
    }
    return planned.samples - len(have)


def take_all(planned: Planned, taken: list[Sample], take: Callable[[Turn], Sample], seed: int) -> None:
    """Takes the planned samples.

    Where instructions are counted, failed samples are tried once more. Where time is measured they are not: a sample
    taken hours after those of its round would be compared with them.
    """
    asked = planned.experiment
    counted = asked.bed is Where.COUNTED
    for number in range(asked.repeat):
        have = {(sample.round, sample.variant) for sample in taken if not (counted and sample.error)}
        turns = plan.turns(planned.variants, compared=asked.compare, number=number, seed=seed)
        taken += [take(turn) for turn in turns if (number, turn.variant.name) not in have]


def _command(planned: Sequence[Planned], kind: GuestKind, seed: int, narrowing: Sequence[str], rate: int | None) -> str:
    """The command that repeats the run."""
    words = ["memlane-lab", "profile" if rate else "run", *(_named(each.file) for each in planned)]
    repeats = {each.experiment.repeat for each in planned}
    words += ["--guest", kind, "--seed", str(seed)]
    if len(repeats) == 1:
        words += ["--repeat", str(repeats.pop())]
    return shlex.join([*words, *(["--rate", str(rate)] if rate else []), *narrowing])


def _named(file: Path) -> str:
    """The file as seen from the repository, if it is in there; else its name alone, because folders differ."""
    repository = experiment.FOLDER.parents[1]
    found = file.resolve()
    return str(found.relative_to(repository)) if found.is_relative_to(repository) else found.name


def default_folder() -> Path:
    """The usual folder for results: results/DATE-TIME under the current folder."""
    return Path("results") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def unmeasured(folder: Path) -> list[str]:
    """The experiments of which there is not one good sample."""
    return [each.experiment.name for each in results.read(folder)[1] if not each.good]


def own_files_again(out: Path) -> None:
    """Gives the results to the user that called sudo, so that they can be removed without it."""
    if not (user := os.environ.get("SUDO_UID")):
        return
    for path in [out, *out.rglob("*")]:
        with suppress(OSError):
            os.chown(path, int(user), int(os.environ.get("SUDO_GID", user)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
