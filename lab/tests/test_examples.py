"""The examples run, with either kind of guests, and show what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlane_lab.images import shop, uml_kernel
from memlane_lab.paths import memlane

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["uml", "namespaces"])
def kernel(request: pytest.FixtureRequest) -> str:
    """What the examples take for a kernel; nothing makes them use namespaces."""
    return str(uml_kernel.kernel().program) if request.param == "uml" else ""


def _run(example: str, kernel: str, *arguments: str) -> str:
    """What the example says. It runs in network and mount namespaces of its own, so that it meets nobody."""
    switch = memlane.program()
    assert switch, "no memlane: run make build"
    script = f'ip link set lo up; exec "{_EXAMPLES / example / "run.sh"}" "$@"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, "sh", *arguments],
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
def test_a_network_changes_while_guests_ping(kernel: str) -> None:
    said = _run("changing", kernel)
    assert said.count(", 0% packet loss") == 2, said
    assert "added      d\n" in said, said
    assert "changed    b: weight\n" in said, said


@pytest.mark.real
def test_tiers_reach_their_neighbours_only(kernel: str) -> None:
    said = _run("three-tier", kernel)
    assert said.count(", 0% packet loss") == 3, said
    assert "web does not reach db" in said


_VISIT = """
import urllib.request
for path in ("", "book/7", "best?subject=Travel", "cart", "static/books/7.png"):
    with urllib.request.urlopen(f"http://10.0.1.1/{path}", timeout=30) as answer:
        print(answer.status, answer.headers["Content-Type"], answer.read().count(b"</html>"))
"""


def _leads_to(link: Path, place: Path) -> bool:
    try:
        return link.readlink() == place
    except OSError:
        return False  # it has ended meanwhile


@pytest.mark.real
def test_a_shop_in_three_guests_can_be_visited(kernel: str) -> None:
    tree = shop.image(*shop.SMALL).tree
    said = _run("shop", kernel, sys.executable, "-c", _VISIT)
    assert said.count("200 text/html") == 4, said
    assert said.count(" 1\n") == 4, said
    assert "200 image/png 0" in said
    left = [place for place in Path("/proc").glob("[0-9]*/root") if _leads_to(place, tree)]
    assert not left, "it left processes behind"
