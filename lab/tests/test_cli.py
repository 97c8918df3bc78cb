"""The command line: exit codes, and one clear sentence when something cannot be done."""

import subprocess
import sys

import pytest


def _lab(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "memlane_lab", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_list_shows_every_path_and_guest() -> None:
    done = _lab("list")
    assert done.returncode == 0
    for word in ("none", "bridge", "e1000", "ovs-dpdk", "memlane", "netns", "uml", "kvm", "tcg"):
        assert word in done.stdout


def test_doctor_names_every_lack() -> None:
    done = _lab("doctor")
    assert done.returncode == 0, done.stdout
    assert "Debian mirror" in done.stdout


def test_what_cannot_be_done_is_one_sentence_and_exit_code_1() -> None:
    done = _lab("demo", "--path", "none", "--guest", "uml")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("memlane-lab: path none cannot serve uml guests")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["demo", "--guest", "vmware"], ["nonsense"], ["demo", "--path", "wire"]])
def test_wrong_arguments_are_refused_with_exit_code_2(arguments: list[str]) -> None:
    done = _lab(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.real
def test_a_guest_runs_a_command_and_passes_its_status_on() -> None:
    done = _lab("guest", "--guest", "uml", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.endswith("err\n")


@pytest.mark.real
def test_a_guest_serves_a_shell_and_its_peers_answer() -> None:
    done = _lab("guest", "--guest", "uml", "--peers", "1", stdin="ping -c 1 10.77.0.2\nexit 5\n")
    assert done.returncode == 5
    assert "1 received" in done.stdout


@pytest.mark.real
def test_the_demo_shows_ping_and_tcp() -> None:
    done = _lab("demo", "--path", "bridge", "--guest", "uml", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    assert "Gbit/s" in done.stdout
    assert " ms" in done.stdout
