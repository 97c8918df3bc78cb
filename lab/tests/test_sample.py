"""Failed samples, and faults of the lab itself."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from memlane_lab import paths
from memlane_lab.bed.bed import Bed
from memlane_lab.common.errors import LabError
from memlane_lab.experiment import plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.plan import Turn
from memlane_lab.experiment.setting import Pinning
from memlane_lab.host.ports import Endpoint, GuestKind, Port
from memlane_lab.host.process import HostProcess
from memlane_lab.measuring import run, sample
from memlane_lab.measuring.sample import Sampler
from memlane_lab.paths import NetworkPath

STATED: dict[str, Any] = {
    "name": "failing", "title": "t", "question": "q?", "seconds": 1, "warm_up": 0,
    "setting": {"path": "bridge", "traffic": {"workload": "tcp", "congestion": "no-such"}},
}  # fmt: skip

_TWO_PATHS = """
name = "two"
title = "t"
question = "q?"
baseline = "none"
[setting]
traffic = { workload = "tcp" }
[vary]
path = ["none", "raising"]
"""


def _turn(asked: Experiment) -> Turn:
    (variant,) = plan.variants(asked)
    return Turn(0, variant)


def _failing(fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    def measure(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Sampler, "_measure", measure)
    return Sampler(Experiment.model_validate(STATED), GuestKind.UML, tmp_path)


def test_what_went_wrong_makes_a_failed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = _failing(LabError("the cable broke"), tmp_path, monkeypatch)
    assert sampler.take(_turn(Experiment.model_validate(STATED))).error == "LabError: the cable broke"


@pytest.mark.parametrize("fault", [ValueError("a bug"), AttributeError("a bug"), FileNotFoundError("a bug")])
def test_a_fault_in_the_code_of_a_path_fails_its_sample_alone(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = _failing(fault, tmp_path, monkeypatch).take(_turn(Experiment.model_validate(STATED)))
    assert re.fullmatch(rf"{type(fault).__name__}: a bug \(test_sample.py:\d+\)", taken.error or ""), taken.error


def test_an_interruption_is_no_failed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = _failing(KeyboardInterrupt(), tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        sampler.take(_turn(Experiment.model_validate(STATED)))


class _Raising(NetworkPath):
    """A plugin that raises wherever the lab asks it."""

    name, title = "raising", "a path with faults"

    @classmethod
    def missing(cls) -> str | None:
        raise TypeError("no such word")

    def _lay(self, _ports: Sequence[Port]) -> dict[str, Endpoint]:
        raise RuntimeError("no cable")

    def parties(self) -> list[HostProcess]:
        return []

    def clear(self) -> None:
        raise RuntimeError("cannot be removed")


def test_a_plugin_that_raises_costs_no_other_experiment_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(paths.PATHS, "raising", _Raising)
    file = tmp_path / "two.toml"
    file.write_text(_TWO_PATHS)
    (planned,) = run.prepare([file], GuestKind.NETNS)
    assert [each.setting.path for each in planned.variants] == ["none"]
    (missing,) = planned.missing
    assert missing.reason.startswith("TypeError: no such word (test_sample.py:")


def test_a_bed_that_cannot_be_taken_down_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampler = Sampler(Experiment.model_validate(STATED), GuestKind.UML, tmp_path)
    with ExitStack() as failing, sampler:
        failing.callback(_Raising.clear, cast("_Raising", None))
        sampler._kept["kept"] = (failing.pop_all(), cast("Bed", None))
    assert "RuntimeError: cannot be removed" in capsys.readouterr().err


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
