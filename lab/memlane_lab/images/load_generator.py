"""k6, the load generator, built from the Go module proxy, whose checksum database vouches for what comes."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.images import debian

_VERSION = "1.8.1"
_OLDEST_GO = (1, 25)
"""What this version of k6 asks for in its go.mod."""


def program() -> Path:
    """The program, linked statically; built now (some minutes) if it has not been built before."""
    return cache.product(f"k6-{_VERSION}", _make) / "k6"


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        go = _go(Path(scratch))
        say(f"building k6 {_VERSION} (once, 2 to 5 minutes)")
        command: list[str | Path] = [go, "install", "-trimpath", "-ldflags", "-s -w", f"go.k6.io/k6@v{_VERSION}"]
        environment = os.environ | {"CGO_ENABLED": "0", "GOBIN": str(folder), "GOFLAGS": "-modcacherw"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=scratch)
    if done.returncode:
        raise LabError(f"building k6 failed:\n{done.stderr[-2000:]}")


def _go(scratch: Path) -> Path:
    """The machine's own Go if it is new enough, else Debian's, unpacked and not installed."""
    found = shutil.which("go")
    if found and _version(found) >= _OLDEST_GO:
        return Path(found)
    wanted = ".".join(map(str, _OLDEST_GO))
    archive = debian.Archive()
    for part in ("go", "src"):
        debian.unpack(archive.download(f"golang-{wanted}-{part}"), scratch)
    return scratch / "usr" / "lib" / f"go-{wanted}" / "bin" / "go"


def _version(go: str) -> tuple[int, int]:
    told = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", told)
    return (int(version[1]), int(version[2])) if version else (0, 0)
