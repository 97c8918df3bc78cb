"""A PC in QEMU that only counts: one emulated processor whose clock is the number of its instructions.

Nothing of it depends on the real time or on chance, so that the same image gives the same instructions each time: the
clock begins on a set date, idle time is skipped, addresses are not randomised, and there is no source of
randomness.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.common.progress import say
from memlane_lab.guests.qemu import PROGRAM, version
from memlane_lab.host import procfs

_PROCESSOR = "max,-la57,-erms,-rdrand,-rdseed"
"""All that QEMU emulates: AVX2 among it. Without ERMS the kernel copies words, not bytes, which takes an eighth of the
time here and is one instruction either way."""
_KERNEL = "console=ttyS0 nokaslr norandmaps mitigations=off no5lvl panic=-1 reboot=t audit=0 loglevel=4"
_OUTGROWN = (9, 0)
"""The first QEMU that no longer loads plugins of interface version 1."""
MEMORY = 1536
"""MiB."""
_REAL_MEMORY = 3 << 30
"""Bytes of this computer's memory that a machine may take: its own, and QEMU's beside it."""


class Channel(Enum):
    """Channels by which a machine's output leaves it; the value is QEMU's words for it."""

    SERIAL = ("-serial", "file:{told}")
    """The second serial port."""
    VIRTIO = (
        *("-chardev", "file,id=told,path={told}", "-device", "virtio-serial-pci,ioeventfd=off"),
        *("-device", "virtserialport,chardev=told,name=told"),
    )
    """A port of virtio: faster, where each access to a serial port goes through a hypervisor. Without `ioeventfd`, for
    with it another thread of QEMU answers the guest, at a moment that hangs on the real time."""


@dataclass(frozen=True)
class Boot:
    """The files that are booted."""

    kernel: Path
    initrd: str
    """As QEMU's -initrd takes it: the initramfs, or the modules of a hypervisor."""
    arguments: str
    """The kernel's, or the hypervisor's."""
    plugin: str = ""
    """As QEMU's -plugin takes it."""
    devices: Sequence[str] = ()
    """Further words for QEMU."""
    processor: str = _PROCESSOR
    memory: int = MEMORY
    channel: Channel = Channel.SERIAL


def linux(kernel: Path, initramfs: Path, init: str, plugin: str = "", devices: Sequence[str] = ()) -> Boot:
    """Linux by itself, with its first program `init`."""
    return Boot(kernel, str(initramfs), f"{_KERNEL} rdinit={init}", plugin, devices)


def missing() -> str | None:
    """Why this machine cannot count, with the remedy, or None."""
    if not shutil.which(PROGRAM):
        return f"{PROGRAM} is not installed: run make deps"
    if reason := outgrown(version()):
        return reason
    said = subprocess.run([PROGRAM, "-plugin", "help"], capture_output=True, text=True, check=False).stderr
    return refused(said)


def outgrown(found: tuple[int, int]) -> str | None:
    """Why a QEMU of that version loads no plugin of ours, or None."""
    if found < _OUTGROWN:
        return None
    number = ".".join(map(str, found))
    return f"QEMU {number} loads no plugins made for version 1 of its interface, as ours is: use Debian 12's QEMU 7.2"


def refused(said: str) -> str | None:
    """Why QEMU takes no plugin, from its error about one that is not there."""
    if re.search(r"plugin.*(not|without).*(support|enabl|built)|invalid option", said):
        return f"{PROGRAM} was built without TCG plugins: install Debian's qemu-system-x86"
    return None


def joined(target: Path, parts: Sequence[Path]) -> Path:
    """One initramfs of several; the kernel reads archives that follow each other."""
    with target.open("wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    return target


def at_once() -> int:
    """How many machines may run side by side here: each keeps one processor busy."""
    return max(1, min(len(os.sched_getaffinity(0)), procfs.available_memory() // _REAL_MEMORY))


def boot(wanted: Boot, folder: Path, timeout: float) -> bytes:
    """Runs the machine until it ends; returns its output. Its console is FOLDER/console.log."""
    told, console = folder / "told", folder / "console.log"
    command = [
        *(PROGRAM, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc"),
        *("-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0,sleep=off"),
        *("-rtc", "base=2026-01-01,clock=vm"),
        *("-seed", "1", "-cpu", wanted.processor, "-smp", "1", "-m", f"{wanted.memory}M"),
        *("-kernel", str(wanted.kernel), "-initrd", wanted.initrd, "-append", wanted.arguments),
        *("-serial", f"file:{console}", *(word.format(told=told) for word in wanted.channel.value)),
        *(("-plugin", wanted.plugin) if wanted.plugin else ()),
        *wanted.devices,
    ]
    try:
        status, said = _run(command, timeout)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"the counted host was not done after {timeout:.0f} s; {_end(console)}") from error
    except FileNotFoundError as error:
        raise NotAvailable(f"{PROGRAM} is not installed: run make deps") from error
    if status:
        raise LabError(f"QEMU ended with status {status}: {refused(said) or said.strip()}")
    if not told.exists() or not told.stat().st_size:
        raise LabError(f"the counted host reported nothing; {_end(console)}")
    return told.read_bytes()


_running: set[subprocess.Popen[str]] = set()
"""The machines of all threads."""


def _run(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Runs QEMU; returns its exit code and its standard error."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        _running.add(process)
        try:
            said = process.communicate(timeout=timeout)[1]
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)
    return process.returncode, said


def end_all() -> None:
    """Ends the machines of all threads at once: each waiting thread gets an error."""
    for process in list(_running):
        process.kill()


def _end(console: Path) -> str:
    lines = console.read_text(errors="replace").splitlines()[-12:] if console.exists() else []
    say("\n".join(lines))
    return f"its console's last words stand above, all of them in {console}" if lines else "its console said nothing"
