"""The examples run, with either kind of guests, and show what they promise."""

import os
import subprocess
from pathlib import Path

import pytest

from memlane_lab.images import uml_kernel
from memlane_lab.paths import memlane

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["uml", "namespaces"])
def kernel(request: pytest.FixtureRequest) -> str:
    """What the examples take for a kernel; nothing makes them use namespaces."""
    return str(uml_kernel.kernel().program) if request.param == "uml" else ""


def _run(example: str, kernel: str) -> str:
    """What the example says. It runs in network and mount namespaces of its own, so that it meets nobody."""
    switch = memlane.program()
    assert switch, "no memlane: run make build"
    script = f'ip link set lo up; exec "{_EXAMPLES / example / "run.sh"}"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script],
        env={**os.environ, "MEMLANE": str(switch), "UML_KERNEL": kernel},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.real
def test_one_guest_reaches_the_other(kernel: str) -> None:
    assert ", 0% packet loss" in _run("two-vms", kernel)


@pytest.mark.real
def test_tiers_reach_their_neighbours_only(kernel: str) -> None:
    said = _run("three-tier", kernel)
    assert said.count(", 0% packet loss") == 3, said
    assert "web does not reach db" in said
