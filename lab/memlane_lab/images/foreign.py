"""Programs of other Debian releases than the machine's: unpacked with all their libraries, never installed."""

import hashlib
import subprocess
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.images import debian

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_DRIVERS = ("librte-meta-bus", "librte-meta-mempool")
"""Packages of DPDK's drivers that Open vSwitch asks for at its start, but does not depend on."""


def newest_qemu() -> Path:
    """The `qemu-system-x86_64` of Debian's newest suite, in a folder that can stand first on the PATH."""
    return cache.product(f"qemu-sid-{_recipe()}", _make_qemu) / "bin" / "qemu-system-x86_64"


def newest_ovs() -> Path:
    """The folder of Open vSwitch with DPDK of Debian's newest suite; its daemon is `bin/ovs-vswitchd-dpdk`."""
    return cache.product(f"ovs-sid-{_recipe()}", _make_ovs)


def ovs_version() -> str:
    """Versions of that daemon and its DPDK, as it tells them."""
    command = [str(newest_ovs() / "bin" / "ovs-vswitchd-dpdk"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return ", ".join(done.stdout.splitlines()[:2])


def _make_ovs(folder: Path) -> None:
    debian.Archive("sid").unpack_with_dependencies(["openvswitch-switch-dpdk", *_DRIVERS], folder)
    program = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
    _wrap(folder, "ovs-vswitchd-dpdk", program, "")


def _recipe() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def _make_qemu(folder: Path) -> None:
    debian.Archive("sid").unpack_with_dependencies(["qemu-system-x86"], folder)
    data = " ".join(f'-L "$here/usr/share/{name}"' for name in ("qemu", "seabios"))
    _wrap(folder, "qemu-system-x86_64", "usr/bin/qemu-system-x86_64", data)


def _wrap(folder: Path, name: str, program: str, words: str) -> None:
    """Makes bin/NAME, which starts a program of the folder with the folder's own loader and libraries.

    Debian's programs look for them where they would be installed.
    """
    here = '"$(dirname "$(readlink -f "$0")")/.."'
    loader = f'"$here/{_LIBRARIES}/ld-linux-x86-64.so.2" --library-path "$here/{_LIBRARIES}"'
    wrapper = folder / "bin" / name
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nhere={here}\nexec {loader} "$here/{program}" {words} "$@"\n')
    wrapper.chmod(0o755)
