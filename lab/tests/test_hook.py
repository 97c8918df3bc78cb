"""The hook of libvirt and Proxmox VE: ports come before the guest and go after it, with any failure in between."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from memlane_lab.paths.memlane import program

pytestmark = pytest.mark.real

_HOOK = Path(__file__).resolve().parents[2] / "contrib/hooks/memlane"
_TIMEOUT = 60.0


@dataclass
class Network:
    """A network called lan with the port `router` in its file."""

    folder: Path
    environment: dict[str, str]

    @property
    def sockets(self) -> Path:
        return self.folder / "memlane"

    def does(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [self.environment["MEMLANE"], *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.environment, timeout=_TIMEOUT
        )

    def ports(self) -> dict[str, dict[str, object]]:
        return {port["name"]: port for port in json.loads(self.does("ls", self.folder / "lan.toml", "--json").stdout)}

    def hook(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_HOOK, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=_TIMEOUT,
        )

    def domain(self, *sockets: str, metadata: str = "") -> str:
        interfaces = "".join(
            f"<interface type='vhostuser'><mac address='52:54:00:00:00:0{number}'/>"
            f"<source type='unix' path='{self.sockets / socket}' mode='client'/><driver queues='2'/></interface>"
            for number, socket in enumerate(sockets)
        )
        return (
            f"<domain type='kvm'><name>web</name><metadata>{metadata}</metadata><devices>{interfaces}"
            "<interface type='bridge'><source bridge='br0'/></interface></devices></domain>"
        )


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    memlane = program()
    assert memlane is not None
    text = f'[[port]]\nname = "router"\nvhost-user = "{tmp_path}/memlane/lan.router.sock"\n'
    (tmp_path / "lan.toml").write_text(text)
    mine = {"MEMLANE": str(memlane), "MEMLANE_NETWORKS": str(tmp_path), "MEMLANE_RECORDS": str(tmp_path / "records")}
    mine["MEMLANE_GROUP"] = "daemon"
    places = {"MEMLANE_SOCKETS": str(tmp_path / "memlane"), "XDG_RUNTIME_DIR": str(tmp_path)}
    network = Network(tmp_path, {**os.environ, **mine, **places})
    command: list[str | Path] = [memlane, "up", tmp_path / "lan.toml"]
    running = subprocess.Popen(
        command, env=network.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        assert "is up" in running.stdout.readline()
        yield network
    finally:
        running.terminate()
        running.wait(_TIMEOUT)


# A memlane that attaches so many ports and then hangs.
_HELD_AT = """#!/bin/sh
if [ "$1" = attach ]; then
    n=$(cat "{folder}/n" 2>/dev/null || echo 0)
    echo $((n + 1)) > "{folder}/n"
    [ "$n" -lt {attached} ] || {{ : > "{folder}/here"; exec sleep 60; }}
fi
exec "{memlane}" "$@"
"""
_SEGMENT = '<memlane:port xmlns:memlane="urn:memlane" name="web" segment="front" transmit="100Mbit"/>'


def test_a_domain_gets_its_port_and_gives_it_back(network: Network) -> None:
    domain = network.domain("lan.web.sock", metadata=_SEGMENT)
    for _ in range(2):
        done = network.hook("web", "prepare", "begin", "-", stdin=domain)
        assert done.returncode == 0, done.stderr
        port = network.ports()["web"]
        assert (port["segment"], port["place"]) == ("front", str(network.sockets / "lan.web.sock"))
    shown = json.loads(network.does("show", network.folder / "lan.toml", "web", "--json").stdout)
    entry = shown["entry"]
    assert (entry["mac"], entry["queues"], entry["access"]) == ("52:54:00:00:00:00", 2, {"group": "daemon"})
    for phase in (("start", "begin"), ("started", "begin"), ("stopped", "end")):
        assert network.hook("web", *phase, "-", stdin=domain).returncode == 0
    assert set(network.ports()) == {"router", "web"}
    for _ in range(2):
        assert network.hook("web", "release", "end", "-", stdin=domain).returncode == 0
        assert set(network.ports()) == {"router"}


def test_a_port_of_the_networks_file_stays(network: Network) -> None:
    domain = network.domain("lan.router.sock")
    assert network.hook("web", "prepare", "begin", "-", stdin=domain).returncode == 0
    assert network.hook("web", "release", "end", "-", stdin=domain).returncode == 0
    assert set(network.ports()) == {"router"}


def test_a_hook_that_is_killed_is_made_up_for(network: Network) -> None:
    """After the record and before the port, and after the first port and before the second."""
    domain = network.domain("lan.web.sock", "lan.db.sock")
    slow = network.folder / "slow"
    for attached in (0, 1):
        slow.write_text(
            _HELD_AT.format(folder=network.folder, attached=attached, memlane=network.environment["MEMLANE"])
        )
        slow.chmod(0o755)
        for file in ("n", "here"):
            (network.folder / file).unlink(missing_ok=True)
        hook = subprocess.Popen(
            [_HOOK, "web", "prepare", "begin", "-"],
            stdin=subprocess.PIPE,
            env={**network.environment, "MEMLANE": str(slow)},
            text=True,
            start_new_session=True,
        )
        assert hook.stdin is not None
        hook.stdin.write(domain)
        hook.stdin.close()
        deadline = time.monotonic() + _TIMEOUT
        while not (network.folder / "here").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(hook.pid, 9)
        hook.wait()
        assert len(network.ports()) == 1 + attached
        if attached:
            assert network.hook("web", "prepare", "begin", "-", stdin=domain).returncode == 0
            assert set(network.ports()) == {"router", "web", "db"}
        assert network.hook("web", "release", "end", "-", stdin=domain).returncode == 0
        assert set(network.ports()) == {"router"}


@pytest.mark.parametrize("garbage", ["", "no xml", "<domain", "<domain/>", "\x00\x01"])
def test_garbage_is_refused_or_attaches_nothing(network: Network, garbage: str) -> None:
    done = network.hook("web", "prepare", "begin", "-", stdin=garbage)
    assert done.returncode == (0 if garbage == "<domain/>" else 1)
    assert "Traceback" not in done.stderr
    assert set(network.ports()) == {"router"}


@pytest.mark.parametrize("name", ["../web", "", ".web", "a\nb"])
def test_names_stay_in_the_folder_of_records(network: Network, name: str) -> None:
    assert network.hook(name, "prepare", "begin", "-", stdin=network.domain("lan.web.sock")).returncode == 1
    assert set(network.ports()) == {"router"}


def test_what_cannot_be_is_told_in_one_line(network: Network) -> None:
    refused = {
        "two interfaces have the socket": network.domain("lan.web.sock", "lan.web.sock"),
        "network wan": network.domain("wan.web.sock"),
    }
    for told, domain in refused.items():
        done = network.hook("web", "prepare", "begin", "-", stdin=domain)
        assert done.returncode == 1
        assert told in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert network.hook("web", "release", "end", "-").returncode == 0
    assert set(network.ports()) == {"router"}


def test_proxmox_finds_the_sockets_in_the_arguments(network: Network) -> None:
    path = network.sockets / "lan.web.sock"
    qm = network.folder / "qm"
    qm.write_text(
        f"#!/bin/sh\necho 'cores: 2'\necho \"args: -chardev socket,id=char-web,path={path},reconnect=1 -netdev x\"\n"
    )
    qm.chmod(0o755)
    network.environment["PATH"] = f"{network.folder}:{network.environment['PATH']}"
    for phase, ports in {
        "pre-start": {"router", "web"},
        "post-start": {"router", "web"},
        "post-stop": {"router"},
    }.items():
        done = network.hook("101", phase)
        assert done.returncode == 0, done.stderr
        assert set(network.ports()) == ports
