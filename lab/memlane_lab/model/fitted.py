"""A calibration in one JSON file: its observations and its machine; and the surfaces that follow from them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from memlane_lab.common import strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.model import observations, surface
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.observations import Observation
from memlane_lab.model.surface import Surface
from memlane_lab.statistics.stats import FEWEST

VERSION = 2
"""Of the file's format. A reader knows its own version only."""
RATE, CPU, UNFAIRNESS = "rate", "cpu", "unfairness"
"""Figures that are predicted."""
_LEAST = 1e-4
"""Unfairness (1 / Jain's index - 1) below which nothing is told apart."""
_FEWEST = {Work.STREAM: 2 * FEWEST, Work.ANSWERS: FEWEST}
"""Observations of a path from which something is learned."""


def figures(each: Observation) -> dict[str, float]:
    """The figures of an observation."""
    told = {RATE: each.rate, CPU: each.total}
    return told | ({UNFAIRNESS: max(1 / each.fairness - 1, _LEAST)} if each.fairness else {})


class Range(Strict):
    """The calibrated range of a path and kind of work."""

    pairs: tuple[int, int]
    message: tuple[int, int]
    load: tuple[int, int]

    def outside(self, asked: Configuration) -> list[str]:
        """The values of a configuration that lie outside, in words; empty: it lies inside."""
        found = []
        for name, unit in (("pairs", ""), ("message", " bytes"), ("load", " %")):
            (low, high), value = getattr(self, name), getattr(asked, name)
            if not low <= value <= high:
                found.append(f"{name} {value}{unit}, calibrated {low} to {high}")
        return found


class Model(Strict):
    """All paths and kinds of work of one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    format_version: int = VERSION
    machine: dict[str, str]
    """Facts that the figures depend on: CPU, kernels, builds, kind of guests."""
    cpus: int
    observed: list[Observation]

    @cached_property
    def ranges(self) -> dict[tuple[str, Work], Range]:
        """The calibrated range of each path and kind of work that has enough observations."""
        groups: dict[tuple[str, Work], list[Configuration]] = {}
        for each in self.observed:
            groups.setdefault((each.configuration.path, each.configuration.work), []).append(each.configuration)
        return {key: _range(found) for key, found in groups.items() if len(found) >= _FEWEST[key[1]]}

    def range(self, path: str, work: Work) -> Range:
        """The calibrated range of a path; raises if it was not calibrated."""
        if found := self.ranges.get((path, work)):
            return found
        known = sorted(name for name, own in self.ranges if own is work)
        raise LabError(f"the calibration has no {work} on path {path!r}; it has: {', '.join(known) or 'none at all'}")

    @cached_property
    def _surfaces(self) -> dict[tuple[Work, str], Surface]:
        return {}

    def surface(self, work: Work, figure: str) -> Surface | None:
        """The surface of a figure of all paths; None where too few observations have it."""
        key = (work, figure)
        if key not in self._surfaces:
            own = self.of_figure(work, figure)
            if len(own) < _FEWEST[work]:
                return None
            self._surfaces[key] = surface.fit([asked for asked, _ in own], [value for _, value in own])
        return self._surfaces[key]

    def of_figure(self, work: Work, figure: str) -> list[tuple[Configuration, float]]:
        """The observed values of a figure, of paths with enough observations."""
        return [
            (each.configuration, value)
            for each in self.observed
            if each.configuration.work is work and (each.configuration.path, work) in self.ranges
            and (value := figures(each).get(figure, 0.0)) > 0
        ]  # fmt: skip


def fit(runs: Sequence[Path], disturbance: float = observations.DISTURBED) -> Model:
    """The model of all observations of these runs, which must be of one machine and of the same builds.

    `disturbance`: CPUs that other work may have taken beside a sample.
    """
    read_runs = [observations.read(folder, disturbance) for folder in runs]
    machines = [describe(record.machine, record.guest) for record, _ in read_runs]
    for folder, machine in zip(runs, machines, strict=True):
        if changed := differences(machines[0], machine):
            raise LabError(f"{runs[0]} and {folder} cannot be fitted together, because they differ: {changed}")
    cpus = int(read_runs[0][0].machine["cpus"])
    return of_observations([each for _, found in read_runs for each in found], machines[0], cpus)


def of_observations(observed: Sequence[Observation], machine: Mapping[str, str], cpus: int) -> Model:
    """The model of these observations; paths and kinds of work with too few of them are left out of predictions."""
    model = Model(machine=dict(machine), cpus=cpus, observed=list(observed))
    if not model.ranges:
        raise LabError(f"no path has the {_FEWEST[Work.STREAM]} samples that a fit needs: calibrate more rounds")
    return model


def _range(found: Iterable[Configuration]) -> Range:
    own = list(found)

    def span(value: Callable[[Configuration], int]) -> tuple[int, int]:
        return min(map(value, own)), max(map(value, own))

    return Range(
        pairs=span(lambda each: each.pairs),
        message=span(lambda each: each.message),
        load=span(lambda each: each.load),
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
