"""A run: experiments measured one after the other, their results written after every sample.

What has been measured stays, whatever happens later: an interrupted run is reported as what it is.
"""

import os
import secrets
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from memlane_lab import alike, comparison, experiment, machine, plan, results
from memlane_lab.errors import LabError
from memlane_lab.experiment import Experiment
from memlane_lab.meters import placement
from memlane_lab.paths import PATHS
from memlane_lab.plan import Turn, Variant
from memlane_lab.ports import GuestKind
from memlane_lab.progress import say
from memlane_lab.results import ExperimentResult, Missing, RunRecord, Sample, VariantRecord
from memlane_lab.sample import Sampler
from memlane_lab.scoreboard import Scoreboard

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
        return self.samples * (self.experiment.warm_up + self.experiment.seconds + _OVERHEAD)


def prepare(files: Sequence[Path], kind: GuestKind, repeat: int | None) -> list[Planned]:
    """Reads and checks all experiments before anything is started."""
    found = [experiment.load(path) for path in files]
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LabError(f"two experiments have the same name: {', '.join(sorted(twice))}")
    if repeat:
        found = [each.model_copy(update={"repeat": repeat}) for each in found]
    return [_planned(each, path, kind) for each, path in zip(found, files, strict=True)]


def measure(planned: Sequence[Planned], kind: GuestKind, out: Path, seed: int | None = None) -> None:
    """Measures all of them into the folder `out`, beside what was measured there before in the same circumstances."""
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    record = RunRecord(
        commands=[_command(planned, kind, seed)],
        guest=kind,
        began=_now(),
        machine=machine.describe(),
        experiments=[each.experiment.name for each in planned],
    )
    if (out / "run.json").exists():
        record = _added(results.read(out)[0], record, out)
    results.write(out, record)
    for each in planned:  # so that a run that ends early can be read
        results.write_experiment(out, _empty(each, kind, seed))
    with Scoreboard(sum(each.seconds for each in planned)) as board:
        for each in planned:
            _measure(each, kind, out, seed, board)
    results.write(out, record.model_copy(update={"ended": _now()}))


def _added(before: RunRecord, now: RunRecord, out: Path) -> RunRecord:
    """The record of a folder to which experiments are added."""
    if twice := set(before.experiments) & set(now.experiments):
        raise LabError(f"{out} holds results of {', '.join(sorted(twice))} already: name another folder with --out")
    if changed := comparison.differences(before, now):
        raise LabError(f"{out} holds results of other circumstances ({changed}): name another folder with --out")
    return now.model_copy(
        update={
            "commands": [*before.commands, *now.commands],
            "began": before.began,
            "experiments": [*before.experiments, *now.experiments],
        }
    )


def _planned(stated: Experiment, file: Path, kind: GuestKind) -> Planned:
    found, missing = [], []
    for variant in plan.variants(stated):
        if reason := plan.missing(variant, kind):
            missing.append(Missing(variant=variant.name, labels=variant.labels, reason=reason))
        else:
            found.append(variant)
    return Planned(stated, file, found, missing)


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


def _measure(planned: Planned, kind: GuestKind, out: Path, seed: int, board: Scoreboard) -> None:
    result = _empty(planned, kind, seed)
    board.begin(result, planned.seconds)
    for missing in planned.missing:
        say(f"{planned.experiment.name}: {missing.variant} cannot be measured: {missing.reason}")
    with Sampler(planned.experiment, kind, out / planned.experiment.name / "raw") as sampler:

        def take(turn: Turn) -> Sample:
            nonlocal result
            board.next(turn.variant.name)
            sample = sampler.take(turn)
            result = _with(result, sample, sampler)
            results.write_experiment(out, result)
            board.add(result, sample)
            return sample

        _take_all(planned, take, seed)
    results.write_experiment(out, result.model_copy(update={"complete": True}))
    board.end()


def _with(result: ExperimentResult, sample: Sample, sampler: Sampler) -> ExperimentResult:
    variants = [
        each if each.facts else each.model_copy(update={"facts": sampler.facts.get(each.name, {})})
        for each in result.variants
    ]
    return result.model_copy(update={"samples": [*result.samples, sample], "variants": variants})


def _take_all(planned: Planned, take: Callable[[Turn], Sample], seed: int) -> None:
    """Takes the planned samples, then what is lacking to compare like with like."""
    asked = planned.experiment
    taken: dict[str, list[Sample]] = defaultdict(list)
    for turn in _in_order(planned, seed):
        taken[turn.variant.name].append(take(turn))
    if not asked.same_placement or placement.lack():
        return
    for number in range(asked.repeat, asked.repeat + asked.repeat // 2):
        for turn in _lacking(planned, taken, number):
            taken[turn.variant.name].append(take(turn))


def _in_order(planned: Planned, seed: int) -> Iterator[Turn]:
    """The planned order; paths that poll come last, because nothing can be measured beside them."""
    asked = planned.experiment
    quiet = [variant for variant in planned.variants if not PATHS[variant.setting.path].polls]
    polling = [variant for variant in planned.variants if PATHS[variant.setting.path].polls]
    for variants in (quiet, polling):
        yield from plan.turns(variants, compared=asked.compare, rounds=asked.repeat, seed=seed)


def _lacking(planned: Planned, taken: dict[str, list[Sample]], number: int) -> list[Turn]:
    """One more sample of each variant that has too few in its group's leading placement."""
    groups: dict[str, list[Variant]] = defaultdict(list)
    for variant in planned.variants:
        groups[str(variant.group(planned.experiment.compare))].append(variant)
    turns = []
    for group in groups.values():
        good = {each.name: [sample for sample in taken[each.name] if not sample.error] for each in group}
        lack = alike.lacking(good, planned.experiment.repeat)
        turns += [Turn(number, variant) for variant in group if variant.name in lack]
    return turns


def _command(planned: Sequence[Planned], kind: GuestKind, seed: int) -> str:
    """What repeats the run."""
    words = ["memlane-lab", "run", *(_named(each.file) for each in planned)]
    repeats = {each.experiment.repeat for each in planned}
    words += ["--guest", kind, "--seed", str(seed)]
    if len(repeats) == 1:
        words += ["--repeat", str(repeats.pop())]
    return shlex.join(words)


def _named(file: Path) -> str:
    """The file as seen from the repository, if it is in there; else its name alone, because folders differ."""
    repository = experiment.FOLDER.parents[1]
    found = file.resolve()
    return str(found.relative_to(repository)) if found.is_relative_to(repository) else found.name


def default_folder() -> Path:
    """Where results go if nobody says: results/DATE-TIME under the current folder."""
    return Path("results") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def unmeasured(folder: Path) -> list[str]:
    """The experiments of which there is not one good sample."""
    return [each.experiment.name for each in results.read(folder)[1] if not each.good]


def own_files_again(out: Path) -> None:
    """Gives the results to the user who called sudo, so that they can be removed without it."""
    if not (user := os.environ.get("SUDO_UID")):
        return
    for path in [out, *out.rglob("*")]:
        with suppress(OSError):
            os.chown(path, int(user), int(os.environ.get("SUDO_GID", user)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
