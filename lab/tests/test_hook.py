"""The hook of libvirt and Proxmox VE: ports come before the guest and go after it, with any failure in between."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from memlane_lab.paths.memlane import program

pytestmark = pytest.mark.real

_HOOKS = Path(__file__).resolve().parents[2] / "contrib/hooks"
_TIMEOUT = 60.0


@dataclass
class Network:
    """A network called lan with the port `router` in its file."""

    folder: Path
    environment: dict[str, str]
    running: subprocess.Popen[str] | None = None

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

    def hook(self, *arguments: str, stdin: str = "", manager: str = "libvirt") -> subprocess.CompletedProcess[str]:
        """A hook as its manager runs it, in the folders of this test."""
        places = ("--networks", self.folder, "--sockets", self.sockets, "--group", "daemon")
        return subprocess.run(
            [self.environment["MEMLANE"], "hook", manager, *places, *arguments],
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
    network = Network(tmp_path, {**os.environ, "MEMLANE": str(memlane), "XDG_RUNTIME_DIR": str(tmp_path)})
    command: list[str | Path] = [memlane, "up", tmp_path / "lan.toml"]
    running = subprocess.Popen(
        command, env=network.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    network.running = running
    try:
        assert running.stdout is not None
        assert "is up" in running.stdout.readline()
        yield network
    finally:
        running.terminate()
        running.wait(_TIMEOUT)


_SEGMENT = '<memlane:port xmlns:memlane="urn:memlane" name="web" segment="front" transmit="100Mbit"/>'


def test_a_domain_gets_its_port_and_gives_it_back(network: Network) -> None:
    domain = network.domain("lan.web.sock", metadata=_SEGMENT)
    for _ in range(2):
        done = network.hook("web", "prepare", "begin", "-", stdin=domain)
        assert done.returncode == 0, done.stderr
        port = network.ports()["web"]
        assert (port["segment"], port["place"]) == ("front", str(network.sockets / "lan.web.sock"))
        assert port["origin"] == {"by": "libvirt", "label": "web"}
    shown = json.loads(network.does("show", network.folder / "lan.toml", "web", "--json").stdout)
    entry = shown["entry"]
    assert (entry["mac"], entry["queues"], entry["access"]) == ("52:54:00:00:00:00", 2, {"group": "daemon"})
    for phase in (("start", "begin"), ("started", "begin"), ("stopped", "end")):
        assert network.hook("web", *phase, "-", stdin=domain).returncode == 0
    # The end of another guest, and a reload, are no reason to detach it.
    assert network.hook("db", "release", "end", "-", stdin=domain).returncode == 0
    assert network.does("reload", network.folder / "lan.toml").returncode == 0
    assert set(network.ports()) == {"router", "web"}
    for _ in range(2):
        assert network.hook("web", "release", "end", "-", stdin=domain).returncode == 0
        assert set(network.ports()) == {"router"}


def test_a_port_of_the_networks_file_stays(network: Network) -> None:
    domain = network.domain("lan.router.sock")
    assert network.hook("web", "prepare", "begin", "-", stdin=domain).returncode == 0
    assert network.hook("web", "release", "end", "-", stdin=domain).returncode == 0
    assert set(network.ports()) == {"router"}


def test_ports_of_a_hook_that_was_killed_go_with_the_guest(network: Network) -> None:
    """It has attached the first of two ports: the next one attaches the other, and both go."""
    first, both = network.domain("lan.web.sock"), network.domain("lan.web.sock", "lan.db.sock")
    assert network.hook("web", "prepare", "begin", "-", stdin=first).returncode == 0
    assert network.hook("web", "prepare", "begin", "-", stdin=both).returncode == 0
    assert set(network.ports()) == {"router", "web", "db"}
    assert network.hook("web", "release", "end", "-", stdin="").returncode == 0
    assert set(network.ports()) == {"router"}


_PLAIN = "<domain type='kvm'><name>plain</name><devices><interface type='network'/></devices></domain>"


@pytest.mark.parametrize("state", ["running", "broken file", "no file", "stopped"])
def test_a_guest_without_a_port_of_memlane_starts_whatever_happens(network: Network, state: str) -> None:
    """Whereas for its own, memlane being stopped is told in one sentence."""
    own = network.domain("lan.web.sock")
    if state == "broken file":
        (network.folder / "lan.toml").write_text('[[port]]\nname = "new\n')
    elif state == "no file":
        (network.folder / "lan.toml").unlink()
    elif state == "stopped":
        assert network.running is not None
        network.running.terminate()
        network.running.wait(_TIMEOUT)
    for phase in ("prepare", "start", "started", "stopped", "release", "reconnect", "migrate", "restore"):
        for plain in (_PLAIN, "", "no xml", "<domain", "\x00\x01"):
            done = network.hook("plain", phase, "begin", "-", stdin=plain)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = network.hook("web", "prepare", "begin", "-", stdin=own)
    if state == "stopped":
        assert done.returncode == 1
        assert "does not run" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_the_hook_of_the_package_fails_for_exit_code_1_alone(tmp_path: Path) -> None:
    """A program that is missing or crashes keeps no domain from its start; Python is not needed."""
    hook = (_HOOKS / "libvirt").read_text()
    assert "/usr/bin/memlane" in hook
    assert "python" not in hook
    program = tmp_path / "memlane"
    copy = tmp_path / "hook"
    copy.write_text(hook.replace("/usr/bin/memlane", str(program)))
    copy.chmod(0o755)

    def ends() -> int:
        command: list[str | Path] = [copy, "web", "prepare", "begin", "-"]
        return subprocess.run(command, input="x" * (1 << 20), text=True, capture_output=True, check=False).returncode

    assert ends() == 0, "it is missing"
    for script, code in {"exit 1": 1, "exit 0": 0, "exit 2": 0, "exit 101": 0, "kill -SEGV $$": 0}.items():
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert ends() == code, script
    program.write_bytes(b"\x7fELF")
    assert ends() == 0, "it cannot be executed"


def test_a_description_that_is_cut_off_and_names_a_socket_is_refused(network: Network) -> None:
    domain = network.domain("lan.web.sock")
    done = network.hook("web", "prepare", "begin", "-", stdin=domain[: domain.index("<driver")])
    assert (done.returncode, "not XML" in done.stderr) == (1, True)
    assert set(network.ports()) == {"router"}


@pytest.mark.parametrize("name", ["../web", "-web", "a b", "ü", "x" * 250])
def test_any_name_of_a_domain_is_a_label(network: Network, name: str) -> None:
    done = network.hook(name, "prepare", "begin", "-", stdin=network.domain("lan.web.sock"))
    assert done.returncode == 0, done.stderr
    assert network.ports()["web"]["origin"] == {"by": "libvirt", "label": name}
    assert network.hook(name, "release", "end", "-").returncode == 0
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
        done = network.hook("101", phase, manager="proxmox")
        assert done.returncode == 0, done.stderr
        assert set(network.ports()) == ports
