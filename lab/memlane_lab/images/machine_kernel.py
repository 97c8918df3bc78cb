"""Debian's ready kernels for QEMU guests: the cloud kernel, and the general one for emulated NICs."""

import hashlib
import lzma
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.images import cpio, debian

_XZ = b"\xfd7zXZ\0"
_MODULES = ("virtio_pci", "virtio_console", "e1000", "pcnet32", "sch_netem", "8021q", "virtio_net")
"""Loaded by `/init`, with what they depend on; those that a flavour builds in or lacks are left out."""


class Flavour(Enum):
    """Which of Debian's kernels; the value is the end of its package's name."""

    CLOUD = "cloud-amd64"
    """Virtio only; starts fastest."""
    GENERAL = "amd64"
    """Every driver, those of emulated NICs among them."""


@dataclass(frozen=True)
class MachineKernel:
    """A kernel that QEMU can boot."""

    kernel: Path
    modules: Path
    """An initramfs to be appended to the root image's: `/modules`, and the order to load them in."""


def kernel(flavour: Flavour) -> MachineKernel:
    """The kernel of that flavour, downloaded now if it never was."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    path = cache.product(f"kernel-{flavour.value}-{recipe}", lambda folder: _make(folder, flavour))
    return MachineKernel(path / "vmlinuz", path / "modules.cpio")


def _make(folder: Path, flavour: Flavour) -> None:
    archive = debian.Archive()
    package = archive.download(archive.dependency(f"linux-image-{flavour.value}"))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = Path(scratch)
        debian.unpack(package, unpacked)
        put_image(unpacked, folder / "vmlinuz")
        tree = unpacked / "initramfs"
        collect_modules(unpacked, _MODULES, tree / "modules")
        cpio.write(tree, folder / "modules.cpio")


def put_image(package: Path, target: Path) -> None:
    """Puts the kernel of an unpacked package into the file `target`."""
    image = next(package.glob("boot/vmlinuz-*")).read_bytes()
    target.write_bytes(uncompressed(image) or image)


def uncompressed(image: bytes) -> bytes | None:
    """The ELF file within a bzImage, if xz packed it.

    QEMU boots either (PVH); to unpack it takes an emulated processor longer than all the rest of a boot.
    """
    at = image.find(_XZ)
    return lzma.LZMADecompressor().decompress(image[at:]) if at >= 0 else None


def collect_modules(package: Path, names: Sequence[str], target: Path) -> None:
    """Puts the modules of an unpacked kernel package, and those they depend on, into the folder `target`."""
    found = {_module_name(path): path for path in package.glob("**/kernel/**/*.ko*")}
    contents: dict[str, bytes] = {}
    for name in names:
        _add_with_dependencies(name, found, contents)
    if names[-1] not in contents:
        raise LabError(f"Debian's kernel package has no {names[-1]} among its {len(found)} modules")
    target.mkdir(parents=True)
    for name, content in contents.items():
        (target / f"{name}.ko").write_bytes(content)
    (target / "order").write_text("".join(f"{name}\n" for name in contents))


def _module_name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _add_with_dependencies(name: str, found: dict[str, Path], contents: dict[str, bytes]) -> None:
    """Adds the module after those it depends on, as it says in its own "depends=" (what modinfo shows)."""
    if name in contents or name not in found:
        return
    content = _read_module(found[name])
    depends = re.search(rb"\0depends=([^\0]*)", content)
    for dependency in depends[1].decode().split(",") if depends else []:
        _add_with_dependencies(dependency.replace("-", "_"), found, contents)
    contents[name] = content


def _read_module(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content
