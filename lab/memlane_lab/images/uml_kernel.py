"""The kernel of User Mode Linux, built once from Debian's kernel source.

Debian's ready `user-mode-linux` will not do: before 6.4 its vhost-user front end sends a malformed memory table.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.common.progress import bar, say
from memlane_lab.images import debian

_PREFERRED = (7, 2)
"""The series known to work best: it plugs devices at run time and has `seccomp=on`. Newer ones are untried."""
_OLDEST = (6, 4)
_CONFIG = Path(__file__).parent / "uml.config"
_OBJECTS = 1300
"""About how many objects a build compiles: for the time left."""
_NEEDED = ("HOSTFS", "SSL", "MCONSOLE", "VIRTIO_UML", "VIRTIO_NET", "UML_NET_VECTOR", "INET", "IPV6")


@dataclass(frozen=True)
class UmlKernel:
    """A kernel that runs as an ordinary program."""

    program: Path
    version: tuple[int, int]

    @property
    def has_seccomp(self) -> bool:
        """Whether `seccomp=on` runs its processes faster than ptrace does."""
        return self.version >= (7, 0)

    @property
    def can_plug(self) -> bool:
        """Whether its management console can add a virtio device while it runs."""
        return self.version >= (7, 2)


def kernel() -> UmlKernel:
    """The kernel: one built before with this configuration, else built now (some minutes)."""
    return built() or _described(_build())


def built() -> UmlKernel | None:
    """A kernel built before with this configuration, the preferred series first."""
    found = sorted(cache.folder().glob(f"uml-*-{_recipe()}"), key=lambda path: _version(path.name) != _PREFERRED)
    return _described(found[0]) if found else None


def _recipe() -> str:
    return hashlib.sha256(_CONFIG.read_bytes()).hexdigest()[:12]


def _described(product: Path) -> UmlKernel:
    return UmlKernel(product / "linux", _version(product.name))


def _version(text: str) -> tuple[int, int]:
    found = re.search(r"-(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _build() -> Path:
    with cache.locked("uml"):  # before looking for the source: a second builder would download it again
        archive = debian.Archive()
        package = choose_source(archive.names("linux-source-"))
        name = f"uml-{archive.version(package).partition('-')[0]}-{_recipe()}"
        return cache.product(name, lambda folder: _make(folder, archive, package))


def choose_source(names: Sequence[str]) -> str:
    """The package to build from, among those that the archive has."""
    known = {_version(name): name for name in names if _version(name) >= _OLDEST}
    if not known:
        wanted = ".".join(map(str, _OLDEST))
        raise NotAvailable(f"this machine's Debian mirror has no linux-source >= {wanted}: UML guests need one")
    return known.get(_PREFERRED) or known[max(known)]


def _make(folder: Path, archive: debian.Archive, package: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = _unpack_source(archive.download(package), Path(scratch))
        _configure(tree)
        _compile(tree, folder / "build.log")
        shutil.copy(tree / "linux", folder / "linux")
        shutil.copy(tree / ".config", folder / "config")
        with bar("removing the kernel source", 1):
            shutil.rmtree(tree)
    subprocess.run(["strip", folder / "linux"], check=True)


def _unpack_source(package: Path, scratch: Path) -> Path:
    debian.unpack(package, scratch)
    package.unlink()
    tarball = next(scratch.glob("usr/src/*.tar.xz"))
    tar = subprocess.Popen(["tar", "--extract", "--xz", "--directory", scratch], stdin=subprocess.PIPE)
    with _ended_with_us(tar), bar("unpacking the kernel source", tarball.stat().st_size) as update:
        _feed(tar, tarball, update)
    if tar.returncode:
        raise LabError(f"unpacking {tarball.name} failed; is the disk full?")
    tarball.unlink()
    return next(path for path in scratch.iterdir() if path.name.startswith("linux-source"))


def _feed(tar: "subprocess.Popen[bytes]", tarball: Path, update: Callable[[float], None]) -> None:
    assert tar.stdin is not None
    with suppress(BrokenPipeError), tar.stdin, tarball.open("rb") as source:
        for piece in iter(lambda: source.read(1 << 18), b""):
            tar.stdin.write(piece)
            update(source.tell())


def _configure(tree: Path) -> None:
    say("configuring the kernel")
    _make_in(tree, "tinyconfig")
    with (tree / ".config").open("a") as config:
        config.write(_CONFIG.read_text())
    _make_in(tree, "olddefconfig")
    accepted = (tree / ".config").read_text()
    refused = [option for option in _NEEDED if f"CONFIG_{option}=y" not in accepted]
    if refused:
        raise LabError(f"{tree.name} does not take the options {', '.join(refused)}: it cannot serve as a UML guest")


def _make_in(tree: Path, target: str) -> None:
    done = subprocess.run(["make", "ARCH=um", target], cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"make {target} for the UML kernel failed: {done.stderr.strip()[-800:]}")


def _compile(tree: Path, log: Path) -> None:
    jobs = len(os.sched_getaffinity(0))
    command = ["make", "ARCH=um", f"-j{jobs}", "linux"]
    build = subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    title = "building the kernel of User Mode Linux (once)"
    with _ended_with_us(build), bar(title, _OBJECTS) as update, log.open("w") as out:
        objects = 0
        for line in build.stdout or ():
            out.write(line)
            objects += line.startswith(("  CC ", "  AS ", "  AR "))
            update(objects)
    if build.returncode:
        raise LabError(f"building the UML kernel failed:\n{_tail(log)}")


@contextmanager
def _ended_with_us(child: "subprocess.Popen[Any]") -> Iterator[None]:
    """Waits for the child at the end; ends it first if we are being stopped."""
    try:
        yield
    except BaseException:
        child.terminate()
        raise
    finally:
        child.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
