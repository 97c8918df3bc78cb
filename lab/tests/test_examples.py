"""The examples run, with either kind of guests, and show the promised results."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memlane_lab.images import shop, uml_kernel
from memlane_lab.paths import memlane

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["uml", "namespaces"])
def kernel(request: pytest.FixtureRequest) -> str:
    """The kernel of the examples' guests; empty: they use namespaces."""
    return str(uml_kernel.kernel().program) if request.param == "uml" else ""


def _apart(*command: str | Path) -> list[str | Path]:
    """The command in network and mount namespaces of its own, apart from all others."""
    # The kernel forgets named namespaces with the last process that sees them; files in /run/netns would stay.
    private = 'mkdir -p /run/netns; mount -t tmpfs none /run/netns; ip link set lo up; exec "$@"'
    return ["unshare", "--net", "--mount", "sh", "-c", private, "sh", *command]


def _run(example: str, kernel: str, *arguments: str, **environment: str) -> str:
    """The example's output."""
    switch = memlane.program()
    assert switch, "no memlane: run make build"
    done = subprocess.run(
        _apart(_EXAMPLES / example / "run.sh", *arguments),
        env={**os.environ, "MEMLANE": str(switch), "UML_KERNEL": kernel, **environment},
        capture_output=True,
        text=True,
        timeout=1200 if environment else 120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _answered(said: str, guest: str, count: int) -> float:
    """Milliseconds that the first pings of a guest took, all of which were answered."""
    part = said.partition(f"== {guest}\n")[2].partition("\n== ")[0]
    found = re.search(r"(\d+) packets transmitted, (\d+) received, 0% packet loss, time (\d+)ms", part)
    assert found, said
    assert (found[1], found[2]) == (str(count), str(count)), said
    return float(found[3])


@pytest.mark.real
def test_one_guest_reaches_the_other(kernel: str) -> None:
    said = _run("two-vms", kernel)
    assert _answered(said, "a", 5) >= 4 * 1000 * 0.99, "a ping a second"
    assert re.search(r"^a +lan +running ", said, re.MULTILINE), said
    assert re.search(r"^b +lan +running ", said, re.MULTILINE), said


@pytest.mark.real
def test_a_network_changes_while_guests_ping(kernel: str) -> None:
    said = _run("changing", kernel)
    # The script fails if a has ended before the last change.
    assert _answered(said, "a", 60) >= 59 * 250 * 0.99
    assert _answered(said, "c", 3) >= 2 * 1000 * 0.99
    first, limited, listed, detached = map(said.index, ("== c", "transmit 10Mbit", "\nc  ", "c: detached\n"))
    assert first < limited < listed < detached < said.index("Nothing was changed (--dry-run)."), said
    assert said.count("added      d\n") == 2, said
    assert said.count("changed    b: weight\n") == 2, said
    assert said.index("== a") > said.rindex("added      d\n"), "its pings are shown last"


@pytest.mark.real
def test_tiers_reach_their_neighbours_only(kernel: str) -> None:
    said = _run("three-tier", kernel)
    for guest in ("app", "web", "host"):
        assert _answered(said, guest, 3) >= 2 * 1000 * 0.99
    tried = said.partition("== web")[2].partition("== host")[0]
    assert "2 packets transmitted, 0 received" in tried, "web has a way to try, and nobody answers"
    assert "unreachable" not in tried
    assert "web does not reach db" in tried


_SANDBOXES = 50
_HOW_TO = _EXAMPLES.parent / "docs/how-to/sandboxes.md"


@pytest.mark.real
@pytest.mark.longest
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("by", ["passt", "root"])
def test_sandboxes_reach_what_the_rules_name_and_nothing_else(kernel: str, by: str) -> None:
    """Fifty guests by passt; by the kernel's NAT fewer, because the way out is another and the guests are the same."""
    count = _SANDBOXES if by == "passt" else 3
    said = _run("sandboxes", kernel, by, GUESTS=str(count))
    assert f"guests that fetched the allowed page: {count}\n" in said, said
    assert f"guests that were refused another name: {count}\n" in said, said
    assert f"guests that were refused another address: {count}\n" in said, said
    slowest = re.search(r"slowest refusal, in seconds: ([\d.]+)\n", said)
    assert slowest, said
    assert float(slowest[1]) < 0.1, said
    denials = said.partition(f"== denials of task{count}\n")[2].partition("\n== ")[0]
    assert denials.startswith(f"task{count}\n"), said
    assert "  1 frame to out, destination 198.51.100.20 tcp port 80" in denials, said
    assert "other.example.org" in denials, "the name that it asked for"
    assert 'by [[policy]] default = "reject" members = "sandbox" (in line ' in denials, said
    assert 'destinations = ["198.51.100.20"]' in denials, "the line that would allow it"
    if by == "passt":
        assert said.count("one passt for all: 1\n") == 1, said


def test_the_page_on_sandboxes_has_the_files_of_the_example() -> None:
    """What the example's test runs is what the page shows."""
    page = _HOW_TO.read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    files = {name: (_EXAMPLES / "sandboxes" / name).read_text() for name in ("net.toml", "root.toml", "run.sh")}
    toml = [block for language, block in blocks if language == "toml"]
    assert toml[0] in files["net.toml"]
    for part in toml[2].strip().split("\n\n"):
        assert all(line in files["root.toml"] for line in part.splitlines()), part
    attach, *commands = [line for language, block in blocks if language == "sh" for line in block.splitlines()]
    assert attach.removeprefix("memlane attach net.toml task7 --ephemeral ") in files["run.sh"]
    assert len(commands) == 3
    assert all(command in files["run.sh"] for command in commands), commands


@pytest.mark.real
@pytest.mark.timed
def test_a_quiet_neighbour_gets_what_it_asks_for_and_a_noisy_one_its_limit(tmp_path: Path) -> None:
    switch = memlane.program()
    assert switch, "no memlane: run make build"
    # The example's file has the same name as that of a network which runs from another folder.
    (tmp_path / "net.toml").write_text('[[port]]\nname = "a"\nnull = true\n')
    with subprocess.Popen([switch, "up", tmp_path / "net.toml"], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert " is up" in other.stdout.readline()
        try:
            _contest(switch)
        finally:
            other.terminate()


def _contest(switch: Path) -> None:
    run = _EXAMPLES / "noisy-neighbour" / "run.sh"
    environment = {**os.environ, "MEMLANE_PROGRAMS": str(switch.parent), "SECONDS_EACH": "3"}
    done = subprocess.run(_apart(run), env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    quiet, noisy, still_quiet, held = (int(found) for found in re.findall(r": (\d+) Mbit/s", done.stdout))
    assert 270 <= quiet <= 310, done.stdout
    assert 270 <= still_quiet <= 310, done.stdout
    assert held <= 210 < noisy, done.stdout


@pytest.mark.real
def test_a_line_of_routers_shows_a_slow_a_broken_and_a_mended_link() -> None:
    run = _EXAMPLES / "line-of-routers" / "run.py"
    done = subprocess.run([sys.executable, run, "4"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    first, slow, mended = (float(found) for found in re.findall(r"rtt min/avg/max/mdev = ([\d.]+)/", said))
    assert slow >= 40, "20 ms each way"
    assert first < 40 > mended, said
    assert said.startswith("4 routers, all routing tables full after "), said
    slowed, down, lost, up = map(
        said.index, ("made slow", "it goes down", "r1 knows no way to r4", "it comes up again")
    )
    assert slowed < down < lost < up


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
@pytest.mark.xdist_group("shop")  # it looks for processes of any shop
def test_a_shop_in_three_guests_can_be_visited(kernel: str) -> None:
    tree = shop.image(*shop.SMALL).tree
    said = _run("shop", kernel, sys.executable, "-c", _VISIT)
    assert said.count("200 text/html") == 4, said
    assert said.count(" 1\n") == 4, said
    assert "200 image/png 0" in said
    left = [place for place in Path("/proc").glob("[0-9]*/root") if _leads_to(place, tree)]
    assert not left, "it left processes behind"
