"""Runs on the other machine: says what it lacks, measures, and packs one archive."""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from memlane_lab.common import unpacked
from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say, span, tell
from memlane_lab.experiment import experiment
from memlane_lab.guests import kvm, qemu
from memlane_lab.host import cgroup, network
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import exit_on_termination
from memlane_lab.kit import archive
from memlane_lab.measuring import retaking, run
from memlane_lab.results import results

EXPERIMENT = "another_machine"
"""The experiment of a kit."""
MINUTES = 20.0
"""Minutes that a kit takes, unless told otherwise; samples beside other work are taken again, which adds."""
_OTHER_QEMU = Path("/usr/libexec/qemu-kvm")
"""QEMU where Red Hat's distributions keep theirs."""
_PROGRAMS = {
    qemu.PROGRAM: "qemu-system-x86 (Debian, Ubuntu), qemu-kvm (Fedora, RHEL)",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
"""Programs of this machine that a kit needs, and their packages."""
_VHOST_NET = Path("/dev/vhost-net")
_MEMORY = 2 << 10
"""MiB that two guests and Open vSwitch's packet pools take."""
_INTERRUPTED = 130


def lacks(kind: GuestKind) -> Iterator[str]:
    """The lacks of this machine to measure guests of that kind, each with its remedy."""
    if reason := network.may_change():
        yield f"{reason}: run it by sudo; root makes namespaces, TAPs, a bridge, control groups, and opens {_VHOST_NET}"
    for program, package in _PROGRAMS.items():
        if not shutil.which(program):
            yield f"{program} is not installed: install {package}"
    if reason := cgroup.lack():
        yield reason
    if (free := _free()) < _MEMORY:
        yield f"{free} MiB of memory are available, and {_MEMORY} are needed: end other programs"
    if kind is GuestKind.KVM and not network.may_change() and shutil.which(qemu.PROGRAM):
        if reason := kvm.missing(qemu.PROGRAM):
            yield reason
        if not os.access(_VHOST_NET, os.R_OK | os.W_OK):
            yield f"{_VHOST_NET} cannot be opened, and without it the bridge is no fair rival: modprobe vhost_net"


def _free() -> int:
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next((int(row.split()[1]) >> 10 for row in rows if row.startswith("MemAvailable:")), 0)


def measure(kind: GuestKind, minutes: float, only: Sequence[str], out: Path, retake: int) -> tuple[Path, bool]:
    """Measures as many rounds as fit, and returns the archive, and whether any of its samples is good.

    An interrupted run leaves an archive, too.
    """
    planned = run.within(run.prepare([experiment.FOLDER / f"{EXPERIMENT}.toml"], kind, only=only), 60 * minutes)
    (one,) = planned
    if not one.variants:
        raise LabError(f"nothing can be measured: {one.missing[0].variant}: {one.missing[0].reason}")
    samples, rounds = counted(one.samples, "sample"), counted(one.experiment.repeat, "round")
    say(f"{samples} in {rounds}, about {span(one.seconds)}: leave the machine alone")
    began = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    with tempfile.TemporaryDirectory(prefix="memlane-kit-") as scratch:
        folder = Path(scratch) / "results"
        try:
            run.measure(planned, kind, folder, retake=retake)
        finally:
            packed = _packed(folder, out / f"memlane-kit-{began}.tar.gz")
        return packed, any(each.good for each in results.read(folder)[1])


def _packed(folder: Path, file: Path) -> Path:
    if (folder / EXPERIMENT / "result.json").exists():
        archive.pack(folder, file)
        if user := os.environ.get("SUDO_UID"):
            with suppress(OSError):
                os.chown(file, int(user), int(os.environ.get("SUDO_GID", user)))
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the kit; returns the exit code."""
    os.environ.pop("PYTHONHOME", None)  # programs that are started here have a Python of their own, if any
    exit_on_termination()
    asked = _parser().parse_args(arguments)
    kind = GuestKind.TCG if asked.emulated else GuestKind.KVM
    try:
        with tempfile.TemporaryDirectory(prefix="memlane-kit-bin-") as programs:
            _name_qemu(Path(programs))
            if found := list(lacks(kind)):
                for lack in found:
                    say(f"memlane-kit: {lack}")
                return 1
            file, good = measure(kind, asked.minutes, asked.only, asked.out, asked.retake)
    except LabError as error:
        say(f"memlane-kit: {error}")
        return 2
    except KeyboardInterrupt:
        say("memlane-kit: interrupted; all that it had started is gone")
        return _INTERRUPTED
    tell(f"the archive: {file}")
    if not good:
        say("memlane-kit: no sample is good; the archive has the logs of the first that failed, and helps us as it is")
        return 1
    say(f"Look into it by tar -tzf {file.name}; send it with an issue of memlane: its page of other machines shows it.")
    return 0


def _name_qemu(folder: Path) -> None:
    """Lets QEMU be found by its usual name."""
    if not shutil.which(qemu.PROGRAM) and _OTHER_QEMU.exists():
        (folder / qemu.PROGRAM).symlink_to(_OTHER_QEMU)
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{folder}"


def _parser() -> argparse.ArgumentParser:
    kit = unpacked.here()
    told = argparse.ArgumentParser(
        prog="memlane-kit",
        description="Measure memlane beside the kernel's bridge with vhost-net, and beside Open vSwitch with DPDK if "
        "that is installed, between two guests with KVM. One archive comes out.",
        epilog=f"Of memlane's commit {kit.stated.commit}." if kit else None,
    )
    told.add_argument("--minutes", type=float, default=MINUTES, help="time of all samples (default %(default)g)")
    told.add_argument("--out", type=Path, default=Path.cwd(), help="folder of the archive; by default the current one")
    told.add_argument(
        "--only", action="append", default=[], metavar="LABEL", help="measure only these paths or works, such as bridge"
    )
    told.add_argument(
        "--retake",
        type=int,
        choices=range(retaking.MOST + 1),
        default=retaking.MOST,
        help="times that a sample beside other work is taken again (default %(default)d)",
    )
    told.add_argument(
        "--emulated", action="store_true", help="try the kit without KVM: instructions are translated, figures are none"
    )
    return told


if __name__ == "__main__":
    sys.exit(main())
