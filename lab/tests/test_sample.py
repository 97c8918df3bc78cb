"""Failed samples, and faults of the lab itself."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.experiment import plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.plan import Turn
from memlane_lab.experiment.setting import Pinning
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import sample
from memlane_lab.measuring.sample import Sampler

STATED: dict[str, Any] = {
    "name": "failing", "title": "t", "question": "q?", "seconds": 1, "warm_up": 0,
    "setting": {"path": "bridge", "traffic": {"workload": "tcp", "congestion": "no-such"}},
}  # fmt: skip


def _turn(asked: Experiment) -> Turn:
    (variant,) = plan.variants(asked)
    return Turn(0, variant)


def _failing(fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    def measure(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Sampler, "_measure", measure)
    return Sampler(Experiment.model_validate(STATED), GuestKind.UML, tmp_path)


def test_what_went_wrong_makes_a_failed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = _failing(LabError("the cable broke"), tmp_path, monkeypatch)
    assert sampler.take(_turn(Experiment.model_validate(STATED))).error == "LabError: the cable broke"


@pytest.mark.parametrize("fault", [ValueError("a bug"), KeyError("a bug"), OSError("a bug")])
def test_a_bug_of_the_lab_is_no_failed_sample(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = _failing(fault, tmp_path, monkeypatch)
    with pytest.raises(type(fault)):
        sampler.take(_turn(Experiment.model_validate(STATED)))


@pytest.mark.real
def test_a_failed_sample_keeps_its_logs_and_what_its_programs_said(tmp_path: Path) -> None:
    asked = Experiment.model_validate(STATED)
    with Sampler(asked, GuestKind.UML, tmp_path) as sampler:
        sample = sampler.take(_turn(asked))
    assert sample.error is not None
    assert "iperf3's client" in sample.error
    assert {path.name for path in (tmp_path / "0001-logs").iterdir()} >= {"guest-c1.log", "guest-s1.log"}
    said = {path.name.rpartition("-")[2]: path.read_text() for path in tmp_path.glob("0001-*.txt")}
    assert "unable to set TCP_CONGESTION" in said["client.txt"]
    assert "server.txt" in said


def test_guests_that_keep_to_one_cpu_each_share_them_evenly() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    machines = ["load1", *(f"app{number}" for number in range(2 * len(cpus)))]
    kept = sample._cpus(Pinning.EACH, machines)
    assert kept[0] == ()
    assert Counter(kept[1:]) == {(cpu,): 2 for cpu in cpus}
    assert sample._cpus(Pinning.FREE, machines) == [()] * len(machines)
    assert sample._cpus(Pinning.APART, ["c1", "s1"]) == [(0,), (1,)]
