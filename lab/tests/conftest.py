"""What all tests of the lab share."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["memlane_lab.bed.testing"]

# A job in a shell's background ignores interrupts, and so would the labs that are interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for run folders apart from that of other labs on this machine, which would remove what we leave."""
    folder = Path(f"/run/mltest-{os.getpid()}")
    monkeypatch.setenv("MEMLANE_LAB_RUNS", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
