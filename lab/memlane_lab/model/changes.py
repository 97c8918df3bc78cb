"""The check of what-ifs: how many times as much a change carried, beside the prediction.

The experiment `what_if`, and any other that compares `change`, measures changes that no model was fitted from: a label
is a word of `--what-if` and, after a comma, how it was made; the baseline is the calibrated one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memlane_lab.common.errors import LabError
from memlane_lab.experiment.setting import Setting
from memlane_lab.model import what_if
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.fitted import Model
from memlane_lab.model.predict import Bounded
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult
from memlane_lab.statistics.stats import Interval

GOAL = 0.15
"""Relative error of the ratio."""
DIMENSION = "change"
_MEASURE = "throughput"


@dataclass(frozen=True)
class Change:
    """One change of one configuration."""

    asked: Configuration
    change: str
    """Its label."""
    predicted: Bounded
    """How many times the rate; bounds of 90 %."""
    measured: Interval
    rounds: int

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return self.predicted.estimate / self.measured.estimate - 1

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return abs(self.error) <= GOAL

    @property
    def held(self) -> bool:
        """Whether the bounds of the prediction and the interval of the measured ratio meet."""
        low, high = self.measured.bounds or (self.measured.estimate, self.measured.estimate)
        return low <= self.predicted.high and self.predicted.low <= high


def check(model: Model, results: Sequence[ExperimentResult]) -> list[Change]:
    """Every change of these runs; raises where there is none, or no model of its path."""
    found = [each for result in results for each in _of_result(model, result)]
    if not found:
        raise LabError(
            f"these runs compare no {DIMENSION!r} that was measured: run `memlane-lab run what_if` (it needs "
            "`make ablation`)"
        )
    return found


def _of_result(model: Model, result: ExperimentResult) -> Iterator[Change]:
    if result.experiment.compare != DIMENSION:
        return
    settings = {frozenset(each.labels.items()): Setting.model_validate(each.setting) for each in result.variants}
    for row in summary.rows(result, _MEASURE):
        for (label, base), contrast in row.contrasts.items():
            setting = settings.get(frozenset((row.group | {DIMENSION: base}).items()))
            if setting and contrast.ratio:
                asked = _asked(setting, model, contrast.placement)
                yield Change(asked, label, _predicted(model, asked, label), contrast.ratio, contrast.rounds)


def _asked(setting: Setting, model: Model, placement: str) -> Configuration:
    flows = setting.traffic
    if len(flows) != 1 or flows[0].workload != Work.STREAM:
        raise LabError(f"what-ifs are checked by one {Work.STREAM} from each client to its server")
    known = model.of(setting.path, Work.STREAM).range.placements
    return Configuration(
        path=setting.path,
        pairs=setting.pairs,
        message=flows[0].parameters["message"],
        load=setting.load,
        placement=placement if placement in known else known[0],
    )


def _predicted(model: Model, asked: Configuration, label: str) -> Bounded:
    if model.pooled is None or asked.path not in model.pooled.paths:
        raise LabError(f"the model knows no what-if of path {asked.path}: calibrate it with `memlane-lab calibrate`")
    change = what_if.parse([label.partition(",")[0]])
    return Bounded(*model.pooled.worth(asked, model.cpus, change.changed))
