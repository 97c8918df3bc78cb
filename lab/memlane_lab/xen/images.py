"""What is booted under Xen, all from Debian's packages, which are unpacked and never installed on this machine.

The hypervisor, and two file systems: dom0's, with Xen's tools, and the guests'. The kernel of dom0 and of the guests is
the counted host's (`counting/kernel.py`): here are its modules.
"""

import gzip
import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.images import cpio, debian, machine_kernel, root

_DOM0_MODULES = (
    "xen_evtchn", "xen_gntdev", "xen_gntalloc", "xen_privcmd", "xenfs", "bridge", "veth", "tun", "virtio_pci",
    "virtio_console", "xen_netback",
)  # fmt: skip
"""What dom0 may load."""
_GUEST_MODULES = ("xen_evtchn", "xen_gntdev", "xen_gntalloc", "xen_privcmd", "xenfs", "xen_netfront")
_GUEST = root.Recipe(
    "xen-guest",
    {
        "busybox-static": ["busybox"],
        "dash": ["dash"],
        "ethtool": ["ethtool"],
        "iperf3": ["iperf3"],
        "iproute2": ["ip"],
        "iputils-ping": ["ping"],
    },
)
"""A guest's file system: small, because an emulated machine unpacks slowly."""


_XENSTORE = ("chmod", "exists", "list", "ls", "read", "rm", "watch", "write")


def _programs(version: str) -> dict[str, list[str]]:
    """What dom0 has, by package: what a Debian host with Xen would take for what we do there."""
    return {
        "bash": ["bash"],
        "bridge-utils": ["brctl"],
        "busybox-static": ["busybox"],
        "coreutils": ["stat", "readlink"],
        "ethtool": ["ethtool"],
        "iperf3": ["iperf3"],
        "iproute2": ["bridge", "ip"],
        "iputils-ping": ["ping"],
        "util-linux": ["flock"],
        f"xen-utils-{version}": [
            "xl", "libxl-save-helper", "xenstored", "xenconsoled", "xenconsole", "xen-init-dom0", "xentop", "lsevtchn",
            "xen-mfndump",
        ],
        "xenstore-utils": [f"xenstore-{verb}" for verb in _XENSTORE],
    }  # fmt: skip


_FOLDERS = (
    "bin", "dev", "etc/xen", "lib", "lib64", "modules", "proc", "root", "run", "sys", "tmp", "usr", "var/lib",
    "var/log",
)  # fmt: skip
_LINKS = {
    "sbin": "bin", "usr/bin": "../bin", "usr/sbin": "../bin", "usr/lib": "../lib", "bin/sh": "bash", "var/run": "/run",
    "var/lock": "/run/lock",
}  # fmt: skip
_ETC = {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n", "hosts": "127.0.0.1 localhost\n"}


@dataclass(frozen=True)
class Images:
    """Files that never change from boot to boot."""

    hypervisor: Path
    """As QEMU boots it: plain ELF."""
    dom0: Path
    """Its initramfs, without modules."""
    dom0_modules: Path
    guest: Path
    guest_modules: Path
    """Initramfs to be appended to the others."""


def images() -> Images:
    """All of it, downloaded and built now if it never was."""
    sources = [Path(__file__), Path(root.__file__), Path(cpio.__file__), Path(machine_kernel.__file__)]
    recipe = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:12]
    path = cache.product(f"xen-{recipe}", _make)
    return Images(
        path / "xen",
        path / "dom0.cpio",
        path / "dom0-modules.cpio",
        root.image(_GUEST).initramfs,
        path / "guest-modules.cpio",
    )


def _make(folder: Path) -> None:
    archive = debian.Archive()
    version = _version(archive)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = Path(scratch)
        debian.unpack(archive.download(f"xen-hypervisor-{version}-amd64"), unpacked / "xen")
        with gzip.open(next((unpacked / "xen").glob("boot/xen-*.gz"))) as packed, (folder / "xen").open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        debian.unpack(archive.download(archive.dependency("linux-image-amd64")), unpacked / "kernel")
        for name, modules in (("dom0-modules", _DOM0_MODULES), ("guest-modules", _GUEST_MODULES)):
            machine_kernel.collect_modules(unpacked / "kernel", modules, unpacked / name / "modules")
            cpio.write(unpacked / name, folder / f"{name}.cpio")
        _make_dom0(archive, version, unpacked / "tools", unpacked / "dom0")
        cpio.write(unpacked / "dom0", folder / "dom0.cpio")


def _version(archive: debian.Archive) -> str:
    """The Xen that this Debian has."""
    found = [re.fullmatch(r"xen-hypervisor-([\d.]+)-amd64", name) for name in archive.names("xen-hypervisor-")]
    versions = sorted((each[1] for each in found if each), key=lambda one: [int(part) for part in one.split(".")])
    if not versions:
        raise LabError("this machine's Debian mirror has no package xen-hypervisor-*-amd64: add a mirror that has it")
    return versions[-1]


def _make_dom0(archive: debian.Archive, version: str, packages: Path, tree: Path) -> None:
    programs = _programs(version)
    packages.mkdir()
    archive.unpack_with_dependencies([*programs, "libgcc-s1"], packages)
    for name in _FOLDERS:
        (tree / name).mkdir(parents=True)
    for name, target in _LINKS.items():
        (tree / name).symlink_to(target)
    for name, text in _ETC.items():
        (tree / "etc" / name).write_text(text)
    _unwrap(packages, version)
    root.Harvest(packages, tree).take(programs)
    library = next(packages.glob("**/libgcc_s.so.1"))  # which threads load when they end
    root.install(library, tree / "lib" / library.name)
    (tree / f"lib/xen-{version}").mkdir()
    (tree / f"lib/xen-{version}/bin").symlink_to("/bin")
    shutil.copytree(packages / "etc/xen", tree / "etc/xen", dirs_exist_ok=True)
    root.link_busybox(tree)


def _unwrap(packages: Path, version: str) -> None:
    """Puts Xen's tools where Debian has scripts that choose among the versions of them."""
    for program in (packages / f"usr/lib/xen-{version}/bin").iterdir():
        (packages / "usr/sbin" / program.name).unlink(missing_ok=True)
        (packages / "usr/bin" / program.name).unlink(missing_ok=True)
        program.rename(packages / "usr/bin" / program.name)
