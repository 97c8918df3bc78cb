"""The counted host's kernel: Debian's, unpacked, with its symbols and the offsets that the plugin needs.

Debian's package holds a compressed kernel without symbols. An emulated processor would take minutes to unpack it; so it
is unpacked here, and boots as it is (PVH). Its symbols are read once from its own /proc/kallsyms.
"""

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.counting import btf, machine
from memlane_lab.images import cpio, debian, machine_kernel, root

_MODULES = ("tun", "veth", "bridge", "e1000")
_HERE = Path(__file__).parent
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class CountedKernel:
    """A kernel that can be counted in."""

    program: Path
    """ELF, not compressed."""
    modules: Path
    """An initramfs to be appended to another."""
    symbols: Path
    """Its /proc/kallsyms, without modules."""
    switch: int
    """Where __switch_to begins."""
    switch_size: int
    current: int
    """Of current_task among a processor's own variables."""
    offsets: dict[str, int]
    """Of members of task_struct."""


def kernel() -> CountedKernel:
    """The kernel, downloaded and asked now if it never was."""
    sources = [_HERE / "kernel.py", _HERE / "btf.py", _HERE / "survey", Path(machine_kernel.__file__)]
    recipe = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:12]
    path = cache.product(f"counted-kernel-{recipe}", _make)
    known = json.loads((path / "known.json").read_text())
    return CountedKernel(path / "vmlinux", path / "modules.cpio", path / "kallsyms", **known)


def _make(folder: Path) -> None:
    archive = debian.Archive()
    package = archive.download(archive.dependency("linux-image-amd64"))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = Path(scratch)
        debian.unpack(package, unpacked)
        image = _uncompressed(next(unpacked.glob("boot/vmlinuz-*")).read_bytes())
        (folder / "vmlinux").write_bytes(image)
        tree = unpacked / "initramfs"
        machine_kernel.collect_modules(unpacked, _MODULES, tree / "modules")
        cpio.write(tree, folder / "modules.cpio")
        (folder / "kallsyms").write_text(_ask_symbols(folder, unpacked))
    (folder / "known.json").write_text(json.dumps(_known((folder / "kallsyms").read_text(), image)))


def _uncompressed(image: bytes) -> bytes:
    found = machine_kernel.uncompressed(image)
    if found is None:
        packed = "zstd" if _ZSTD in image else "a way that is not known here"
        raise LabError(f"Debian's kernel is packed with {packed}, not with xz: it cannot be unpacked to be counted in")
    return found


def _ask_symbols(folder: Path, scratch: Path) -> str:
    say("asking the kernel for its symbols (once)")
    tree = scratch / "asking"
    tree.mkdir()
    root.install(_HERE / "survey", tree / "survey")
    cpio.write(tree, scratch / "asking.cpio")
    initramfs = machine.joined(scratch / "whole.cpio", [root.image().initramfs, scratch / "asking.cpio"])
    told = machine.boot(machine.linux(folder / "vmlinux", initramfs, "/survey"), scratch, timeout=300)
    return told.decode(errors="replace").replace("\r", "")


def _known(symbols: str, image: bytes) -> dict[str, object]:
    """The values of `CountedKernel` beside its files."""
    rows = sorted((int(line.split()[0], 16), line.split()[2]) for line in symbols.splitlines() if len(line.split()) > 2)
    places = {name: address for address, name in rows}
    lacking = [name for name in ("__switch_to",) if name not in places]
    current = places.get("current_task", places.get("pcpu_hot"))
    if lacking or current is None:
        raise LabError("the kernel exports no addresses of __switch_to and current_task, which counting needs")
    switch = places["__switch_to"]
    following = next(address for address, _ in rows if address > switch)
    members = btf.offsets(image, "task_struct")
    wanted = {"name": members["comm"], "leader": members["group_leader"], "parent": members["real_parent"]}
    return {"switch": switch, "switch_size": following - switch, "current": current, "offsets": wanted}
