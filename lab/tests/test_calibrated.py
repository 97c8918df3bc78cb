"""A short calibration of namespaces on the bridge, from its samples to the command line's answers."""

import subprocess
import sys
from pathlib import Path

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.model import check, fitted
from memlane_lab.model.configuration import Work

pytestmark = [pytest.mark.real, pytest.mark.timed]

TINY = """
title = "tiny"
question = "Does a model come out?"
seconds = 1
warm_up = 0
repeat = 1
boot = "once"
[setting]
traffic = { workload = "tcp" }
[vary]
path = ["bridge"]
pairs = [1, 3]
message = [128, "4K", "128K"]
load = [0, 50]
"""
ANYHOW = ("--disturbance", "9")
"""Tests run beside each other."""


def _lab(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "memlane_lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "tiny.toml").write_text(TINY)
    run.measure(run.prepare([folder / "tiny.toml"], GuestKind.NETNS), GuestKind.NETNS, folder / "run", seed=1)
    return folder / "run"


@pytest.fixture(scope="module")
def file(measured: Path) -> Path:
    """The model of these samples."""
    model = measured.parent / "model.json"
    done = _lab("model", "fit", str(measured), "--out", str(model), *ANYHOW)
    assert done.returncode == 0, done.stderr
    return model


def test_samples_become_a_model_that_answers(file: Path, tmp_path: Path) -> None:
    assert fitted.read(file).range("bridge", Work.STREAM).pairs == (1, 3)

    done = _lab("predict", "--host", str(file), "--pairs", "2", "--message", "16K", "--load", "25%")
    assert done.returncode == 0, done.stderr
    for word in ("bridge, 2 pairs, 16K, load 25 %", "bit/s", "CPU, all parties"):
        assert word in done.stdout

    page = tmp_path / "sweep.html"
    done = _lab("predict", "--host", str(file), "--sweep", "message", "--out", str(page))
    assert done.returncode == 0, done.stderr
    assert "Predicted over message" in page.read_text()

    done = _lab("predict", "--host", str(file), "--pairs", "9")
    assert done.returncode == 2
    assert "pairs 9, calibrated 1 to 3" in done.stderr
    done = _lab("predict", "--host", str(file), "--pairs", "9", "--extrapolate")
    assert done.returncode == 0, done.stderr
    assert "an extrapolation" in done.stdout


def test_what_was_calibrated_is_not_held_out(file: Path) -> None:
    found = fitted.read(file)
    with pytest.raises(LabError, match="held-out points must be unknown to the calibration"):
        check.check(found, found.observed)
