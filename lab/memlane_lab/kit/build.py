"""Makes a kit: a shell script with an archive behind it, in one file.

The archive has, beside the lab's code and one experiment, all that the lab needs to measure on a machine without it:
this Python with its libraries and loader, the packages that measuring imports, a static switch, a kernel and the root
archive of the guests. QEMU, iproute2 and util-linux are the other machine's.
"""

import gzip
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from memlane_lab.common import unpacked
from memlane_lab.common.errors import LabError
from memlane_lab.common.unpacked import Stated
from memlane_lab.experiment import experiment
from memlane_lab.images import machine_kernel, provenance, root, supplied
from memlane_lab.kit import runner
from memlane_lab.kit.archive import add
from memlane_lab.measuring import machine, revisions

SWITCH = revisions.REPOSITORY / "target/package/build/x86_64-unknown-linux-musl/release/memlane"
"""The program of `make static`."""
PACKAGES = (
    "annotated-types", "hdrhistogram", "numpy", "pydantic", "pydantic-core", "rich", "tomli-w", "typing-extensions",
    "typing-inspection",
)  # fmt: skip
"""Distributions that measuring imports; plots, tables of the report and predictions are made elsewhere."""
_LAB = "memlane-lab"
LOADER = "ld-linux-x86-64.so.2"
_LEFT_OUT = {
    "__pycache__", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests",
    "tkinter", "turtledemo", "venv",
}  # fmt: skip
"""Folders of Python's own library, and of packages, that nothing of a kit imports."""
_MODULES_LEFT_OUT = re.compile(
    r"_(ssl|hashlib|tkinter|curses.*|sqlite3|dbm|gdbm|test.*|ctypes_test)\.|readline\.|nis\.|xx"
)
"""Compiled modules of Python's own library that want libraries which no kit needs."""
_FROM_TREE = ("bin/busybox",)
"""Files of the root tree that a kit has beside the archive: the probe of KVM boots it."""


def build(out: Path, switch: Path = SWITCH) -> Path:
    """Makes the kit in the file `out`, which is returned; the images of guests are made first if they are missing."""
    sha = _sha()
    _check(switch, sha)
    kernel, image = machine_kernel.kernel(supplied.FLAVOUR), root.image()
    commit = machine.own_commit()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        _python(tree)
        _lab(tree)
        revision = tree / "revisions" / sha
        _copy(switch, revision / "memlane", 0o755)
        folder = tree / unpacked.IMAGES
        _copy(kernel.kernel, folder / supplied.KERNEL)
        _copy(kernel.modules, folder / supplied.MODULES)
        _copy(image.initramfs, folder / supplied.ROOT)
        for name in _FROM_TREE:
            _copy(image.tree / name, folder / supplied.TREE / name, 0o755)
        stated = Stated(commit=commit, images=provenance.told())
        (tree / unpacked.STATED).write_text(stated.model_dump_json(indent=1) + "\n")
        write(tree, out, revision.name)
    return out


def _check(switch: Path, sha: str) -> None:
    """Raises unless the switch is static, and of the commit that the kit will name: contrib/package/build tells it."""
    if not switch.exists():
        raise LabError(f"there is no {switch}: make static builds it")
    with switch.open("rb") as program:
        if _wants_loader(program):
            raise LabError(f"{switch} wants libraries of the machine that it runs on: give the program of make static")
    if sha[:12].encode() not in switch.read_bytes():
        raise LabError(f"{switch} was not built from commit {sha[:12]}: make static builds it again")


_LOAD, _INTERPRETER = struct.Struct("<I"), 3
"""A program header's type, and PT_INTERP (elf(5))."""


def _wants_loader(program: BinaryIO) -> bool:
    """Whether an ELF file of 64 bits names a loader; raises if it is no such file."""
    head = program.read(64)
    if head[:5] != b"\x7fELF\x02" or len(head) < 64:
        raise LabError(f"{program.name} is no program of 64 bits")
    (at,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    program.seek(at)
    rows = (program.read(size) for _ in range(count))
    return any(len(row) == size and _LOAD.unpack_from(row)[0] == _INTERPRETER for row in rows)


def _sha() -> str:
    """The commit's 40 digits: the switch's folder is named by it, as `revisions.of` reads it."""
    command = ["git", "-C", str(revisions.REPOSITORY), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError("a kit names the commit that it is of: make it in a clone of the repository")
    return done.stdout.strip()


def _python(tree: Path) -> None:
    """The interpreter that runs this, its own library, the needed packages, and all shared libraries of these."""
    program = Path(sys.executable).resolve()
    _copy(program, tree / "bin" / "python3", 0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own, target = Path(sysconfig.get_path("stdlib")), tree / "lib" / version
    for source in _files(own):
        if not _MODULES_LEFT_OUT.match(source.name):
            _copy(source, target / source.relative_to(own))
    site = target / "site-packages"
    for name in PACKAGES:
        _package(name, site)
    compiled = [program, *target.rglob("*.so"), *target.rglob("*.so.*")]
    for library in {each for file in compiled for each in _libraries(file)}:
        _copy(library, tree / "lib" / library.name, 0o755)
    if not (tree / "lib" / LOADER).exists():
        raise LabError(f"{program} has no loader {LOADER}: make kits on x86-64 with glibc")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith("config-"):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _package(name: str, site: Path) -> None:
    """Copies an installed distribution, without its programs and tests."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise LabError(f"the Python package {name} is not installed: run make deps") from error
    for file in found.files or ():
        if ".." not in file.parts and not _LEFT_OUT & set(file.parts):
            _copy(Path(str(found.locate_file(file))), site / file)


def _libraries(file: Path) -> Iterator[Path]:
    """Shared libraries that the loader would load for `file`, and the loader itself."""
    done = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if "not found" in line:
            raise LabError(f"{file} wants a library that is not there: {line.strip()}")
        place = line.partition("=>")[2] or line
        if (path := place.split("(")[0].strip()).startswith("/"):
            yield Path(path)


def _lab(tree: Path) -> None:
    """The lab's package and its version, and the kit's experiment, where the lab looks for it."""
    package = Path(__file__).parents[1]
    for source in _files(package):
        _copy(source, tree / "lab" / package.name / source.relative_to(package))
    _copy(experiment.FOLDER / f"{runner.EXPERIMENT}.toml", tree / "lab/experiments" / f"{runner.EXPERIMENT}.toml")
    site = next((tree / "lib").glob("python3.*/site-packages"))
    (site / "kit.pth").write_text("../../../lab\n")
    told = metadata.version(_LAB)
    facts = site / f"memlane_lab-{told}.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text(f"Metadata-Version: 2.1\nName: {_LAB}\nVersion: {told}\n")


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write(tree: Path, out: Path, revision: str) -> None:
    """The script, and the archive behind it; the same files give the same bytes."""
    script = (Path(__file__).parent / "start.sh").read_text()
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    stated = {"LINES": script.count("\n") + 1, "MEGABYTES": (size >> 20) + 1, "REVISION": revision}
    for name, value in stated.items():
        script = script.replace(f"@{name}@", str(value))
    scratch = out.with_name(f".{out.name}.new")
    with scratch.open("wb") as file:
        file.write(script.encode())
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
        ):
            for path in sorted(tree.rglob("*")):
                if path.is_file():
                    add(archive, str(path.relative_to(tree)), path.read_bytes(), path.stat().st_mode & 0o777)
    scratch.chmod(0o755)
    scratch.replace(out)
