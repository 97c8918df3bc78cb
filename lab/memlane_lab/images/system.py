"""Disks with a whole system of a guest's own: a Debian made by debootstrap, or a disk that the user has.

QEMU boots Debian's cloud kernel with a small initramfs, which mounts the disk, starts the lab's agent beside the system
and hands over to the system's own init. Nothing of the lab lies on the disk.
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.images import agent, cpio, debian, machine_kernel, root
from memlane_lab.images.machine_kernel import Flavour
from memlane_lab.images.root import RootImage

NAMED = re.compile(r"debian(?::([a-z]+))?")
"""Name of a Debian that the lab makes: of this machine's release, or of the suite behind the colon."""

_HERE = Path(__file__).parent
_MODULES = ("virtio_pci", "virtio_console", "virtio_blk", "crc32c_generic", "ext4", "virtio_net")
"""Those of `machine_kernel` that a guest on a disk needs, with the disk's; the last one must be there."""
_FOLDERS = ("bin", "dev", "proc", "root", "sys", "tmp")
_PACKAGES = ("systemd-sysv", "iproute2", "iputils-ping", "iperf3", "procps")
"""Debian's smallest system with an init, and the programs that the lab's commands use."""
_SIZE = 2 << 30
"""Bytes of the file system; the file has holes where nothing lies."""
_QCOW2 = b"QFI\xfb"


@dataclass(frozen=True)
class DiskImage(RootImage):
    """A system on a disk. The root tree is that of the lab, which such a guest does not see."""

    kernel: Path
    boot: Path
    """The initramfs that hands over to the disk."""
    disk: Path

    @property
    def format(self) -> str:
        """QEMU's word for the format of the disk."""
        with self.disk.open("rb") as file:
            return "qcow2" if file.read(len(_QCOW2)) == _QCOW2 else "raw"


def image(stated: str, folder: Path) -> DiskImage:
    """The system of that name, made now if it never was, or the user's disk of that path, relative to `folder`."""
    named = NAMED.fullmatch(stated)
    disk = _debian(named[1]) if named else folder / stated
    boot, usual = _boot(), root.image()
    return DiskImage(usual.tree, usual.initramfs, boot / "vmlinuz", boot / "boot.cpio", disk)


def _boot() -> Path:
    """The folder of kernel and initramfs."""
    files = (_HERE / "system.py", _HERE / "init-disk", *agent.sources())
    recipe = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return cache.product(f"system-boot-{recipe}", _make_boot)


def _make_boot(folder: Path) -> None:
    archive = debian.Archive()
    package = archive.download(archive.dependency(f"linux-image-{Flavour.CLOUD.value}"))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked, tree = Path(scratch) / "package", Path(scratch) / "tree"
        debian.unpack(package, unpacked)
        machine_kernel.put_image(unpacked, folder / "vmlinuz")
        machine_kernel.collect_modules(unpacked, _MODULES, tree / "modules")
        for name in _FOLDERS:
            (tree / name).mkdir()
        root.install(_HERE / "init-disk", tree / "init")
        root.install(root.image().tree / "bin" / "busybox", tree / "bin" / "busybox")
        root.link_busybox(tree)
        (program,) = (each for each in agent.build() if each.name == "memlane-agent")
        root.install(program, tree / program.name)
        cpio.write(tree, folder / "boot.cpio")


def _debian(suite: str | None) -> Path:
    source = next(each for each in debian.sources(suite) if "-" not in each.suite)
    recipe = hashlib.sha256(repr((_PACKAGES, _SIZE)).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _make_debian(source, Path(scratch) / "tree", folder / "disk")

    return cache.product(f"system-debian-{source.suite}-{recipe}", make) / "disk"


def _make_debian(source: debian.Source, tree: Path, disk: Path) -> None:
    if not shutil.which("debootstrap"):
        raise LabError("a Debian on a disk is made by debootstrap, which is not installed: apt install debootstrap")
    say(f"making a disk with Debian {source.suite} (once, some minutes)")
    _run("debootstrap", "--variant=minbase", f"--keyring={debian.KEYRING}", f"--include={','.join(_PACKAGES)}",
         source.suite, tree, source.uri)  # fmt: skip
    # debootstrap copies these from this machine.
    for name in ("hostname", "resolv.conf"):
        (tree / "etc" / name).unlink(missing_ok=True)
    shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
    with disk.open("wb") as file:
        file.truncate(_SIZE)
    _run("mkfs.ext4", "-q", "-F", "-d", tree, disk)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{command[0]} failed:\n{(done.stderr.strip() or done.stdout.strip())[-1000:]}")
