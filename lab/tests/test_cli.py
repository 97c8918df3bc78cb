"""The command line: exit codes, and one clear sentence when something cannot be done."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memlane_lab.paths.memlane import program


def _lab(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "memlane_lab", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240, check=False)


def test_list_shows_every_path_and_guest() -> None:
    done = _lab("list")
    assert done.returncode == 0
    for word in (
        "how_many_guests",
        "request-response",
        "none",
        "bridge",
        "e1000",
        "ovs-dpdk",
        "vde",
        "memlane",
        "netns",
        "uml",
        "kvm",
        "tcg",
    ):
        assert word in done.stdout


def test_help_is_in_plain_words_and_the_version_is_the_releases() -> None:
    told = " ".join(_lab("--help").stdout.split())
    for words in ("Boot real guests", "doctor", "topo up line 3", "Exit codes: 0 done", "--version"):
        assert words in told, told
    stated = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
    assert (_lab("--version").stdout, _lab("--version").returncode) == (f"memlane-lab {stated}\n", 0)


def test_doctor_names_every_lack() -> None:
    done = _lab("doctor")
    assert done.returncode == 0, done.stdout
    assert "Debian mirror" in done.stdout


def test_what_cannot_be_done_is_one_sentence_and_exit_code_2() -> None:
    done = _lab("guest", "--path", "none", "--peers", "1", "--guest", "uml", "--", "true")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("memlane-lab: path none cannot serve uml guests")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["demo", "--guest", "vmware"], ["nonsense"], ["guest", "--path", "wire"]])
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "nowhere.toml"], "cannot read the experiment nowhere.toml"),
        (["report", "nowhere"], "nowhere holds no results of the lab"),
        (["compare", "nowhere", "nowhere"], "nowhere holds no results of the lab"),
    ],
)
def test_what_is_not_there_is_said(arguments: list[str], told: str) -> None:
    done = _lab(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.real
@pytest.mark.longest
@pytest.mark.skipif(program() is None, reason="the switch is not built in this lane")
def test_the_demo_shows_both_paths_and_their_ratio(tmp_path: Path) -> None:
    done = _lab("demo", "--guest", "uml", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    for word in ("bridge", "memlane", "Gbit/s", "µs", " x\n", "report.html"):
        assert word in done.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 1_000_000
