"""Does hardware virtualisation really work here? Probed, not assumed: some /dev/kvm run no ordinary kernel.

The probe boots Debian's cloud kernel with an `/init` of three lines and a limit of 5 seconds; the verdict holds until
the host's next boot and is kept in the cache folder.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.progress import say
from memlane_lab.images import cpio, supplied
from memlane_lab.images.machine_kernel import Flavour

_DEVICE = Path("/dev/kvm")
_LIMIT = 5.0
"""Seconds that the probe's guest has to say its word."""
_WORD = "hardware virtualisation works"
_INIT = f"#!/bin/busybox sh\necho {_WORD}\n/bin/busybox poweroff -f\n"


def missing(qemu: str) -> str | None:
    """Why KVM cannot be used, or None if a probe has shown that it can."""
    if not _DEVICE.exists():
        return f"there is no {_DEVICE}: enable virtualisation in the firmware and load the module kvm_intel or kvm_amd"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"{_DEVICE} may not be opened by this user: join its group (usually kvm)"
    return _verdict(qemu)


def _verdict(qemu: str) -> str | None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = cache.folder() / f"kvm-probe-{boot}"
    if not kept.exists():
        say("probing whether KVM works here (at most 5 s)")
        verdict = _probe(qemu)
        for old in cache.folder().glob("kvm-probe-*"):
            old.unlink(missing_ok=True)  # another lab may probe, too
        kept.write_text(verdict or "")
        return verdict
    return kept.read_text() or None


def _probe(qemu: str) -> str | None:
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "probe.cpio"
        cpio.write(_tree(Path(scratch) / "tree"), archive)
        kernel = supplied.kernel(Flavour.CLOUD).kernel
        command: list[str | Path] = [
            *(qemu, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "128M"),
            *("-accel", "kvm", "-cpu", "host", "-no-reboot", "-serial", "stdio"),
            *("-kernel", kernel, "-initrd", archive, "-append", "console=ttyS0 quiet panic=-1 rdinit=/init"),
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"KVM is there but its probe's guest said nothing within {_LIMIT:g} s: it runs no ordinary kernel"
    if _WORD in done.stdout:
        return None
    said = (done.stderr + done.stdout).strip().splitlines()
    return f"KVM is there but its probe's guest failed: {said[0] if said else f'exit code {done.returncode}'}"


def _tree(tree: Path) -> Path:
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "busybox").write_bytes((supplied.root_image().tree / "bin" / "busybox").read_bytes())
    (tree / "init").write_text(_INIT)
    for program in (tree / "init", tree / "bin" / "busybox"):
        program.chmod(0o755)
    return tree
