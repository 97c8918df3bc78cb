"""Nothing is left behind: after Ctrl-C, after SIGTERM, after the lab is killed at any stage."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memlane_lab.common.wait import until
from memlane_lab.host.session import MARK, Session, runs_folder

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("own_runs")]

STAGES = ["opened", "laid", "started", "booted", "running"]
SCRIPT = """
import sys, time
from memlane_lab.bed import bed
from memlane_lab import guests, paths
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind, Port
from memlane_lab.host.session import Session

def reach(stage):
    print(stage, session.name, flush=True)
    if stage == sys.argv[1]:
        time.sleep(1000)

session = Session()
with session:
    reach("opened")
    kinds = [GuestKind(kind) for kind in sys.argv[3].split(",")]
    nics = paths.make(session, sys.argv[2]).lay(
        [Port(bed.name(i), kind, ports.mac(i)) for i, kind in enumerate(kinds)]
    )
    reach("laid")
    machines = [guests.make(session, nic.port.kind, nic.port.name, [nic]) for nic in nics]
    for machine in machines:
        machine.start()
    reach("started")
    for machine in machines:
        machine.wait_ready()
    reach("booted")
    for machine in machines:
        machine.spawn("stress-ng --cache-level 1 --cpu 2 --timeout 1000")
        machine.spawn("setsid sleep 1000 & sleep 1000")
    reach("running")
"""

LONG = """
title = "long"
question = "Does it end when it is told to?"
seconds = 300
[setting]
path = "bridge"
ends = "guest-host"
load = 20
traffic = { workload = "tcp" }
"""


def _lab_at(stage: str, path: str, kinds: str) -> tuple["subprocess.Popen[str]", str]:
    """A lab in another process that has reached the stage, and its session's name."""
    lab = subprocess.Popen([sys.executable, "-c", SCRIPT, stage, path, kinds], stdout=subprocess.PIPE, text=True)
    assert lab.stdout is not None
    for line in lab.stdout:
        if line.split()[0] == stage:
            return lab, line.split()[1]
    raise AssertionError(f"the lab ended with {lab.wait()} before stage {stage}")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kinds", ["uml,tcg", "netns,uml"])
def test_a_killed_labs_leftovers_are_removed(stage: str, kinds: str) -> None:
    lab, name = _lab_at(stage, "bridge", kinds)
    lab.kill()
    lab.wait()
    assert (runs_folder() / name).exists()
    with Session():
        assert _left_of(name) == []


def test_a_killed_labs_polling_switch_is_removed() -> None:
    lab, name = _lab_at("laid", "ovs-dpdk", "uml,uml")
    lab.kill()
    lab.wait()
    assert any("ovs-vswitchd" in found for found in _left_of(name))
    with Session():
        assert _left_of(name) == []


def test_guests_end_with_the_lab_even_if_no_other_follows() -> None:
    lab, name = _lab_at("running", "bridge", "uml,tcg")
    lab.kill()
    lab.wait()
    until(lambda: not [left for left in _left_of(name) if left.startswith("process")], timeout=60, what="their end")
    with Session():
        assert _left_of(name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with _long_run(tmp_path) as (lab, folder):
        lab.send_signal(number)
        said = (tmp_path / "log").read_text
        assert lab.wait(120) == (130 if number is signal.SIGINT else 128 + signal.SIGTERM), said()
        assert _left_of(folder.name) == []


def test_a_run_killed_in_the_middle_of_a_sample_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    with _long_run(tmp_path) as (lab, folder):
        lab.kill()
        lab.wait()
        assert folder.exists()
        with Session():
            assert _left_of(folder.name) == []


@contextmanager
def _long_run(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A run of the lab in the middle of a sample, and its folder; it does not outlive the test."""
    file = tmp_path / "long.toml"
    file.write_text(LONG)
    command = [sys.executable, "-m", "memlane_lab", "run", str(file), "--guest", "uml", "--out", str(tmp_path / "out")]
    with (tmp_path / "log").open("w") as out:
        lab = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        (folder,) = _runs_once_flowing()
        yield lab, folder
    finally:
        lab.kill()
        lab.wait()


def _runs_once_flowing() -> list[Path]:
    """The run folders, as soon as the server, a program that the host can see, talks to the client."""

    def flowing() -> bool:
        folders = list(runs_folder().glob("ml*"))
        return bool(folders) and any("iperf3" in process for process in _processes_of(folders[0].name))

    until(flowing, timeout=120, what="the run's flow to begin")
    return list(runs_folder().glob("ml*"))


def _left_of(name: str) -> list[str]:
    """All leftovers of the session called `name`, found without its ledger."""
    namespaces = [f"namespace {path.name}" for path in Path("/run/netns").glob(f"{name}-*")]
    devices = [f"device {path.name}" for path in Path("/sys/class/net").glob(f"{name}*")]
    folders = [f"folder {path}" for path in runs_folder().glob(name)]
    return [*_processes_of(name), *namespaces, *devices, *folders]


def _processes_of(name: str) -> list[str]:
    mark = f"{MARK}={name}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(f"process {folder.name} {os.readlink(folder / 'exe')}")  # noqa: PTH115
        except OSError:
            continue
    return found
