"""A plan: an experiment's variants, and the order in which their samples are taken.

Order: in rounds, each variant once a round, so that a slow change of the machine touches all variants alike. The
variants that are compared with each other stand together within a round; everything else is shuffled by a seed.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from memlane_lab import guests, workloads
from memlane_lab.experiment import BadExperiment, Experiment, told
from memlane_lab.labels import Labels, words
from memlane_lab.paths import PATHS
from memlane_lab.ports import GuestKind
from memlane_lab.setting import Setting


@dataclass(frozen=True)
class Variant:
    """One combination of labels."""

    labels: Labels
    setting: Setting

    @property
    def name(self) -> str:
        """All its labels, for people."""
        return words(self.labels) or "the only one"

    def matches(self, where: Mapping[str, str]) -> bool:
        """Whether it has these labels."""
        return all(self.labels.get(dimension) == label for dimension, label in where.items())

    def group(self, compared: str) -> Labels:
        """Its labels but the one that is compared: the same for variants that stand side by side."""
        return {dimension: label for dimension, label in self.labels.items() if dimension != compared}


@dataclass(frozen=True)
class Missing:
    """A variant that cannot be measured here, and why."""

    variant: Variant
    reason: str


@dataclass(frozen=True)
class Turn:
    """When a sample of which variant is taken."""

    round: int
    variant: Variant


def variants(experiment: Experiment) -> list[Variant]:
    """All variants, in the order in which the file states labels; raises if one of them cannot be."""
    dimensions = experiment.dimensions()
    combinations = [dict(zip(dimensions, labels, strict=True)) for labels in itertools.product(*dimensions.values())]
    kept = [labels for labels in combinations if not _skipped(experiment, labels)]
    _check_labels(experiment)
    if not kept:
        raise BadExperiment(f"experiment {experiment.name} skips all its variants")
    return [Variant(labels, _setting(experiment, labels)) for labels in kept]


def kinds(setting: Setting, chosen: GuestKind) -> list[GuestKind]:
    """What each of the setting's machines is run by, when guests shall be of the `chosen` kind."""
    guest = PATHS[setting.path].only or chosen
    client, server = setting.ends.split("-")
    runs = {"c": client, "s": server}
    return [guest if runs[machine[0]] == "guest" else GuestKind.NETNS for machine in setting.machines()]


def missing(variant: Variant, chosen: GuestKind) -> str | None:
    """Why the variant cannot be measured on this machine, or None."""
    path = PATHS[variant.setting.path]
    if reason := path.missing():
        return f"path {path.name}: {reason}"
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


def turns(variants: Sequence[Variant], *, compared: str, rounds: int, seed: int) -> Iterator[Turn]:
    """The order of the planned samples."""
    order = random.Random(seed)
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(str(variant.group(compared)), []).append(variant)
    for number in range(rounds):
        for group in order.sample(list(groups.values()), len(groups)):
            for variant in order.sample(group, len(group)):
                yield Turn(number, variant)


def _skipped(experiment: Experiment, labels: Labels) -> bool:
    return any(all(labels.get(name) == label for name, label in skip.items()) for skip in experiment.skip)


def _check_labels(experiment: Experiment) -> None:
    """Every label that the file mentions outside of `vary` must be one."""
    dimensions = experiment.dimensions()
    mentioned = [
        *(("skip", pair) for skip in experiment.skip for pair in skip.items()),
        *(("paper", pair) for figure in experiment.paper for pair in figure.where.items()),
        *(("expect", pair) for expected in experiment.expect for pair in (expected.where | expected.versus).items()),
    ]
    wrong = [f"{place}: no {name} is labelled {label!r}" for place, (name, label) in mentioned
             if label not in dimensions.get(name, {})]  # fmt: skip
    if experiment.compare in dimensions and experiment.baseline not in dimensions[experiment.compare]:
        wrong.append(f"baseline: no {experiment.compare} is labelled {experiment.baseline!r}")
    if wrong:
        raise BadExperiment(f"experiment {experiment.name}: {'; '.join(wrong)}")


def _setting(experiment: Experiment, labels: Labels) -> Setting:
    stated = dict(experiment.setting)
    for dimension, label in labels.items():
        for key, value in experiment.dimensions()[dimension][label].items():
            _set(stated, key, value)
    try:
        return Setting.model_validate(stated)
    except ValidationError as error:
        raise BadExperiment(
            f"experiment {experiment.name}, variant {', '.join(labels.values())}: {told(error)}"
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
