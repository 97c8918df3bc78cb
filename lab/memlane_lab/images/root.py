"""The root trees of guests: `/init`, the control agent, programs from Debian and the libraries they need.

UML guests mount the tree itself (hostfs, read-only), namespaces change into it, QEMU guests unpack it as initramfs.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.images import agent, cpio, debian

PROGRAMS = {
    "busybox-static": ["busybox"],
    "dash": ["dash"],
    "ethtool": ["ethtool"],
    "iperf3": ["iperf3"],
    "iproute2": ["bridge", "ip", "ss", "tc"],
    "iputils-ping": ["ping"],
    "sockperf": ["sockperf"],
    "stress-ng": ["stress-ng"],
}
"""Debian package: programs taken from it. Where busybox has one of the same name, the package's wins."""

_PLACES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/lib/frr", "lib/x86_64-linux-gnu/security")
"""Where packages keep programs, and what programs load by name."""
_HERE = Path(__file__).parent
_FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "modules", "proc", "root", "run", "sys", "tmp", "usr")
_LINKS = {"sbin": "bin", "usr/bin": "../bin", "usr/sbin": "../bin", "usr/lib": "../lib", "bin/sh": "dash"}
_ETC = {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n", "hosts": "127.0.0.1 localhost\n"}


@dataclass(frozen=True)
class Recipe:
    """The contents of an image."""

    name: str
    """Of its folder in the cache."""
    programs: Mapping[str, Sequence[str]]
    """As `PROGRAMS` says it."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links beside the usual ones."""
    etc: Mapping[str, str] = field(default_factory=dict)
    """Files of /etc beside the usual ones, or instead of them."""
    libraries: Sequence[str] = ()
    """Libraries of the lab's own in /lib, by their sources beside this file: `name.c` makes /lib/name.so."""


USUAL = Recipe("root", PROGRAMS)
"""What every guest boots unless it is told otherwise."""


@dataclass(frozen=True)
class RootImage:
    """The file system of guests."""

    tree: Path
    """As a folder."""
    initramfs: Path
    """As a cpio archive."""


def image(recipe: Recipe = USUAL) -> RootImage:
    """The root image, built now if this recipe has not been built before."""
    path = cache.product(f"{recipe.name}-{_digest(recipe)}", lambda folder: _make(folder, recipe))
    return RootImage(path / "tree", path / "root.cpio")


def _digest(recipe: Recipe) -> str:
    """A name for all that decides what is in the image."""
    made = (_HERE / name for name in recipe.libraries)
    files = [_HERE / "root.py", _HERE / "cpio.py", _HERE / "init", *made, *agent.sources()]
    release = Path("/etc/debian_version").read_bytes().partition(b".")[0]
    stated = b"" if recipe is USUAL else repr(recipe).encode()
    return hashlib.sha256(release + stated + b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _make(folder: Path, recipe: Recipe) -> None:
    tree = folder / "tree"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        packages = Path(scratch)
        debian.Archive().unpack_with_dependencies(list(recipe.programs), packages)
        _lay_out(tree, recipe)
        Harvest(packages, tree).take(recipe.programs)
    link_busybox(tree)
    cpio.write(tree, folder / "root.cpio")


def _lay_out(tree: Path, recipe: Recipe) -> None:
    for name in _FOLDERS:
        (tree / name).mkdir(parents=True)
    for name, target in {**_LINKS, **recipe.links}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target)
    for name, text in {**_ETC, **recipe.etc}.items():
        (tree / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "etc" / name).write_text(text)
    install(_HERE / "init", tree / "init")
    for program in agent.build():
        install(program, tree / "bin" / program.name)
    for name in recipe.libraries:
        _compile(_HERE / name, (tree / "lib" / name).with_suffix(".so"))


def _compile(source: Path, library: Path) -> None:
    """Makes a library of one C file."""
    command: list[str | Path] = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{source.name} cannot be compiled:\n{done.stderr}")


def install(source: Path, target: Path) -> None:
    """Copies a program; nothing of it is shared with a file that was there before."""
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def folders(recipe: Recipe) -> set[str]:
    """Paths of an image's folders, and of links to folders: no file can be laid there."""
    return {f"/{name}" for name in (*_FOLDERS, *_LINKS, *recipe.links)} - {"/bin/sh"}


class Harvest:
    """Takes programs and the libraries they load from unpacked packages into the tree."""

    def __init__(self, packages: Path, tree: Path) -> None:
        self._packages = packages
        self._tree = tree
        places = (*packages.glob("**/lib/x86_64-linux-gnu"), *packages.glob("**/lib/x86_64-linux-gnu/frr"))
        self._folders = [path for path in places if path.is_dir()]
        self._loader = self._find("lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2")

    def take(self, programs: Mapping[str, Sequence[str]]) -> None:
        """Takes every program of `programs` (a package's name: programs taken from it), with its libraries."""
        install(self._loader, self._tree / "lib64" / "ld-linux-x86-64.so.2")
        for program in (name for names in programs.values() for name in names):
            source = self._find(*(f"{folder}/{program}" for folder in _PLACES))
            install(source, self._tree / "bin" / program)
            self.take_libraries(source)

    def take_libraries(self, program: Path) -> None:
        """Takes the files that a program, or a module of one, loads."""
        for library in self._libraries(program):
            install(library, self._tree / "lib" / library.name)

    def _find(self, *names: str) -> Path:
        found = next((path for name in names if (path := self._packages / name).exists()), None)
        if found is None:
            raise LabError(
                f"Debian's packages no longer hold {' or '.join(names)}: the root image's recipe is out of date"
            )
        return found

    def _libraries(self, program: Path) -> list[Path]:
        """The files that the loader would load for `program`; nothing for a static one."""
        search = ":".join(map(str, self._folders))
        command: list[str | Path] = [self._loader, "--library-path", search, "--list", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        listed = done.stdout
        if "not found" in listed or "cannot open shared object" in done.stderr:
            raise LabError(
                f"a library of {program.name} is in none of Debian's packages for it:\n{listed}{done.stderr}"
            )
        paths = [line.split("=>")[1].split("(")[0].strip() for line in listed.splitlines() if "=>" in line]
        return [Path(path) for path in paths if path.startswith(str(self._packages)) and "ld-linux" not in path]


def link_busybox(tree: Path) -> None:
    """Gives busybox its many names, where nothing better has them."""
    binaries = tree / "bin"
    applets = subprocess.run([binaries / "busybox", "--list"], capture_output=True, text=True, check=True).stdout
    for applet in applets.split():
        if not (binaries / applet).is_symlink() and not (binaries / applet).exists():
            (binaries / applet).symlink_to("busybox")
