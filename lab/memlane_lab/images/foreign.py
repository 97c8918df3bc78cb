"""Programs of other Debian releases than the machine's: unpacked with all their libraries, never installed."""

import hashlib
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.images import debian

_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def newest_qemu() -> Path:
    """The `qemu-system-x86_64` of Debian's newest suite, in a folder that can stand first on the PATH."""
    return cache.product(f"qemu-sid-{_recipe()}", _make_qemu) / "bin" / "qemu-system-x86_64"


def _recipe() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def _make_qemu(folder: Path) -> None:
    debian.Archive("sid").unpack_with_dependencies(["qemu-system-x86"], folder)
    # Debian's programs look for their loader and data where they would be installed.
    here = '"$(dirname "$(readlink -f "$0")")/.."'
    loader = f"$here/{_LIBRARIES}/ld-linux-x86-64.so.2"
    data = " ".join(f'-L "$here/usr/share/{name}"' for name in ("qemu", "seabios"))
    wrapper = folder / "bin" / "qemu-system-x86_64"
    wrapper.parent.mkdir(exist_ok=True)
    program = f'"{loader}" --library-path "$here/{_LIBRARIES}" "$here/usr/bin/qemu-system-x86_64"'
    wrapper.write_text(f'#!/bin/sh\nhere={here}\nexec {program} {data} "$@"\n')
    wrapper.chmod(0o755)
