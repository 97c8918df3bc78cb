"""Nodes with systems of their own: two releases of Debian on disks, behind a router."""

import re
from pathlib import Path

import pytest

from memlane_lab import topo

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "line-of-routers" / "own-systems.toml"


@pytest.fixture(autouse=True)
def _apart(own_runs: Path) -> None:
    """Topologies of these tests are not those of the machine's user."""


def test_each_node_boots_the_system_of_its_own_disk() -> None:
    with topo.up(EXAMPLE) as net:
        stable, newer = net["stable"], net["newer"]
        releases = [
            re.search(r"VERSION_CODENAME=(\w+)", each.get("/etc/os-release").decode()) for each in (stable, newer)
        ]
        assert [found and found[1] for found in releases] == [_machine_release(), "trixie"]
        for each in (stable, newer):
            assert each.get("/proc/1/comm").strip() == b"systemd"
            assert int(each.run("dpkg --get-selections | grep -c install").check().stdout) > 50
            assert each.run("hostname").stdout.strip() == each.name
        # One machine's disk is no other's, and a start begins with the disk as it was made.
        stable.run("echo mine >/var/lib/mine && sync").check()
        assert newer.run("cat /var/lib/mine").status != 0
        net.kill("stable")
        net.start("stable")
        net.wait_routes()
        assert stable.run("cat /var/lib/mine").status != 0
        assert stable.run("ping -c 2 -W 10 newer").status == 0
        server = newer.spawn("iperf3 --server --one-off")
        carried = stable.run("until iperf3 --client newer --time 2; do sleep 1; done", timeout=120)
        assert carried.status == 0, carried.stderr
        assert server.wait(60).status == 0


def _machine_release() -> str:
    found = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    assert found
    return found[1]
