"""A kit measures from its file alone; each command line that it gives QEMU with KVM is played here without it.

KVM runs on none of the project's machines: QEMU parses the command lines as they are but for the accelerator and the
processor's model, makes the machines of them, and boots them with their instructions translated.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from memlane_lab import guests, paths
from memlane_lab.bed.bed import BedSettings
from memlane_lab.guests import kvm
from memlane_lab.guests.qemu import KvmGuest, version
from memlane_lab.host import network
from memlane_lab.host.ports import GuestKind, Nic, Tap
from memlane_lab.host.session import Session
from memlane_lab.images import root
from memlane_lab.kit import archive, build, runner
from memlane_lab.measuring import machine
from memlane_lab.paths.memlane import program

pytestmark = pytest.mark.real

_PATHS = ("bridge", "ovs-dpdk", "memlane")
_INSTEAD = {"kvm": "tcg", "host": "max"}
"""Words of a command line that need KVM, and those that stand for them here."""


class Played(KvmGuest):
    """With all words of KVM's command line but those two, and those without which QEMU 7.2 crashes under TCG."""

    accelerator: ClassVar[str] = _INSTEAD["kvm"]
    boot_timeout: ClassVar[float] = 180.0

    @classmethod
    def missing(cls) -> str | None:
        return None

    def _processor(self) -> list[str]:
        return ["-cpu", _INSTEAD["host"], "-smp", f"{self.processors},maxcpus={max(self.processors, 2)}"]

    def _crashes_with_vectors(self) -> bool:
        return version(self.program) < (10, 0)


def _guest(session: Session, nic: Nic) -> KvmGuest:
    return KvmGuest(session, nic.port.name, [nic])


@pytest.mark.parametrize("name", _PATHS)
def test_qemu_makes_a_machine_of_each_command_line(
    session: Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvmGuest, "_has_vhost_net", lambda _: True)
    first, _ = paths.make(session, name).lay(BedSettings([GuestKind.KVM] * 2).ports())
    told = _guest(session, first)._command("null,id=control")
    assert told[told.index("-accel") + 1] == "kvm"
    assert told[told.index("-cpu") + 1] == "host"
    if isinstance(first.endpoint, Tap):
        assert "vhost=on" in told[told.index("-netdev") + 1]
    words = [_INSTEAD.get(word, word) if before in {"-accel", "-cpu"} else word for before, word in _pairs(told)]
    assert len([1 for one, other in zip(told, words, strict=True) if one != other]) == len(_INSTEAD)
    namespace = first.endpoint.namespace if isinstance(first.endpoint, Tap) else None
    if namespace and not _VHOST_NET.exists():  # a kit refuses to measure then; QEMU 7.2 aborts, in the device's name
        assert "open vhost char device failed: No such file" in _made(words, namespace).stderr
        words = [word.replace("vhost=on", "vhost=off") for word in words]
    done = _made(words, namespace)
    assert done.returncode == 0, done.stderr
    assert "net0" in done.stdout
    assert "paused" in done.stdout
    expected = re.compile(r"TCG doesn't support|info: QEMU waiting for connection")
    assert not [line for line in done.stderr.splitlines() if not expected.search(line)], done.stderr


_VHOST_NET = Path("/dev/vhost-net")


def _made(words: list[str], namespace: str | None) -> subprocess.CompletedProcess[str]:
    """QEMU makes the machine, tells of it and ends, before the first instruction."""
    serial = words.index("-serial")
    return subprocess.run(
        [*network.enter(namespace), *words[:serial], *words[serial + 2 :], "-S", "-monitor", "stdio"],
        input="info network\ninfo status\nquit\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words[:-1]], words, strict=True))


def test_a_wrong_command_line_does_not_pass(session: Session) -> None:
    """The check above can fail: QEMU refuses a property that it does not know."""
    first, _ = paths.make(session, "bridge").lay(BedSettings([GuestKind.KVM] * 2).ports())
    assert isinstance(first.endpoint, Tap)
    told = [_INSTEAD.get(word, word) for word in _guest(session, first)._command("null,id=control")]
    told = [f"{word},no_such=1" if word.startswith("virtio-net-pci") else word for word in told]
    done = subprocess.run(
        [*network.enter(first.endpoint.namespace), *told, "-S"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no_such" in done.stderr


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, own_runs: Path, tmp_path: Path) -> Callable[[Path], int]:  # noqa: ARG001
    """The kit's own way on a machine with KVM, whose guests are played."""
    monkeypatch.setitem(guests.KINDS, GuestKind.KVM, Played)
    monkeypatch.setattr(kvm, "missing", lambda _: None)
    monkeypatch.setattr(runner, "_VHOST_NET", Path("/dev/null"))
    monkeypatch.setattr(machine, "own_commit", lambda: "0" * 12)
    switch, built = tmp_path / "revisions" / ("0" * 40) / "memlane", program()
    assert built is not None
    switch.parent.mkdir(parents=True)
    switch.symlink_to(built.resolve())
    monkeypatch.setenv("MEMLANE", str(switch))
    words = ["--minutes", "0.4", "--only", "request and answer", "--retake", "0", "--out"]
    return lambda folder: runner.main([*words, str(folder)])


@pytest.mark.longest
def test_guests_of_kvms_command_lines_boot_and_talk(played: Callable[[Path], int], tmp_path: Path) -> None:
    assert played(tmp_path) == 0
    (file,) = tmp_path.glob("memlane-kit-*.tar.gz")
    record, result = archive.read(file)
    assert record.guest == "kvm"
    assert record.machine["commit"] == "0" * 12
    measured = {each.labels["path"] for each in result.good}
    assert measured == {path for path in _PATHS if paths.PATHS[path].missing() is None}, result.failed
    assert all(0 < each.values["rtt_p50"] < 1 for each in result.good)


@pytest.mark.prove
def test_a_kit_measures_from_its_file_alone(tmp_path: Path, own_runs: Path) -> None:  # noqa: ARG001
    """In an empty folder, with no variable but PATH."""
    assert build.SWITCH.exists(), "make static"
    clean = tmp_path / "clean"
    clean.mkdir()
    build.build(clean / "memlane-kit")
    words = ["./memlane-kit", "--emulated", "--minutes", "0.4", "--retake", "0", "--only", "memlane", "--only"]
    done = subprocess.run(
        [*words, "request and answer"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=clean,
        env={"PATH": "/usr/sbin:/usr/bin"},
    )
    assert done.returncode == 0, done.stderr
    (file,) = clean.glob("memlane-kit-*.tar.gz")
    assert f"the archive: {file}" in done.stdout
    assert {path.name for path in clean.iterdir()} == {"memlane-kit", file.name}
    _needs_nothing_but_a_shell(clean / "memlane-kit", tmp_path / "empty")


_APPLETS = ("gunzip", "gzip", "mktemp", "rm", "sh", "tail", "tar", "uname")


def _needs_nothing_but_a_shell(kit: Path, empty: Path) -> None:
    """In a root folder of its own with these programs: no library, no Python and no package of this machine."""
    (empty / "bin").mkdir(parents=True)
    (empty / "tmp").mkdir()
    shutil.copy(root.image().tree / "bin" / "busybox", empty / "bin" / "busybox")
    for name in _APPLETS:
        (empty / "bin" / name).symlink_to("busybox")
    shutil.copy(kit, empty / "memlane-kit")
    command: list[str | Path] = ["chroot", empty, "/memlane-kit", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/bin:/usr/sbin"})
    assert done.returncode == 0, done.stderr
    assert "Of memlane's commit" in done.stdout
    assert list((empty / "tmp").iterdir()) == []
