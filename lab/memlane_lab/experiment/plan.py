"""A plan: an experiment's variants, and the order in which their samples are taken.

Order: in rounds, each variant once a round, so that a slow change of the machine touches all variants alike, whatever
their path. The variants that are compared with each other stand together within a round. Their places are a Latin
square's over as many rounds as there are variants: each is once in each place, and, where their number is even, each
follows each other one once (Williams 1949), since throughput falls from the first to the last of many neighbours. The
same holds of groups. Squares are drawn by a seed, so that a run that goes on later goes on in the same order.
"""

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from memlane_lab import guests, workloads
from memlane_lab.common.strict import told
from memlane_lab.experiment import claims
from memlane_lab.experiment.experiment import BadExperiment, Experiment
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.experiment.setting import Setting
from memlane_lab.host.ports import GuestKind
from memlane_lab.paths import PATHS


@dataclass(frozen=True)
class Variant:
    """One combination of labels."""

    labels: Labels
    setting: Setting

    @property
    def name(self) -> str:
        """All its labels, for people."""
        return words(self.labels) or "the only one"

    def group(self, compared: str) -> Labels:
        """Its labels but the one that is compared: the same for variants that stand side by side."""
        return {dimension: label for dimension, label in self.labels.items() if dimension != compared}


@dataclass(frozen=True)
class Turn:
    """When a sample of which variant is taken."""

    round: int
    variant: Variant


def variants(experiment: Experiment) -> list[Variant]:
    """All variants, in the order in which the file states labels; raises if one of them cannot be."""
    kept = [labels for labels in _combinations(experiment) if not _skipped(experiment, labels)]
    if wrong := [*_wrong_labels(experiment), *claims.mistakes(experiment, kept)]:
        raise BadExperiment(f"experiment {experiment.name}: {'; '.join(wrong)}")
    if not kept:
        raise BadExperiment(f"experiment {experiment.name} skips all its variants")
    return [Variant(labels, _setting(experiment, labels)) for labels in kept]


def narrowed(experiments: Sequence[Experiment], only: Sequence[str]) -> list[Experiment]:
    """The experiments with those variants only that have one of the labels in each dimension that `only` names.

    A word of `only` is a label, or DIMENSION=LABEL; an experiment that has no such label keeps all variants.
    Expectations of variants that are left out are left out, too.
    """
    for word in only:
        if not any(_named(experiment, word) for experiment in experiments):
            known = sorted({f"{name}={label}" for experiment in experiments for name, label in _labels(experiment)})
            raise BadExperiment(f"{word!r} names no label; there are: {', '.join(known)}")
    return [_narrowed(experiment, only) for experiment in experiments]


def of_primaries(experiment: Experiment) -> Experiment | None:
    """The experiment with those variants only that its primary endpoints compare; None where it has none."""
    primary = tuple(each for each in experiment.expect if each.primary)
    if not primary:
        return None
    asked = experiment.model_copy(update={"expect": primary})
    known = [each.labels for each in variants(asked)]
    compared = [labels for claim in claims.of(asked, known) for labels in (claim.variant, claim.versus)]
    return _without(asked, [labels for labels in known if labels not in compared])


def _narrowed(experiment: Experiment, only: Sequence[str]) -> Experiment:
    wanted: dict[str, set[str]] = {}
    for dimension, label in (pair for word in only for pair in _named(experiment, word)):
        wanted.setdefault(dimension, set()).add(label)
    left_out = [
        each.labels
        for each in variants(experiment)
        if not all(each.labels[dimension] in labels for dimension, labels in wanted.items())
    ]
    return _without(experiment, left_out) if left_out else experiment


def _labels(experiment: Experiment) -> list[tuple[str, str]]:
    return [(name, label) for name, labels in experiment.dimensions().items() for label in labels]


def _named(experiment: Experiment, word: str) -> list[tuple[str, str]]:
    """The dimension and the label that a word of `--only` means, if the experiment has it."""
    found = [pair for pair in _labels(experiment) if word in {pair[1], f"{pair[0]}={pair[1]}"}]
    if len(found) > 1:
        raise BadExperiment(f"experiment {experiment.name}: {word!r} names labels of {len(found)} dimensions")
    return found


def _without(experiment: Experiment, left_out: Sequence[Labels]) -> Experiment:
    """The experiment without some of its variants, and without their expectations."""
    fewer = experiment.model_copy(update={"skip": (*experiment.skip, *left_out)})
    kept = [labels for labels in _combinations(fewer) if not _skipped(fewer, labels)]
    expect = tuple(each for each in fewer.expect if claims.about(fewer, each, kept))
    return fewer.model_copy(update={"expect": expect})


def versus(experiment: Experiment, binary: Path) -> Experiment:
    """The experiment's variants on memlane, with another build of the switch before and this one after.

    Expectations are left out, because they are about rivals.
    """
    others = [each.labels for each in variants(experiment) if each.setting.path != "memlane"]
    fewer = experiment.model_copy(update={"expect": (), "paper": (), "skip": (*experiment.skip, *others)})
    if not any(not _skipped(fewer, labels) for labels in _combinations(fewer)):
        raise BadExperiment(f"experiment {experiment.name} has nothing on memlane: no two builds can be compared")
    builds = {"before": {"program": str(binary.resolve())}, "after": {}}
    return fewer.model_copy(
        update={"compare": "build", "baseline": ("before",), "vary": {**experiment.vary, "build": builds}}
    )


def guests_kind(setting: Setting, chosen: GuestKind) -> GuestKind:
    """The kind of the setting's guests: the stated one, else `chosen`."""
    return PATHS[setting.path].only or (GuestKind(setting.guest) if setting.guest else chosen)


def kinds(setting: Setting, chosen: GuestKind) -> list[GuestKind]:
    """The kind of each of the setting's machines: the stated one, else `chosen`."""
    guest = guests_kind(setting, chosen)
    client, server = setting.ends.split("-")
    runs = {"c": client, "s": server, "load": "host"}  # the machines of a shop's tiers are guests
    roles = [machine.rstrip("0123456789") for machine in setting.machines()]
    return [guest if runs.get(role, "guest") == "guest" else GuestKind.NETNS for role in roles]


def missing(variant: Variant, chosen: GuestKind) -> str | None:
    """Why the variant cannot be measured on this machine, or None."""
    path = PATHS[variant.setting.path]
    build = variant.setting.build
    if not build and (reason := path.missing()):
        return f"path {path.name}: {reason}"
    if build and not build.exists():
        return f"there is no {variant.setting.program}: `make ablation` builds those of target/ablation"
    if reason := _misplaced(variant.setting):
        return reason
    if path.joins_pairs and variant.setting.shared_receiver:
        return f"path {path.name} joins machines two and two; they cannot share a receiver"
    for kind in dict.fromkeys(kinds(variant.setting, chosen)):
        if kind not in guests.KINDS:
            return f"there is no kind of guest called {kind}"
        if reason := guests.KINDS[kind].missing():
            return f"{kind} guests: {reason}"
        if reason := path.refuses(kind):
            return f"path {path.name} cannot serve {kind} guests: {reason}"
    return None


def _misplaced(setting: Setting) -> str | None:
    """Why the setting's machines and network cannot be kept to the CPUs that it names, or None."""
    if (place := setting.place) is None:
        return None
    usable = sorted(os.sched_getaffinity(0))
    if place.most >= len(usable):
        return f"the setting names CPU number {place.most}, counted from 0, but there are {len(usable)}"
    if PATHS[setting.path].kept_to(0) is None and place.network != place.clients:
        return f"path {setting.path} has no process of its own: it works in the calls of those who send, where they are"
    return None


def turns(variants: Sequence[Variant], *, compared: str, number: int, seed: int) -> Iterator[Turn]:
    """The order of round `number`: every one of the variants once, those of a group together."""
    for name in _row(list(found := groups(variants, compared)), number, f"{seed}"):
        for variant in _row(found[name], number, f"{seed}/{name}"):
            yield Turn(number, variant)


_Placed = TypeVar("_Placed")


def _row(placed: Sequence[_Placed], number: int, seed: str) -> list[_Placed]:
    """The order of round `number` by a Latin square of the rounds around it."""
    size = len(placed)
    square, row = divmod(number, max(size, 1))  # Without any that this machine can run, the order is empty.
    luck = random.Random(f"{seed}/{square}")
    entries, rows = luck.sample(range(size), size), luck.sample(range(size), size)
    steps = ((place + 1) // 2 * (1 if place % 2 else -1) for place in range(size))  # 0, 1, -1, 2, -2 ...
    return [placed[entries[(rows[row] + step) % size]] for step in steps]


def groups(variants: Sequence[Variant], compared: str) -> dict[str, list[Variant]]:
    """The variants that stand side by side, by their common labels."""
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        found.setdefault(words(variant.group(compared)), []).append(variant)
    return found


def _combinations(experiment: Experiment) -> list[Labels]:
    dimensions = experiment.dimensions()
    return [dict(zip(dimensions, labels, strict=True)) for labels in itertools.product(*dimensions.values())]


def _skipped(experiment: Experiment, labels: Labels) -> bool:
    return any(all(labels.get(name) == label for name, label in skip.items()) for skip in experiment.skip)


def _wrong_labels(experiment: Experiment) -> Iterator[str]:
    """Every label that the file mentions outside of `vary` must be one."""
    dimensions = experiment.dimensions()
    mentioned = [
        *(("skip", pair) for skip in experiment.skip for pair in skip.items()),
        *(("paper", pair) for figure in experiment.paper for pair in figure.where.items()),
        *(("expect", pair) for expected in experiment.expect for pair in (expected.where | expected.versus).items()),
        *(
            ("baseline", (experiment.compare, label))
            for label in experiment.baseline
            if experiment.compare in dimensions
        ),
    ]
    if experiment.best_over and experiment.best_over not in dimensions:
        yield f"best_over: there is no dimension {experiment.best_over!r}; there are: {', '.join(dimensions)}"
    for place, (name, label) in mentioned:
        if label not in dimensions.get(name, {}):
            yield f"{place}: no {name} is labelled {label!r}"


def _setting(experiment: Experiment, labels: Labels) -> Setting:
    stated = dict(experiment.setting)
    for dimension, label in labels.items():
        for key, value in experiment.dimensions()[dimension][label].items():
            _set(stated, key, value)
    try:
        return Setting.model_validate(stated)
    except ValidationError as error:
        raise BadExperiment(
            f"experiment {experiment.name}, variant {', '.join(labels.values())}: {told(error, Setting)}"
        ) from error


def _set(stated: dict[str, Any], key: str, value: Any) -> None:  # noqa: ANN401
    """Changes a setting, or that parameter of all traffic that has it."""
    if key in Setting.model_fields:
        stated[key] = value
        return
    traffic = stated.get("traffic", [])
    listed = [traffic] if isinstance(traffic, dict) else traffic
    if not any(_takes(entry, key) for entry in listed):
        raise BadExperiment(f"vary: {key!r} is neither a setting nor a parameter of the traffic")
    stated["traffic"] = [dict(entry) | ({key: value} if _takes(entry, key) else {}) for entry in listed]


def _takes(traffic: dict[str, Any], parameter: str) -> bool:
    kind = workloads.WORKLOADS.get(traffic.get("workload", ""))
    return kind is not None and parameter in kind.Parameters.model_fields
