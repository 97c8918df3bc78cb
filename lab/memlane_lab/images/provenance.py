"""The provenance of guests: versions of the programs that make their traffic, digests of all that they boot.

Images are named by a digest of the code that makes them, so the look into the cache stands here and not beside it:
otherwise every change of it would have all images built again.
"""

import hashlib
import subprocess
from pathlib import Path

from memlane_lab.common import cache, unpacked
from memlane_lab.images import machine_kernel, root, uml_kernel
from memlane_lab.images.machine_kernel import Flavour

_TOLD = ("iperf3", "sockperf", "stress-ng")
"""Programs whose versions are told."""


def told() -> dict[str, str]:
    """Of a kit's images, or of those that are in the cache, without building any."""
    if kit := unpacked.here():
        return kit.stated.images
    found: dict[str, str] = {}
    image = cache.folder() / f"{root.USUAL.name}-{root._digest(root.USUAL)}"
    if image.is_dir():
        found |= {f"guest's {name}": _version(image / "tree", name) for name in _TOLD}
        found["guest image"] = _digest(image / "root.cpio")
    recipe = hashlib.sha256(Path(machine_kernel.__file__).read_bytes()).hexdigest()[:12]
    for flavour in Flavour:
        kernel = cache.folder() / f"kernel-{flavour.value}-{recipe}" / "vmlinuz"
        if kernel.exists():
            found[f"QEMU guest's kernel, {flavour.value}"] = _digest(kernel)
    if own := uml_kernel.built():
        found["UML guest's kernel"] = _digest(own.program)
    return found


def _version(tree: Path, program: str) -> str:
    """The first line that the guest's program tells of its version, run here with the guest's libraries."""
    loader = tree / "lib64" / "ld-linux-x86-64.so.2"
    command: list[str | Path] = [loader, "--library-path", tree / "lib", tree / "bin" / program, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if any(map(str.isdigit, line))]
    return lines[0].partition(" (")[0] if lines else "unknown"


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return f"sha256 {hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"
