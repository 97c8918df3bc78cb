"""Containers beside virtual machines: the CNI plugin, called as a runtime does and by podman; IPAM is of Debian's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.experiment.setting import Setting
from memlane_lab.host import network
from memlane_lab.host.session import Session
from memlane_lab.images.shop import SMALL
from memlane_lab.measuring import shops
from memlane_lab.paths.memlane import program
from tests.end_to_end.lan import UML, Lan, Plan

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


class _Podman:
    """Podman, with a CNI network and folders of its own."""

    def __init__(self, session: Session, control: Path, tree: Path) -> None:
        self._folder = session.folder / "podman"
        networks = self._folder / "net.d"
        networks.mkdir(parents=True)
        binary = program()
        assert binary is not None
        (self._folder / "memlane-cni").symlink_to(Path(binary).resolve())
        ipam = {"type": "host-local", "subnet": "10.77.0.0/16", "rangeStart": "10.77.9.1", "dataDir": str(self._folder)}
        plugin = {"type": "memlane-cni", "control": str(control), "ipam": ipam}
        (networks / "10-pods.conflist").write_text(
            json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]})
        )
        self._settings = self._folder / "containers.conf"
        self._settings.write_text(f"""\
[network]
network_backend = "cni"
cni_plugin_dirs = ["{self._folder}", "{_PLUGINS}"]
network_config_dir = "{networks}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=8192:8192", "nproc=1024:1024"]
""")
        self._tree = tree

    def call(self, *command: str) -> str:
        places = ["--root", f"{self._folder}/storage", "--runroot", f"{self._folder}/run", "--storage-driver", "vfs"]
        environment = os.environ | {"CONTAINERS_CONF": str(self._settings)}
        done = subprocess.run(
            ["podman", *places, *command], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def serve(self, tier: str, *arguments: str) -> str:
        """Runs a tier of the shop in a container of that name; returns the container's address once the tier serves."""
        container = ["--detach", "--name", tier, "--network", "pods", "--read-only", "--rootfs", str(self._tree)]
        self.call("run", *container, "/bin/sh", "/srv/shop/tier", tier, *arguments)
        until(lambda: f"{tier} serves" in self.call("logs", tier), timeout=60, what=f"the container {tier} to serve")
        return self.call("inspect", "--format", "{{.NetworkSettings.Networks.pods.IPAddress}}", tier)


def test_nginx_in_a_container_serves_books_of_a_database_in_a_guest(session: Session) -> None:
    """Web server and application are in podman's containers, PostgreSQL is in a guest, the reader in another."""
    shop = {"items": SMALL[0], "customers": SMALL[1]}
    setting = Setting.model_validate({"path": "memlane", "shop": shop, "traffic": {"workload": "shop", "rate": 1}})
    image = shops.image(setting)
    assert image is not None
    keeper = Plan(UML, image=image, memory=shops.memories(setting, UML)["db1"])
    lan = Lan(session, [keeper, UML], sandbox={"kinds": ["af-packet"]})
    database, reader = lan.guests
    database.spawn(["sh", "/srv/shop/tier", "database"]).wait_for_output("database serves", timeout=60)
    podman = _Podman(session, session.folder / "memlane" / "control.sock", image.tree)
    try:
        application = podman.serve("application", bed.ipv4(0))
        web = podman.serve("web", application)
        page = reader.run(f"wget -S -q -O - http://{web}/book/7 2>&1").check().stdout
        question = "SELECT title FROM item WHERE id = 7"
        asked = f'/lib/postgresql/bin/psql -h /run/shop -U shop -d shop -X -A -t -c "{question}"'
        title = database.run(asked).check().stdout.strip()
        assert title
        assert title in page
        assert "Server: nginx" in page
        ports = {port["name"]: port for port in lan.switch.report()["ports"]}
        kinds = sorted(port["kind"] for port in ports.values())
        assert kinds == ["af-packet", "af-packet", "vhost-user", "vhost-user"]
        assert all(port["receive-frames"] > 0 and port["transmit-frames"] > 0 for port in ports.values())
        lan.switch.check()
    finally:
        podman.call("rm", "--force", "--all", "--time", "0")
    assert [port["name"] for port in lan.switch.report()["ports"]] == ["a", "b"]
