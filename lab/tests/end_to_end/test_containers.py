"""Containers beside virtual machines: the CNI plugin as a runtime calls it, with an IPAM plugin of Debian's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.common.wait import until
from memlane_lab.host import network
from memlane_lab.host.session import Session
from memlane_lab.paths.memlane import program
from tests.end_to_end.lan import UML, Lan

pytestmark = [pytest.mark.real, pytest.mark.prove]

_PLUGINS = Path("/usr/lib/cni")
_PAGE = "a page of a container\n" * 1000


class _Runtime:
    """A container runtime, as far as it uses a CNI network (CNI specification 1.1)."""

    def __init__(self, folder: Path, control: Path, version: str) -> None:
        folder.mkdir()
        binary = program()
        assert binary is not None
        (folder / "memlane-cni").symlink_to(Path(binary).resolve())
        self._folder = folder
        ipam = {"type": "host-local", "subnet": "10.77.0.0/16", "rangeStart": "10.77.9.1", "dataDir": str(folder)}
        self._network = {"cniVersion": version, "name": "pods", "control": str(control), "ipam": ipam}

    def call(self, command: str, container: str, **more: Any) -> tuple[int, dict[str, Any]]:
        plugin = self._folder / "memlane-cni"
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": f"/run/netns/{container}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": f"{self._folder}:{_PLUGINS}",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        given = json.dumps(self._network | {"type": "memlane-cni"} | more)
        done = subprocess.run([plugin], input=given, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, json.loads(done.stdout or "{}")


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_a_guest_fetches_a_page_of_a_container(session: Session, version: str) -> None:
    """The versions are those that Debian's IPAM plugin knows."""
    lan = Lan(session, [UML], sandbox={"kinds": ["af-packet"]})
    runtime = _Runtime(session.folder / "cni", session.folder / "memlane" / "control.sock", version)
    container = session.namespace("web")
    network.change(container, "link set dev lo up")
    status, result = runtime.call("ADD", container)
    assert status == 0, result
    address = result["ips"][0]["address"].split("/")[0]
    assert address == "10.77.9.1"
    assert result["ips"][0].get("version") == ("4" if version < "1" else None)
    pages = session.folder / "pages"
    pages.mkdir()
    (pages / "page").write_text(_PAGE)
    session.start("web", [sys.executable, "-m", "http.server", "80", "--directory", pages], namespace=container)
    guest = lan.guests[0]
    fetch = f"wget -q -O /tmp/page http://{address}/page"
    until(lambda: guest.run(fetch).status == 0, timeout=30, what="the container's web server to answer")
    assert guest.run("cat /tmp/page").stdout == _PAGE
    lan.wait_answer(0, address)
    if version != "0.3.1":
        assert runtime.call("CHECK", container, prevResult=result) == (0, {})
    assert runtime.call("ADD", container)[1]["code"] == 100
    for _ in range(2):
        assert runtime.call("DEL", container, prevResult=result) == (0, {})
    assert [port["name"] for port in lan.switch.report()["ports"]] == ["a"]
