"""A model, fitted from observations, in one JSON file: its parameters, its observations, and its machine."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memlane_lab.common import strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.model import costs, discrepancy, observations, pooled, sharing
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.discrepancy import Discrepancy
from memlane_lab.model.observations import Observation
from memlane_lab.model.pooled import Pooled
from memlane_lab.model.sharing import Stages
from memlane_lab.paths import PATHS
from memlane_lab.statistics.stats import FEWEST

VERSION = 1
"""Of the file's format. A reader knows its own version only."""
RATE, CPU, UNFAIRNESS = "rate", "cpu", "unfairness"
"""Figures that are predicted, beside the CPU of each party."""
USUAL_UNFAIRNESS = 0.003
"""1 / Jain's index - 1 (the squared coefficient of variation of pairs' rates) that the host's arithmetic stands for."""
_LEAST = 1e-4
"""CPUs, and unfairness, below which nothing is told apart."""
_FEWEST = 2 * FEWEST
"""Observations of a path and kind of work from which something is learned."""


class Range(Strict):
    """The calibrated range of a path and kind of work."""

    pairs: tuple[int, int]
    message: tuple[int, int]
    load: tuple[int, int]
    placements: list[str]
    """The most frequent first."""

    def outside(self, asked: Configuration) -> list[str]:
        """The values of a configuration that lie outside, in words; empty: it lies inside."""
        found = []
        for name, unit in (("pairs", ""), ("message", " bytes"), ("load", " %")):
            (low, high), value = getattr(self, name), getattr(asked, name)
            if not low <= value <= high:
                found.append(f"{name} {value}{unit}, calibrated {low} to {high}")
        if asked.placement not in self.placements:
            found.append(f"placement {asked.placement}, calibrated {', '.join(self.placements)}")
        return found


class Fitted(Strict):
    """The model of one path and kind of work."""

    path: str
    work: Work
    range: Range
    stages: Stages
    discrepancies: dict[str, Discrepancy]
    """By figure: rate, cpu, unfairness, and each party."""

    def figures(self, asked: Configuration, cpus: float) -> dict[str, float]:
        """Each figure as costs and host alone say."""
        return _figures(self.stages, asked, cpus)


class Model(Strict):
    """All paths and kinds of work of one machine."""

    format_version: int = VERSION
    machine: dict[str, str]
    """Facts that the figures depend on: CPU, kernels, builds, kind of guests."""
    cpus: int
    fitted: list[Fitted]
    observed: list[Observation]
    """The observations that it was fitted from."""
    pooled: Pooled | None = None
    """The model of streams by counted path lengths, of all paths together."""

    def of(self, path: str, work: Work) -> Fitted:
        """The model of a path; raises if it was not calibrated."""
        for each in self.fitted:
            if (each.path, each.work) == (path, work):
                return each
        known = sorted({each.path for each in self.fitted if each.work is work})
        raise LabError(f"the calibration has no {work} on path {path!r}; it has: {', '.join(known) or 'none at all'}")


def fit(runs: Sequence[Path], disturbance: float = observations.DISTURBED) -> Model:
    """The model of all observations of these runs, which must be of one machine and of the same builds.

    `disturbance`: CPUs that other work may have taken beside a sample.
    """
    read = [observations.read(folder, disturbance) for folder in runs]
    machines = [describe(record.machine, record.guest) for record, _ in read]
    for folder, machine in zip(runs, machines, strict=True):
        if changed := differences(machines[0], machine):
            raise LabError(f"{runs[0]} and {folder} cannot be fitted together, because they differ: {changed}")
    cpus = int(read[0][0].machine["cpus"])
    return with_queues(of_observations([each for _, found in read for each in found], machines[0], cpus))


def with_queues(model: Model) -> Model:
    """The model with that of streams by counted path lengths, fitted from the same observations."""
    own = [each for each in model.observed if each.configuration.work is Work.STREAM]
    return model.model_copy(update={"pooled": pooled.fit(own, model.cpus)}) if len(own) >= _FEWEST else model


def of_observations(observed: Sequence[Observation], machine: Mapping[str, str], cpus: int) -> Model:
    """The model of these observations; paths and kinds of work with too few of them are left out."""
    kinds = dict.fromkeys((each.configuration.path, each.configuration.work) for each in observed)
    found = []
    for path, work in kinds:
        own = [each for each in observed if (each.configuration.path, each.configuration.work) == (path, work)]
        if len(own) >= _FEWEST or (work is Work.ANSWERS and len(own) >= FEWEST):
            found.append(_fitted(path, work, own, cpus))
    if not found:
        raise LabError(f"no path has the {_FEWEST} samples that a fit needs: calibrate more rounds")
    return Model(machine=dict(machine), cpus=cpus, fitted=found, observed=list(observed))


def _fitted(path: str, work: Work, observed: Sequence[Observation], cpus: int) -> Fitted:
    polls = PATHS[path].polls
    stages = sharing.fit(costs.fit(observed), observed, work, cpus, polls=polls)
    at = [each.configuration.features for each in observed]
    told = [_observed(each) for each in observed]
    said = [_figures(stages, each.configuration, each.left(cpus)) for each in observed]
    found = {}
    for name in said[0]:
        shown = [number for number, each in enumerate(told) if each.get(name, 0.0) > 0 and said[number][name] > 0]
        if len(shown) >= FEWEST:
            off = [float(np.log(told[number][name] / said[number][name])) for number in shown]
            found[name] = discrepancy.fit([at[number] for number in shown], off)
    return Fitted(path=path, work=work, range=_range(observed), stages=stages, discrepancies=found)


def _figures(stages: Stages, asked: Configuration, cpus: float) -> dict[str, float]:
    parties = stages.cpu(asked, cpus)
    return {
        RATE: stages.flow(asked, cpus).rate,
        CPU: sum(parties.values()),
        UNFAIRNESS: USUAL_UNFAIRNESS if asked.pairs > 1 else 0.0,
        **{str(party): value for party, value in parties.items()},
    }


def _observed(each: Observation) -> dict[str, float]:
    unfair = max(1 / each.fairness - 1, _LEAST) if each.fairness else 0.0
    parties = {str(party): value for party, value in each.cpu.items() if value > _LEAST}
    return {RATE: each.rate, CPU: each.total, UNFAIRNESS: unfair, **parties}


def _range(observed: Iterable[Observation]) -> Range:
    found = [each.configuration for each in observed]
    places = [each.placement for each in found]
    return Range(
        pairs=(min(each.pairs for each in found), max(each.pairs for each in found)),
        message=(min(each.message for each in found), max(each.message for each in found)),
        load=(min(each.load for each in found), max(each.load for each in found)),
        placements=sorted(set(places), key=lambda place: (-places.count(place), place)),
    )


def describe(machine: Mapping[str, Any], guest: str) -> dict[str, str]:
    """The part of a machine's description (`machine.describe`) that the figures depend on."""
    versions = machine.get("versions", {})
    builds = {name: str(versions.get(name, "unknown")) for name in ("memlane", "open vswitch", "uml kernel")}
    return {name: str(machine.get(name, "unknown")) for name in ("cpu", "cpus", "kernel")} | builds | {"guests": guest}


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The differences of two machines that matter, in words; empty: none."""
    return "; ".join(
        f"{name}: {one[name]}, {other.get(name)}" for name in one if one[name] != other.get(name)
    )  # fmt: skip


def write(model: Model, file: Path) -> None:
    """Writes the model in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.new")
    scratch.write_text(model.model_dump_json(indent=1) + os.linesep)
    scratch.replace(file)


def read(file: Path) -> Model:
    """Reads a model; raises with the mistakes in its file."""
    return strict.read(file, Model, VERSION)
