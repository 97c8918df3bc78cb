"""The package on a fresh Debian 12 with a live systemd, in a container of systemd-nspawn: from `dpkg -i` to a purge."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from memlane_lab.host import rust
from memlane_lab.paths.memlane import program

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(900)]

_TOP = Path(__file__).resolve().parents[3]
_DEBIAN = _TOP / "target/package/debian-12"
_TIMEOUT = 60.0
_LAN = """access = { group = "memlane" }

[[port]]
name = "web"
vhost-user = "/run/memlane/web.sock"

[[port]]
name = "db"
vhost-user = "/run/memlane/db.sock"
"""


class Machine:
    """A container that has booted systemd from a tree of files."""

    def __init__(self, root: Path) -> None:
        options = ("--register=no", "--keep-unit", "--private-network", "--console=pipe", "--boot")
        self._nspawn = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={root}", *options],
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

    def shows(self, key: str, unit: str = "memlane@lan") -> str:
        return self.succeeds("systemctl", "show", f"--property={key}", "--value", unit).strip()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    memlane, folder = program(), tmp_path_factory.mktemp("package")
    assert memlane is not None
    subprocess.run([_TOP / "contrib/package/stage", folder / "tree", memlane], check=True, capture_output=True)
    subprocess.run([_TOP / "contrib/package/make", folder / "tree", folder], check=True, capture_output=True)
    [deb] = folder.glob("*.deb")
    return deb


@pytest.fixture
def machine(package: Path, tmp_path: Path) -> Iterator[Machine]:
    """A Debian 12 without memlane, the package in /root; changes to its files go with the test."""
    if not _DEBIAN.exists():
        made = _DEBIAN.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        include = "--include=systemd,systemd-sysv,dbus,passwd"
        subprocess.run(["debootstrap", "--variant=minbase", include, "bookworm", made], check=True, capture_output=True)
        made.rename(_DEBIAN)
    upper, work, root = (tmp_path / name for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        folder.mkdir()
    (upper / "root").mkdir(mode=0o700)
    shutil.copy(package, upper / "root/memlane.deb")
    rig = rust.program("memlane-rig", named_by="MEMLANE_RIG")
    assert rig is not None
    (upper / "opt").mkdir()
    shutil.copy(rig, upper / "opt/memlane-rig")
    layers = f"lowerdir={_DEBIAN},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    try:
        with Machine(root) as booted:
            yield booted
    finally:
        subprocess.run(["umount", "--recursive", root], check=False)


def _install(machine: Machine) -> None:
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    machine.succeeds("tee", "/etc/memlane/lan.toml", stdin=_LAN)
    machine.succeeds("systemctl", "enable", "--now", "memlane@lan")


def _guest(machine: Machine, port: str, *arguments: str) -> subprocess.Popen[str]:
    """A guest with a front end in the group of the sockets, run by no other user of the machine."""
    group = ("setpriv", "--reuid=nobody", "--regid=memlane", "--clear-groups")
    command = machine.command(*group, "/opt/memlane-rig", "guest", f"/run/memlane/{port}.sock", *arguments, "--json")
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def _pings(machine: Machine) -> None:
    """Two guests come, and one is answered by the other."""
    db = _guest(machine, "db", "--ip", "10.0.0.5", "--mac", "02:00:00:00:00:05", "--seconds", "60")
    web = _guest(
        machine, "web", "--ip", "10.0.0.6", "--mac", "02:00:00:00:00:06", "--ping", "10.0.0.5", "--seconds", "60"
    )
    try:
        assert web.stdout is not None
        heard = [next(web.stdout) for _ in range(1)]
        while not any("answer" in json.dumps(json.loads(line)) for line in heard):
            line = web.stdout.readline()
            assert line, heard
            heard.append(line)
    finally:
        for guest in (db, web):
            guest.kill()
            guest.wait()


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
    status = Path(f"/proc/{machine._init}/root/proc/{machine.shows('MainPID')}/status").read_text()
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"):
        assert line in status


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
    machine.succeeds("systemctl", "kill", "--signal=KILL", "memlane@lan")
    until(lambda: machine.shows("NRestarts") == "1" and machine.shows("ActiveState") == "active", "it is started again")
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
    _install(machine)
    before, since = machine.shows("MainPID"), machine.shows("ActiveEnterTimestampMonotonic")
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    assert machine.shows("ActiveState") == "active"
    assert machine.shows("MainPID") != before
    assert machine.shows("ActiveEnterTimestampMonotonic") == since, "it was not restarted"
    assert "the network was handed over" in machine.succeeds("journalctl", "-u", "memlane@lan")
    _pings(machine)
    machine.succeeds("systemctl", "restart", "memlane@lan")
    _pings(machine)


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


def test_a_purge_while_it_runs_leaves_nothing(machine: Machine) -> None:
    before = _files(machine)
    _install(machine)
    machine.succeeds("dpkg", "-i", "/root/memlane.deb")
    _pings(machine)
    machine.succeeds("dpkg", "--purge", "memlane")
    assert _files(machine) - before == set()
    assert not machine.does("getent", "passwd", "memlane").stdout
    assert machine.does("ls", "/run/memlane").returncode != 0
    assert machine.succeeds("systemctl", "--failed", "--plain", "--no-legend") == ""
