"""Products that are built once and kept: the cache folder, a lock against two builders, publication in one step.

A product is a folder under `folder()`. Its maker fills a scratch folder beside it, which is renamed when complete:
a product that is there is complete.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memlane_lab.common.progress import say

_SCRATCH = ".scratch-"


def folder() -> Path:
    """The user's cache folder for memlane: `$XDG_CACHE_HOME/memlane`, else `~/.cache/memlane`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "memlane"
    path.mkdir(parents=True, exist_ok=True)
    return path


def product(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in the cache, made now by `make(scratch folder)` if it is missing."""
    path = folder() / name
    if path.is_dir():
        return path
    with locked(name):
        if not path.is_dir():
            _publish(path, make)
    return path


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock `name`; says so when another process holds it, and waits for its work to end."""
    with (folder() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _publish(path: Path, make: Callable[[Path], None]) -> None:
    prefix = f"{_SCRATCH}{path.name}-"
    for leftover in path.parent.glob(f"{prefix}*"):  # of a maker that was killed: its lock is ours now
        shutil.rmtree(leftover)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    try:
        make(scratch)
        scratch.chmod(0o755)
        scratch.rename(path)
    finally:
        if scratch.is_dir():
            shutil.rmtree(scratch)
