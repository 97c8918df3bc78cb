"""Observations: the figures of the lab's samples that the model is fitted from."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.experiment.setting import Setting
from memlane_lab.meters import host
from memlane_lab.model.configuration import Configuration, Party, Work
from memlane_lab.results import results
from memlane_lab.results.results import ExperimentResult, RunRecord, Sample
from memlane_lab.statistics import stats

_FREE = {"path", "pairs", "load", "memory", "traffic"}
"""Settings that may differ between observations; all others must be the usual ones."""


DISTURBED = 0.45
"""CPUs that other work may take beside a sample; with more it is left out."""


class Observation(Strict):
    """The figures of one sample."""

    configuration: Configuration
    rate: float
    """Work a second of all pairs together: bytes received, or requests answered."""
    cpu: dict[Party, float]
    """CPUs in use."""
    switches: dict[Party, float]
    """Context switches a second; those of a guest stand with the guest."""
    fairness: float | None = None
    """Jain's index of the pairs' rates, where there are several."""
    others: float = 0.0
    """CPUs that other work took meanwhile."""
    experiment: str = ""
    sample: int = 0

    @property
    def total(self) -> float:
        """CPUs in use by all parties."""
        return sum(self.cpu.values())


def read(folder: Path, disturbance: float = DISTURBED) -> tuple[RunRecord, list[Observation]]:
    """All observations of a run beside which other work took at most `disturbance` CPUs.

    Raises where there are none, or where the run is of something that the model does not know.
    """
    record, found = results.read(folder)
    observed = [each for result in found for each in of_result(result) if each.others <= disturbance]
    if not observed:
        raise LabError(
            f"{folder} holds no undisturbed sample that the model can read: it learns from `memlane-lab calibrate` on "
            "a machine without other work"
        )
    return record, observed


def of_result(result: ExperimentResult) -> Iterator[Observation]:
    """The observations of an experiment's good samples."""
    settings = {each.name: _checked(result, each.setting) for each in result.variants}
    for sample in result.good:
        if sample.parties:
            yield _observation(result, settings[sample.variant], sample)


def _checked(result: ExperimentResult, stated: Mapping[str, Any]) -> Setting:
    setting = Setting.model_validate(stated)
    usual = Setting(path=setting.path, traffic=setting.traffic)
    odd = [
        name for name in Setting.model_fields if name not in _FREE and getattr(setting, name) != getattr(usual, name)
    ]
    if odd:
        raise LabError(
            f"experiment {result.experiment.name} states {', '.join(odd)}, which the model does not know: it "
            "learns from samples with the usual settings"
        )
    flows = setting.traffic
    if len(flows) != 1 or flows[0].workload not in set(Work) or flows[0].sources or flows[0].target:
        raise LabError(
            f"experiment {result.experiment.name} has other traffic than one {' or '.join(Work)} from each client to "
            "its server, which is all that the model knows"
        )
    return setting


def _observation(result: ExperimentResult, setting: Setting, sample: Sample) -> Observation:
    work = Work(setting.traffic[0].workload)
    rate = sample.values["throughput"] / 8 if work is Work.STREAM else sample.values["exchanges"]
    clients, servers = ([name for name in setting.machines() if name.startswith(role)] for role in ("c", "s"))
    told = [flow.values["throughput" if work is Work.STREAM else "exchanges"] for flow in sample.flows]
    configuration = Configuration(
        path=setting.path,
        work=work,
        pairs=setting.pairs,
        message=setting.traffic[0].parameters["message"],
        load=setting.load,
        placement=sample.placement,
    )
    return Observation(
        configuration=configuration,
        rate=rate,
        cpu={
            Party.SENDER: _sum(sample, clients, "user"),
            Party.SENDER_KERNEL: _sum(sample, clients, "system"),
            Party.RECEIVER: _sum(sample, servers, "user"),
            Party.RECEIVER_KERNEL: _sum(sample, servers, "system"),
            Party.SWITCH: _sum(sample, [host.SWITCH], "user") + _sum(sample, [host.SWITCH], "system"),
        },
        switches={
            Party.SENDER: _sum(sample, clients, "switches"),
            Party.RECEIVER: _sum(sample, servers, "switches"),
            Party.SWITCH: _sum(sample, [host.SWITCH], "switches"),
        },
        fairness=stats.jain(told) if len(told) > 1 else None,
        others=sample.values.get("others", 0.0),
        experiment=result.experiment.name,
        sample=sample.number,
    )


def _sum(sample: Sample, parties: list[str], figure: str) -> float:
    return sum(sample.parties.get(party, {}).get(figure, 0.0) for party in parties)
