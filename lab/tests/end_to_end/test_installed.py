"""The package on a fresh Debian 12 with a live systemd, in a container of systemd-nspawn: from `dpkg -i` to a purge."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from memlane_lab.host import rust
from memlane_lab.paths.memlane import program
from tests.end_to_end import meeting
from tests.end_to_end.libvirtd import domain

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(1800)]

_TOP = Path(__file__).resolve().parents[3]
_DEBIAN = _TOP / "target/package/debian-12"
_LIBVIRT = "etc/libvirt/qemu.conf"
_TIMEOUT = 200.0
_LAN = """access = { group = "memlane" }

[[port]]
name = "web"
vhost-user = "/run/memlane/web.sock"

[[port]]
name = "db"
vhost-user = "/run/memlane/db.sock"
"""
_GUESTS = """access = { group = "memlane" }

[[segment]]
name = "lan"
subnet = "10.0.0.0/24"
"""
# Runs a program in the group of the sockets, as no other user of the machine.
_GROUP = ("setpriv", "--reuid=nobody", "--regid=memlane", "--clear-groups")


@dataclass(frozen=True)
class _Network:
    """A network called lan: its file, the folder of its sockets; commands that become its operator and its guests."""

    file: str = "/etc/memlane/lan.toml"
    sockets: str = "/run/memlane"
    operator: tuple[str, ...] = ()
    guests: tuple[str, ...] = _GROUP


_OF_THE_MACHINE = _Network()
_USER = ("setpriv", "--reuid=1000", "--regid=1000", "--init-groups")
_HOME = ("env", "HOME=/home/user", "XDG_RUNTIME_DIR=/run/user/1000")
_OF_A_USER = _Network("/home/user/.config/memlane/lan.toml", "/run/user/1000/memlane", (*_USER, *_HOME), _USER)
_NIC = """access = { group = "memlane" }

[[segment]]
name = "lan"
nic = "eth1"

[[port]]
name = "web"
segment = "lan"
vhost-user = "/run/memlane/web.sock"
"""


class Machine:
    """A container that has booted systemd from a tree of files."""

    def __init__(self, root: Path) -> None:
        options = ("--register=no", "--keep-unit", "--private-network", "--console=pipe", "--boot")
        # As on a host, where they are not withheld.
        rights = ("--capability=CAP_BPF,CAP_IPC_LOCK", "--system-call-filter=bpf")
        self._nspawn = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={root}", *rights, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._init = ""

    def __enter__(self) -> Self:
        def is_up() -> bool:
            children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children")
            self._init = children.read_text().strip()
            return bool(self._init) and self.does("systemctl", "is-system-running").stdout.strip() == "running"

        until(is_up, "systemd has started")
        return self

    def __exit__(self, *_: object) -> None:
        self._nspawn.terminate()
        try:
            self._nspawn.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", f"--target={self._init}", "--all", *arguments]

    def does(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )

    def succeeds(self, *arguments: str, stdin: str = "") -> str:
        done = self.does(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def ip(self, *arguments: str) -> None:
        """Changes its network, by the program of this host."""
        subprocess.run(
            ["nsenter", f"--target={self._init}", "--net", "ip", *arguments],
            check=True,
            capture_output=True,
            timeout=_TIMEOUT,
        )

    def status_of(self, process: str) -> dict[str, str]:
        """The kernel's status of one of its processes."""
        text = Path(f"/proc/{self._init}/root/proc/{process}/status").read_text()
        return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)

    def shows(self, key: str, unit: str = "memlane@lan") -> str:
        return self.succeeds("systemctl", "show", f"--property={key}", "--value", unit).strip()


def until(condition: Callable[[], bool], what: str, timeout: float = _TIMEOUT) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    memlane, folder = program(), tmp_path_factory.mktemp("package")
    assert memlane is not None
    subprocess.run([_TOP / "contrib/package/stage", folder / "tree", memlane], check=True, capture_output=True)
    subprocess.run([_TOP / "contrib/package/make", folder / "tree", folder, "quick"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def package(packages: Path) -> Path:
    [deb] = packages.glob("*.deb")
    return deb


def _debian(*packages: str) -> Path:
    """The files of a Debian 12 with these packages, made once."""
    made = _DEBIAN.with_name("-".join([_DEBIAN.name, *packages]))
    if not made.exists():
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        include = "--include=systemd,systemd-sysv,dbus,passwd"
        subprocess.run(["debootstrap", "--variant=minbase", include, "bookworm", part], check=True, capture_output=True)
        if packages:
            install = ("apt-get", "--option=Dpkg::Use-Pty=0", "install", "--yes", "--no-install-recommends", *packages)
            unattended = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
            subprocess.run(["chroot", part, *install], check=True, capture_output=True, env=unattended)
        part.rename(made)
    return made


@contextmanager
def _booted(debian: Path, package: Path, folder: Path, *files: Path) -> Iterator[Machine]:
    """That Debian, with the package in /root and these files in /opt; changes to its files go with the test."""
    upper, work, root = (folder / name for name in ("upper", "work", "root"))
    for layer in (upper, work, root):
        layer.mkdir()
    (upper / "root").mkdir(mode=0o700)
    shutil.copy(package, upper / "root/memlane.deb")
    (upper / "opt").mkdir()
    for file in files:
        shutil.copy(file, upper / "opt")
    if (debian / _LIBVIRT).exists():
        # Of cgroups and devices a container has only those that are made for it.
        (upper / _LIBVIRT).parent.mkdir(parents=True)
        (upper / _LIBVIRT).write_text("cgroup_controllers = []\nnamespaces = []\n")
    layers = f"lowerdir={debian},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    try:
        with Machine(root) as booted:
            yield booted
    finally:
        subprocess.run(["umount", "--recursive", root], check=False)


@pytest.fixture
def machine(package: Path, tmp_path: Path) -> Iterator[Machine]:
    """A Debian 12 without memlane, the package in /root, the rig in /opt."""
    rig = rust.program("memlane-rig", named_by="MEMLANE_RIG")
    assert rig is not None
    with _booted(_debian(), package, tmp_path, rig) as booted:
        yield booted


@pytest.fixture
def host(package: Path, tmp_path: Path) -> Iterator[Machine]:
    """The same with libvirt, and with its guests' kernel and initramfs in /opt."""
    debian = _debian("libvirt-daemon-system", "libvirt-clients", "qemu-system-x86", "python3")
    meeting.make_initramfs(tmp_path / "initramfs", tmp_path / "scratch")
    with _booted(debian, package, tmp_path, meeting.kernel(), tmp_path / "initramfs") as booted:
        yield booted


def _install(machine: Machine) -> None:
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN)
    machine.succeeds("systemctl", "enable", "--now", "memlane@lan")


def _guest(machine: Machine, port: str, *arguments: str, network: _Network = _OF_THE_MACHINE) -> subprocess.Popen[str]:
    """A guest with a front end that may connect to the network's sockets, and has no other rights."""
    socket_of_port = f"{network.sockets}/{port}.sock"
    return _start(machine, *network.guests, "/opt/memlane-rig", "guest", socket_of_port, *arguments, "--json")


def _start(machine: Machine, *arguments: str) -> subprocess.Popen[str]:
    command = machine.command(*arguments)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, start_new_session=True
    )


def _end(guest: subprocess.Popen[str]) -> None:
    """Ends a guest, which is a child of the program that entered the container."""
    with suppress(ProcessLookupError):
        os.killpg(guest.pid, signal.SIGKILL)
    guest.wait()


def _pings(machine: Machine, network: _Network = _OF_THE_MACHINE) -> None:
    """Two guests come, and one is answered by the other."""
    own = ("--ip", "10.0.0.5", "--mac", "02:00:00:00:00:05")
    db = _guest(machine, "db", *own, "--seconds", "60", network=network)
    try:
        _is_answered(machine, "10.0.0.5", network)
    finally:
        _end(db)


def _is_answered(machine: Machine, address: str, network: _Network = _OF_THE_MACHINE) -> None:
    """A guest comes to port web, once the last one has gone, and is answered from `address`."""
    until(partial(_is_free, machine, network), "port web waits for a front end")
    own = ("--ip", "10.0.0.6", "--mac", "02:00:00:00:00:06")
    web = _guest(machine, "web", *own, "--ping", address, "--seconds", "60", network=network)
    try:
        _await_pings(web, 1)
    finally:
        _end(web)


def _is_free(machine: Machine, network: _Network) -> bool:
    ports = json.loads(machine.succeeds(*network.operator, "memlane", "ls", network.file, "--json"))
    return any(port["name"] == "web" and port["state"] == "waiting" for port in ports)


def _await_pings(guest: subprocess.Popen[str], count: int) -> list[str]:
    """Reads a guest's events until so many of its pings were answered; the events."""
    assert guest.stdout is not None
    events: list[str] = []
    while events.count("pinged") < count:
        line = guest.stdout.readline()
        assert line, events
        events.append(json.loads(line)["event"])
    return events


def _files(machine: Machine) -> set[str]:
    """All files but the records that the system itself keeps of its actions."""
    listed = machine.succeeds("find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-print").splitlines()
    kept = re.compile(
        r"^/(tmp|var/(log|cache|tmp|lib/(dpkg|systemd|apt))|root|etc/(passwd|group|g?shadow|subu?g?id)-|run)(/|$)"
    )
    return {
        file for file in listed if not kept.match(file.removeprefix("/etc/.") if file == "/etc/.pwd.lock" else file)
    }


def test_two_guests_ping_three_commands_after_a_fresh_debian(machine: Machine) -> None:
    started = time.monotonic()
    _install(machine)
    _pings(machine)
    assert time.monotonic() - started < 180
    assert "memlane  " in machine.succeeds("memlane", "list")
    status = machine.status_of(machine.shows("MainPID"))
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 0)


def test_two_guests_of_libvirt_ping_by_name_five_commands_after_a_fresh_debian(host: Machine) -> None:
    """The package's hook attaches their ports, and memlane gives them addresses and names."""
    consoles = {name: f"/var/log/libvirt/qemu/{name}.console" for name in ("web", "db")}
    for number, (name, peer) in enumerate((("web", "db"), ("db", "web")), start=1):
        text = domain(
            name,
            f"52:54:00:00:00:0{number}",
            f"/run/memlane/lan.{name}.sock",
            ("/opt/vmlinuz", "/opt/initramfs", meeting.arguments(name, peer)),
            memory=320,
            devices=f"<serial type='file'><source path='{consoles[name]}'/></serial>",
            vectors=0,  # see QemuGuest
        )
        host.succeeds("tee", f"/root/{name}.xml", stdin=text)
    # Its daemon has looked for hooks before there are any.
    host.succeeds("virsh", "list")
    started = time.monotonic()
    host.succeeds("dpkg", "-i", "/root/memlane.deb")
    host.succeeds("tee", "/etc/memlane/lan.toml", stdin=_GUESTS)
    host.succeeds("systemctl", "enable", "--now", "memlane@lan")
    host.succeeds("virsh", "create", "/root/web.xml")
    host.succeeds("virsh", "create", "/root/db.xml")

    def have_met() -> bool:
        told = host.does("cat", *consoles.values()).stdout
        return all(f"{meeting.MET} {name}" in told for name in consoles)

    until(have_met, "the guests have met", timeout=180 - (time.monotonic() - started))
    assert _ports(host) == {"web", "db"}
    for name, left in (("db", {"web"}), ("web", set())):
        host.succeeds("virsh", "destroy", name)
        until(partial(_has_ports, host, left), "the port of a domain that has ended is detached")


# A domain without a port of memlane's.
_PLAIN = """<domain type='qemu'><name>plain</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type><kernel>/opt/vmlinuz</kernel></os>
</domain>
"""


def test_domains_start_without_python_with_a_broken_file_and_without_memlane(host: Machine) -> None:
    """Those with a port of memlane's start as long as it runs; else that is told in a sentence."""
    socket_of_web = "/run/memlane/lan.web.sock"
    boot = ("/opt/vmlinuz", "/opt/initramfs", "")
    own = domain("web", "52:54:00:00:00:01", socket_of_web, boot, memory=320, devices="", vectors=0)
    for name, text in {"plain": _PLAIN, "web": own}.items():
        host.succeeds("tee", f"/root/{name}.xml", stdin=text)
    host.succeeds("dpkg", "-i", "/root/memlane.deb")
    host.succeeds("tee", "/etc/memlane/lan.toml", stdin=_GUESTS)
    host.succeeds("systemctl", "enable", "--now", "memlane@lan")
    host.succeeds("mv", "/usr/bin/python3", "/usr/bin/python3.away")

    def starts(name: str) -> None:
        host.succeeds("virsh", "create", f"/root/{name}.xml")
        assert _has_ports(host, {"web"} if name == "web" else set())
        host.succeeds("virsh", "destroy", name)
        until(partial(_has_ports, host, set()), "the port of a domain that has ended is detached")

    starts("plain")
    starts("web")
    host.succeeds("tee", "/etc/memlane/lan.toml", stdin=_GUESTS + '[[port]]\nname = "new\n')
    starts("plain")
    starts("web")
    host.succeeds("systemctl", "stop", "memlane@lan")
    host.succeeds("virsh", "create", "/root/plain.xml")
    host.succeeds("virsh", "destroy", "plain")
    refused = host.does("virsh", "create", "/root/web.xml")
    assert refused.returncode != 0
    assert "does not run" in refused.stderr, refused.stderr
    host.succeeds("rm", "/usr/bin/memlane")
    host.succeeds("virsh", "create", "/root/plain.xml")


def _has_ports(machine: Machine, names: set[str]) -> bool:
    return _ports(machine) == names


def _ports(machine: Machine) -> set[str]:
    return {port["name"] for port in json.loads(machine.succeeds("memlane", "ls", "/etc/memlane/lan.toml", "--json"))}


def test_a_mistake_in_the_file_changes_nothing_and_is_told(machine: Machine) -> None:
    _install(machine)
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN + "[[port]\n")
    assert machine.does("systemctl", "reload", "memlane@lan").returncode != 0
    assert machine.shows("ActiveState") == "active"
    assert machine.does("systemctl", "restart", "memlane@lan").returncode != 0
    assert machine.shows("Result") == "exit-code"
    assert machine.shows("NRestarts") == "0", "a mistake does not pass by itself"
    assert "lan.toml:10: this line is not valid TOML" in machine.succeeds("journalctl", "-u", "memlane@lan")
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN)
    machine.succeeds("systemctl", "start", "memlane@lan")


def test_after_a_crash_the_same_sockets_listen_again(machine: Machine) -> None:
    _install(machine)
    # Its exit code tells of helpers that ended with the main process, before the signal.
    machine.does("systemctl", "kill", "--signal=KILL", "memlane@lan")
    until(lambda: machine.shows("NRestarts") == "1" and machine.shows("ActiveState") == "active", "it is started again")
    _pings(machine)


def test_a_process_that_stands_still_is_ended_and_started_again(machine: Machine) -> None:
    _install(machine)
    machine.succeeds("systemctl", "kill", "--signal=STOP", "memlane@lan")
    until(partial(_has_restarted, machine, "1"), "the watchdog has it started again")
    assert "Watchdog timeout" in machine.succeeds("journalctl", "-u", "memlane@lan")
    _pings(machine)


def _has_restarted(machine: Machine, times: str) -> bool:
    return machine.shows("NRestarts") == times and machine.shows("ActiveState") == "active"


def test_front_ends_that_connect_during_a_restart_wait_and_miss_nothing(machine: Machine) -> None:
    """The unit's descriptor store: no connection is refused and no path is missing while the process is away."""
    _install(machine)
    path = f"/proc/{machine._init}/root/run/memlane/web.sock"
    ends = threading.Event()
    refused: list[str] = []
    connected = 0

    def connect() -> None:
        nonlocal connected
        while not ends.is_set():
            with socket.socket(socket.AF_UNIX) as front_end:
                front_end.settimeout(_TIMEOUT)
                try:
                    front_end.connect(path)
                    connected += 1
                except BlockingIOError:
                    pass  # the queue of a socket that listens is full
                except OSError as error:
                    refused.append(str(error))
            time.sleep(0.002)

    front_ends = threading.Thread(target=connect)
    front_ends.start()
    try:
        for restarts in ("1", "2", "3"):
            machine.succeeds("systemctl", "kill", "--signal=KILL", "memlane@lan")
            until(partial(_has_restarted, machine, restarts), "it is started again")
        for _ in range(3):
            machine.succeeds("systemctl", "restart", "memlane@lan")
    finally:
        ends.set()
        front_ends.join()
    assert refused == []
    assert connected > 0
    assert machine.shows("NFileDescriptorStore") == "2"
    _pings(machine)
    # Systemd's store ends with the unit: a front end is refused then, and does not wait for nothing.
    machine.succeeds("systemctl", "stop", "memlane@lan")
    with socket.socket(socket.AF_UNIX) as front_end, pytest.raises(ConnectionRefusedError):
        front_end.connect(path)
    machine.succeeds("systemctl", "start", "memlane@lan")
    _pings(machine)


def test_an_upgrade_goes_on_with_the_networks_that_run(machine: Machine) -> None:
    """The guests that are there send all the time, and notice nothing."""
    _install(machine)
    before, since = machine.shows("MainPID"), machine.shows("ActiveEnterTimestampMonotonic")
    db = _guest(machine, "db", "--ip", "10.0.0.5", "--mac", "02:00:00:00:00:05")
    web = _guest(machine, "web", "--ip", "10.0.0.6", "--mac", "02:00:00:00:00:06", "--ping", "10.0.0.5")
    try:
        _await_pings(web, 1)
        machine.succeeds("dpkg", "-i", "/root/memlane.deb")
        assert "lost" not in _await_pings(web, 3)
    finally:
        for guest in (db, web):
            _end(guest)
    assert machine.shows("ActiveState") == "active"
    assert machine.shows("MainPID") != before
    assert machine.shows("ActiveEnterTimestampMonotonic") == since, "it was not restarted"
    assert "the network was handed over" in machine.succeeds("journalctl", "-u", "memlane@lan")
    _pings(machine)
    machine.succeeds("systemctl", "restart", "memlane@lan")
    _pings(machine)


def _next_version(package: Path, folder: Path, program: Callable[[Path], None] | None = None) -> Path:
    """The same package under a higher version, its program as `program` changes it."""
    tree = folder / "next"
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("^(Version: .*)$", r"\1.1", control.read_text(), flags=re.MULTILINE))
    if program is not None:
        program(tree / "usr/bin/memlane")
    made = folder / "next.deb"
    subprocess.run(["dpkg-deb", "--build", "-Znone", tree, made], check=True, capture_output=True)
    return made


def _version(machine: Machine) -> str:
    return machine.succeeds("memlane", "--version").split()[1]


def _newer(version: str) -> str:
    """Another version, of the same length."""
    return version[:-1] + ("9" if version[-1] != "9" else "8")


# A program that cannot take networks over, as one with another takeover format.
_REFUSES = """#!/bin/sh
case "$*" in *--takeover*) echo "memlane: takeover format 4, not 5" >&2; exit 1 ;; esac
exec /usr/bin/memlane.real "$@"
"""


def test_no_upgrade_restarts_a_network_whatever_its_file_says(machine: Machine, package: Path, tmp_path: Path) -> None:
    """Over a half-edited file, one with a key that the unit cannot have, and with a program that takes nothing over."""
    _install(machine)
    version = _version(machine)
    newer = _newer(version)

    def of_another_version(program: Path) -> None:
        program.write_bytes(program.read_bytes().replace(version.encode(), newer.encode()))

    def refusing(program: Path) -> None:
        of_another_version(program)
        program.rename(program.with_name("memlane.real"))
        program.write_text(_REFUSES)
        program.chmod(0o755)

    for name, change in {"next.deb": of_another_version, "refusing.deb": refusing}.items():
        shutil.copy(_next_version(package, tmp_path, change), tmp_path / "root/root" / name)
    since, process = machine.shows("ActiveEnterTimestampMonotonic"), machine.shows("MainPID")
    db = _guest(machine, "db", "--ip", "10.0.0.5", "--mac", "02:00:00:00:00:05")
    web = _guest(machine, "web", "--ip", "10.0.0.6", "--mac", "02:00:00:00:00:06", "--ping", "10.0.0.5")

    def installs(deb: str, told: str) -> None:
        """The package is installed, the network left running, and that is told."""
        # Of a network that was left running, the program installed before is the one that runs.
        done = machine.does("dpkg", "-i", f"/root/{deb}")
        assert done.returncode == 0, done.stderr
        runs = f"runs version {version}, {newer} is installed: "
        wanted = f"memlane@lan.service is left running: {runs}"
        assert wanted in done.stderr, done.stdout + done.stderr
        assert told in done.stderr, done.stderr
        assert f"not taken over: {runs}" in machine.succeeds("memlane", "status", "/etc/memlane/lan.toml")
        assert (machine.shows("ActiveState"), machine.shows("MainPID")) == ("active", process)
        assert machine.shows("ActiveEnterTimestampMonotonic") == since
        assert "lost" not in _await_pings(web, 3)

    try:
        _await_pings(web, 1)
        for text, told in {
            _LAN + '[[port]]\nname = "new\n': "lan.toml:11",
            'metrics = "127.0.0.1:9891"\n' + _LAN: "memlane check --unit /etc/memlane/lan.toml",
        }.items():
            machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=text)
            assert machine.does("systemctl", "reload", "memlane@lan").returncode != 0
            installs("next.deb", told)
            assert told in machine.succeeds("journalctl", "-u", "memlane@lan")
        machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN)
        installs("refusing.deb", "")
        assert "takeover format 4, not 5" in machine.succeeds("journalctl", "-u", "memlane@lan")
        for deb in ("next.deb", "memlane.deb"):
            machine.succeeds("dpkg", "-i", f"/root/{deb}")
            assert machine.shows("MainPID") != process
            process = machine.shows("MainPID")
            assert "not taken over" not in machine.succeeds("memlane", "status", "/etc/memlane/lan.toml")
        assert machine.shows("ActiveEnterTimestampMonotonic") == since
        assert "lost" not in _await_pings(web, 3)
    finally:
        for guest in (db, web):
            _end(guest)


def test_a_reload_of_the_unit_touches_no_guest_and_no_port_of_others(machine: Machine) -> None:
    """The file loses a port with a guest and gets another one; a third was attached by a command."""
    _install(machine)
    file = "/etc/memlane/lan.toml"
    machine.succeeds("memlane", "attach", file, "lan.vm", "--vhost-user", "/run/memlane/vm.sock", "--print", "nothing")
    assert machine.succeeds("stat", "--format=%G", "/run/memlane/vm.sock").strip() == "memlane", "as the file says"
    vm = _guest(machine, "vm", "--ip", "10.0.0.5", "--mac", "02:00:00:00:00:05")
    web = _guest(machine, "web", "--ip", "10.0.0.6", "--mac", "02:00:00:00:00:06", "--ping", "10.0.0.5")
    try:
        _await_pings(web, 1)
        fewer = _LAN.replace('"web"', '"new"').replace("web.sock", "new.sock")
        machine.succeeds("tee", file, stdin=fewer)
        for reload in (("reload",), ("kill", "--kill-whom=main", "--signal=HUP")):
            assert (machine.does("systemctl", *reload, "memlane@lan").returncode != 0) == (reload == ("reload",))
            until(partial(_is_active, machine), "the file was read")
            assert _ports(machine) == {"web", "db", "lan.vm", "new"}
        until(lambda: "the port was left as it is" in machine.succeeds("journalctl", "-u", "memlane@lan"), "it is told")
        assert "memlane reload --force web" in machine.succeeds("journalctl", "-u", "memlane@lan")
        assert "lost" not in _await_pings(web, 3)
        machine.succeeds("memlane", "reload", file, "--force", "web")
        assert _ports(machine) == {"db", "lan.vm", "new"}
        machine.succeeds("systemctl", "reload", "memlane@lan")
    finally:
        for guest in (vm, web):
            _end(guest)


_CHANGES = {
    "port-attached": "late: attached",
    "port-changed": "late: changed: weight from null to 3",
    "port-disabled": "late: disabled",
    "port-enabled": "late: enabled",
    "port-drained": "late: drained",
    "port-detached": "late: detached",
    "capture-started": "capture of web begun",
    "capture-ended": "capture ended",
    "reloaded": "1 changed",
    "reload-refused": "reload refused",
    "taken-over": "taken over by a process of memlane",
    "network-ends": "SIGTERM",
}
"""Twelve kinds of change, with words of their messages."""


def _changes_of(machine: Machine, user: str) -> dict[str, list[dict[str, str]]]:
    """Entries of the journal about changes by this user, by their events."""
    kinds: dict[str, list[dict[str, str]]] = {}
    for line in machine.succeeds("journalctl", "--no-pager", "--output=json").splitlines():
        entry = json.loads(line)
        if entry.get("MEMLANE_BY_USER") == user:
            kinds.setdefault(entry["MEMLANE_EVENT"], []).append(entry)
    return kinds


def _is_told(event: str, entry: dict[str, str], user: str, uid: int) -> None:
    assert entry["MEMLANE_BY_UID"] == str(uid)
    assert f"by user {user}" in entry["MESSAGE"]
    assert entry["MESSAGE_ID"]
    assert int(entry["MEMLANE_BY_PID"]) > 0
    if event.startswith("port-"):
        assert entry["MEMLANE_PORT"] == "late"


@pytest.mark.parametrize(("user", "uid"), [("root", 0), ("user", 1000)])
def test_each_change_is_in_the_journal_with_its_author(machine: Machine, user: str, uid: int) -> None:
    """Of a network of the machine, and of one of a user's manager."""
    network = _OF_A_USER if uid else _OF_THE_MACHINE
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    plain = _LAN
    if uid:
        _begin_manager_of_user(machine)
        plain = _LAN.replace('access = { group = "memlane" }', "").replace("/run/memlane", network.sockets)

    def does(*arguments: str, stdin: str = "") -> str:
        return machine.succeeds(*network.operator, *arguments, stdin=stdin)

    def unit(*arguments: str) -> str:
        return does("systemctl", *(("--user",) if uid else ()), *arguments, "memlane@lan")

    def memlane(command: str, *arguments: str) -> None:
        does("memlane", command, network.file, *arguments)

    does("mkdir", "-p", str(Path(network.file).parent))
    does("tee", network.file, stdin=plain)
    unit("start")
    memlane("attach", "late", "--null", "--labels", '{ pod = "a/b" }')
    memlane("set", "late", "--weight", "3")
    memlane("set", "late", "--enabled", "false")
    memlane("set", "late", "--enabled", "true")
    memlane("drain", "late")
    memlane("detach", "late")
    machine.does(*network.operator, "timeout", "5", "memlane", "capture", network.file, "web", "-w", "/tmp/one.pcapng")
    until(lambda: "capture-ended" in _changes_of(machine, user), "the end of the capture is told")
    does("tee", network.file, stdin=plain + "weight = 2\n")
    memlane("reload")
    does("tee", network.file, stdin=plain + "[[port\n")
    unit("kill", "--kill-whom=main", "--signal=HUP")
    until(lambda: "reload-refused" in _changes_of(machine, user), "the refusal is told")
    does("tee", network.file, stdin=plain + "weight = 2\n")
    unit("kill", "--kill-whom=main", "--signal=USR2")
    until(lambda: "taken-over" in _changes_of(machine, user), "the takeover is told")
    memlane("down")
    until(lambda: "network-ends" in _changes_of(machine, user), "the end is told")
    told = _changes_of(machine, user)
    assert set(told) >= set(_CHANGES), sorted(told)
    for event, words in _CHANGES.items():
        entries = [entry for entry in told[event] if words in entry["MESSAGE"]]
        assert entries, (event, [entry["MESSAGE"] for entry in told[event]])
        for entry in entries:
            _is_told(event, entry, user, uid)


def _is_active(machine: Machine) -> bool:
    return machine.shows("ActiveState") == "active"


def test_the_drop_in_that_check_prints_allows_what_the_file_needs(machine: Machine) -> None:
    """The first example of the page on monitoring, addresses of TCP, and a TAP, which needs the other unit."""
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("groupadd", "prometheus")
    file = "/etc/memlane/lan.toml"

    def told() -> str:
        return machine.succeeds("journalctl", "--no-pager", "-u", "memlane@lan", "-u", "memlane-net@lan")

    def applies(text: str, remedy: str) -> None:
        """The unit refuses the file with a remedy; by the commands of the drop-in, it serves it."""
        machine.succeeds("tee", file, stdin=text)
        assert machine.does("systemctl", "restart", "memlane@lan").returncode != 0
        assert remedy in told()
        shown = machine.succeeds("memlane", "check", "--unit", file)
        assert "unit: memlane@lan.service, with a drop-in for" in machine.succeeds("memlane", "check", file)
        commands = [
            line.removeprefix("# ") for line in shown.splitlines() if line.startswith(("# memlane", "# systemctl"))
        ]
        machine.succeeds("systemctl", "reset-failed", "memlane@lan")
        for command in commands:
            machine.succeeds("sh", "-c", command)
        assert "unit: memlane@lan.service, with its drop-in\n" in machine.succeeds("memlane", "check", file)
        assert machine.shows("ActiveState") == "active"

    [example, *_] = _blocks("monitor.md", "toml")
    applies(example, f"memlane check --unit {file}")
    socket_of_metrics = "/run/memlane/net.metrics"
    assert machine.succeeds("stat", "--format=%G %a", socket_of_metrics).split() == ["prometheus", "660"]
    machine.succeeds("rm", "-r", "/etc/systemd/system/memlane@lan.service.d")
    machine.succeeds("systemctl", "daemon-reload")
    applies('metrics = "127.0.0.1:9891"\nweb = "127.0.0.1:9892"\n' + _LAN, f"memlane check --unit {file}")
    for port, path in (("9891", "/metrics"), ("9892", "/")):
        head = rf"GET {path} HTTP/1.0\r\nhost: 127.0.0.1:{port}\r\n\r\n"
        request = f"exec 3<> /dev/tcp/127.0.0.1/{port}; printf '{head}' >&3; cat <&3"
        assert " 200 OK" in machine.succeeds("bash", "-c", request)
    _pings(machine)
    tap = _LAN + '[[port]]\nname = "host"\ntap = "lan0"\n'
    machine.succeeds("tee", file, stdin=tap)
    assert "unit: memlane-net@lan.service, for tap\n" in machine.succeeds("memlane", "check", file)
    assert machine.does("systemctl", "restart", "memlane@lan").returncode != 0
    assert "start memlane-net@ for this network instead" in told()
    machine.succeeds("systemctl", "start", "memlane-net@lan")
    assert machine.shows("ActiveState", "memlane-net@lan") == "active"


def test_an_upgrade_under_load_loses_no_frame(machine: Machine, package: Path, tmp_path: Path) -> None:
    """To a newer version and back, under 20 000 frames a second in each direction."""
    _install(machine)
    since = machine.shows("ActiveEnterTimestampMonotonic")
    shutil.copy(_next_version(package, tmp_path), tmp_path / "root/root/next.deb")
    ports = [word for port in ("web", "db") for word in ("--port", f"vu:/run/memlane/{port}.sock")]
    load = ("/opt/memlane-rig", "blast", *ports, "--rate-pps", "20k", "--seconds", "600", "--json")
    blast = _start(machine, *_GROUP, *load)
    try:
        for file in ("next.deb", "memlane.deb"):
            _flows(machine)
            before = machine.shows("MainPID")
            machine.succeeds("dpkg", "-i", f"/root/{file}")
            told = machine.succeeds("journalctl", "-u", "memlane@lan")
            assert machine.shows("ActiveEnterTimestampMonotonic") == since, told
            assert machine.shows("MainPID") != before, told
            _flows(machine)
        # The rig is a child of the program that entered the container.
        [rig] = Path(f"/proc/{blast.pid}/task/{blast.pid}/children").read_text().split()
        os.kill(int(rig), signal.SIGINT)
        report, _ = blast.communicate(timeout=_TIMEOUT)
    finally:
        _end(blast)
    fate = json.loads(report)["fate"]
    assert fate["sent"] > 0
    # Frames of others are the switch's own announcements.
    faults = {key: value for key, value in fate.items() if value and key != "foreign"}
    assert faults == {"sent": fate["sent"], "received": fate["sent"]}


def _flows(machine: Machine) -> None:
    """Waits until each guest has received another thousand frames."""

    def received() -> list[int]:
        # A machine that is stopped for a while answers later.
        listed = machine.does("memlane", "ls", "/etc/memlane/lan.toml", "--json")
        return [port["receive-frames"] for port in json.loads(listed.stdout or "[]")]

    until(lambda: bool(before := received()) and _grow(before, received), "frames flow")


def _grow(before: list[int], received: Callable[[], list[int]]) -> bool:
    until(
        lambda: [now > then + 1000 for now, then in zip(received(), before, strict=False)] == [True, True],
        "frames flow",
    )
    return True


def _with_a_nic(machine: Machine) -> None:
    """The NIC is one end of a veth pair; the other host is the kernel at the other end."""
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_NIC)
    _plug_in(machine)
    machine.succeeds("systemctl", "enable", "--now", "memlane-nic@lan.socket", "memlane@lan")


def _plug_in(machine: Machine) -> None:
    machine.ip("link", "add", "eth1", "type", "veth", "peer", "name", "outside")
    machine.ip("address", "add", "10.0.0.9/24", "dev", "outside")
    for end in ("eth1", "outside"):
        machine.ip("link", "set", end, "up")


def _is_used_by(machine: Machine, socket_kind: str) -> bool:
    return f"NIC eth1, by {socket_kind}" in machine.succeeds("memlane", "status", "/etc/memlane/lan.toml")


def test_a_unit_opens_the_nic_of_a_network_without_rights(machine: Machine) -> None:
    _with_a_nic(machine)
    until(lambda: _is_used_by(machine, "af-xdp"), "the NIC is used by AF_XDP")
    _is_answered(machine, "10.0.0.9")
    assert int(machine.status_of(machine.shows("MainPID"))["CapEff"], 16) == 0
    helper = machine.status_of(machine.shows("MainPID", "memlane-nic@lan"))
    # Of linux/capability.h: CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_BPF.
    assert int(helper["CapEff"], 16) & ~(1 << 2 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 39) == 0
    # The network has the descriptors: the helper may end, and the next one opens the next NIC of that name.
    machine.succeeds("systemctl", "kill", "--signal=KILL", "memlane-nic@lan.service")
    _is_answered(machine, "10.0.0.9")
    machine.ip("link", "delete", "eth1")
    _plug_in(machine)
    until(lambda: _is_used_by(machine, "af-xdp"), "the next NIC is used")
    _is_answered(machine, "10.0.0.9")
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    until(lambda: _is_used_by(machine, "af-xdp"), "the NIC is used after an upgrade")
    _is_answered(machine, "10.0.0.9")


def test_a_kernel_without_af_xdp_is_told_of_and_the_nic_used(machine: Machine) -> None:
    """socket(2) fails as if CONFIG_XDP_SOCKETS were not set."""
    lacking = "[Service]\nRestrictAddressFamilies=\nRestrictAddressFamilies=AF_UNIX AF_PACKET\n"
    machine.succeeds("mkdir", "-p", "/etc/systemd/system/memlane-nic@.service.d")
    machine.succeeds("tee", "/etc/systemd/system/memlane-nic@.service.d/lacking.conf", stdin=lacking)
    _with_a_nic(machine)
    until(lambda: _is_used_by(machine, "af-packet"), "the NIC is used by AF_PACKET")
    # Lines of the status are wrapped.
    told = " ".join(machine.succeeds("memlane", "status", "/etc/memlane/lan.toml").split())
    assert "the kernel has no AF_XDP" in told
    _is_answered(machine, "10.0.0.9")


def test_a_kernel_without_landlock_is_told_of_and_networks_run(machine: Machine) -> None:
    lacking = "SystemCallFilter=~landlock_create_ruleset:ENOSYS"
    machine.succeeds("mkdir", "-p", "/etc/systemd/system/memlane@.service.d")
    machine.succeeds("tee", "/etc/systemd/system/memlane@.service.d/lacking.conf", stdin=f"[Service]\n{lacking}\n")
    _install(machine)
    _pings(machine)
    status = machine.status_of(machine.shows("MainPID"))
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 0)
    doctor = ("systemd-run", "--quiet", "--pipe", "--wait", f"--property={lacking}", "memlane", "doctor")
    assert "the kernel has no Landlock" in machine.does(*doctor).stdout


def test_doctor_names_the_one_command_that_is_missing(host: Machine) -> None:
    """After each command, its finding is good."""
    host.succeeds("dpkg", "-i", "/root/memlane.deb")
    # A node of Proxmox VE, as far as is looked at.
    host.succeeds("ln", "-s", "/bin/true", "/usr/local/bin/qm")
    host.succeeds("mkdir", "-p", "/var/lib/vz/snippets", "/usr/lib/x86_64-linux-gnu/wireshark/extcap")
    extcap = "/usr/lib/x86_64-linux-gnu/wireshark/extcap/memlane-extcap"
    host.succeeds("rm", "/usr/lib/cni/memlane-cni", "/etc/libvirt/hooks/qemu.d/memlane", extcap)
    host.succeeds("gpasswd", "--delete", "libvirt-qemu", "memlane")
    # An IPAM plugin, which Debian has in containernetworking-plugins.
    host.succeeds("ln", "-s", "/bin/true", "/usr/lib/cni/host-local")

    def findings() -> dict[str, dict[str, str]]:
        return {found["subject"]: found for found in json.loads(host.does("memlane", "doctor", "--json").stdout)}

    commands = {"libvirt": 2, "Proxmox VE": 1, "containers": 1, "Wireshark": 1}
    for subject, count in commands.items():
        for _ in range(count):
            assert findings()[subject]["grade"] == "note", subject
            host.succeeds("sh", "-c", findings()[subject]["command"])
        assert findings()[subject]["grade"] == "good", findings()[subject]
    found = findings()
    assert {"service", "sandbox", "AF_PACKET", "AF_XDP", "TAP", "NixOS", "Cloud Hypervisor"} <= set(found)
    for subject in ("Cloud Hypervisor", "FRR", "KVM"):
        assert found[subject]["grade"] == "good" or found[subject]["command"], found[subject]


def _blocks(page: str, language: str) -> list[str]:
    """The blocks of a language on a page of the documentation."""
    text = (_TOP / "docs/how-to" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _as_on_the_page(machine: Machine, block: str) -> None:
    """Runs the commands of a block as root in /root; their output has its lines, but for numbers."""
    # As on a host, where a user has it.
    machine.succeeds("tee", "/usr/local/bin/sudo", stdin='#!/bin/sh\nexec "$@"\n')
    machine.succeeds("chmod", "755", "/usr/local/bin/sudo")
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, lines = re.fullmatch(r"((?:.*\\\n)*.*)\n((?:.*\n)*)", part).groups()  # type: ignore[union-attr]
        told = machine.succeeds("bash", "-c", f"cd /root && {command} 2>&1")
        for line in lines.splitlines():
            wanted = re.sub(r"\d+", r"\\d+", re.sub(r"(\\ )+", r"\\s+", re.escape(line)))
            wanted = re.sub(r"(\\d\+:){5}\\d\+", "[0-9a-f:]{17}", wanted)
            assert re.search(f"^{wanted}$", told, re.MULTILINE), f"{command}\n{line!r} is not in\n{told}"


def test_the_page_on_installation_is_right_word_for_word(host: Machine) -> None:
    version = host.succeeds("dpkg-deb", "--field", "/root/memlane.deb", "Version").strip()
    host.succeeds("cp", "/root/memlane.deb", f"/root/memlane_{version}_amd64.deb")
    host.succeeds("tee", "/root/lan.toml", stdin=_blocks("install.md", "toml")[0])
    _as_on_the_page(host, _blocks("install.md", "console")[0])


def test_metrics_are_scraped_over_tcp_though_the_network_has_none(machine: Machine) -> None:
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN)
    machine.succeeds("systemctl", "enable", "--now", "memlane-metrics@lan.socket", "memlane@lan")
    request = r"exec 3<> /dev/tcp/127.0.0.1/9891; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3"
    assert 'memlane_port_info{network="lan"' in machine.succeeds("bash", "-c", request)


def test_a_network_is_served_by_one_unit(machine: Machine) -> None:
    _install(machine)
    machine.succeeds("systemctl", "start", "memlane-net@lan")
    assert machine.shows("ActiveState") == "inactive"
    assert machine.shows("ActiveState", "memlane-net@lan") == "active"
    _pings(machine)


def test_a_unit_with_rights_for_devices_serves_a_tap(machine: Machine) -> None:
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN + '[[port]]\nname = "host"\ntap = "lan0"\n')
    machine.succeeds("systemctl", "enable", "--now", "memlane-net@lan")
    machine.ip("address", "add", "10.0.0.9/24", "dev", "lan0")
    machine.ip("link", "set", "lan0", "up")
    _is_answered(machine, "10.0.0.9")
    status = machine.status_of(machine.shows("MainPID", "memlane-net@lan"))
    # Of linux/capability.h: CAP_NET_ADMIN.
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 1 << 12)
    assert "cannot" not in machine.succeeds("journalctl", "--unit=memlane-net@lan")
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    _is_answered(machine, "10.0.0.9")


def _begin_manager_of_user(machine: Machine) -> None:
    machine.succeeds("useradd", "--create-home", "--uid=1000", "user")
    # Of libpam-systemd, which this Debian lacks.
    environment = "[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n"
    machine.succeeds("mkdir", "-p", "/etc/systemd/system/user@.service.d")
    machine.succeeds("tee", "/etc/systemd/system/user@.service.d/environment.conf", stdin=environment)
    machine.succeeds("systemctl", "daemon-reload")
    machine.succeeds("systemctl", "start", "user@1000")


def test_a_network_of_a_user_is_a_service_of_the_users_manager(machine: Machine) -> None:
    """The manager of users runs without a session, as after `loginctl enable-linger`."""
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    _begin_manager_of_user(machine)
    network = _OF_A_USER
    plain = _LAN.replace('access = { group = "memlane" }', "").replace("/run/memlane", network.sockets)

    def as_user(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return machine.does(*network.operator, *arguments, stdin=stdin)

    def succeeds(*arguments: str, stdin: str = "") -> str:
        return machine.succeeds(*network.operator, *arguments, stdin=stdin)

    def shows(key: str) -> str:
        return succeeds("systemctl", "--user", "show", f"--property={key}", "--value", "memlane@lan").strip()

    succeeds("mkdir", "-p", str(Path(network.file).parent))
    succeeds("tee", network.file, stdin=plain)
    succeeds("systemctl", "--user", "enable", "--now", "memlane@lan")
    _pings(machine, network)
    status = machine.status_of(shows("MainPID"))
    assert (status["Uid"].split()[0], int(status["CapEff"], 16)) == ("1000", 0)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    succeeds("systemctl", "--user", "kill", "--signal=KILL", "memlane@lan")
    until(lambda: (shows("NRestarts"), shows("ActiveState")) == ("1", "active"), "it is started again")
    _pings(machine, network)
    succeeds("tee", network.file, stdin=plain + "[[port]\n")
    assert as_user("systemctl", "--user", "reload", "memlane@lan").returncode != 0
    succeeds("tee", network.file, stdin=plain + '[[port]]\nname = "cache"\nnull = true\n')
    succeeds("systemctl", "--user", "reload", "memlane@lan")
    assert "cache" in succeeds("memlane", "ls", network.file)

    # It comes with the manager, with its state, and goes with it.
    succeeds("memlane", "set", network.file, "cache", "--weight", "2")
    machine.succeeds("systemctl", "restart", "user@1000")
    until(lambda: shows("ActiveState") == "active", "it has started with the manager")
    assert shows("NRestarts") == "0"
    assert json.loads(succeeds("memlane", "show", network.file, "cache", "--json"))["entry"]["weight"] == 2
    _pings(machine, network)
    machine.succeeds("systemctl", "stop", "user@1000")
    assert machine.does("test", "-e", f"{network.sockets}/web.sock").returncode != 0


def test_the_rpm_serves_networks_until_it_is_erased(machine: Machine, packages: Path, tmp_path: Path) -> None:
    """By this host's rpm, on the container's files: scriptlets run there. Files of the operator stay, as on Fedora."""
    root, records = f"/proc/{machine._init}/root", tmp_path / "records"
    # A file of this host, because SQLite resolves the root to that of this host.
    records.mkdir()

    def call(*arguments: str | Path) -> None:
        # Not its files, of which rpm is none.
        enter = ["nsenter", f"--target={machine._init}", "--pid", "--ipc", "--uts", "--net"]
        command = [*enter, "rpm", "--force-debian", f"--dbpath={records}", f"--root={root}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
        assert done.returncode == 0, done.stderr
        assert "ailed" not in done.stderr, done.stderr

    before = _files(machine)
    [rpm] = packages.glob("*.rpm")
    call("--install", "--nodeps", rpm)
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN)
    machine.succeeds("systemctl", "enable", "--now", "memlane@lan")
    _pings(machine)
    call("--erase", "memlane")
    assert machine.shows("ActiveState") == "inactive"
    left = {"/etc/memlane", "/etc/memlane/lan.toml", "/var/lib/memlane", "/var/lib/memlane/lan.state"}
    assert _files(machine) - before <= left


def test_a_purge_while_it_runs_leaves_nothing(machine: Machine) -> None:
    before = _files(machine)
    _install(machine)
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("systemctl", "start", "memlane-nic@lan.socket")
    _pings(machine)
    machine.succeeds("dpkg", "--purge", "memlane")
    assert _files(machine) - before == set()
    assert not machine.does("getent", "passwd", "memlane").stdout
    assert machine.does("ls", "/run/memlane").returncode != 0
    assert machine.succeeds("systemctl", "--failed", "--plain", "--no-legend") == ""
