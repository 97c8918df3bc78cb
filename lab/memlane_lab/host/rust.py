"""The repository's own Rust programs, found where they were built."""

import os
import shutil
from pathlib import Path

_REPOSITORY = Path(__file__).parents[3]


def program(name: str, *, named_by: str) -> Path | None:
    """The program of the environment variable `named_by`, else the one built in this repository, else on `$PATH`."""
    if named := os.environ.get(named_by):
        return Path(named)
    if (built := built_in() / name).exists():
        return built
    found = shutil.which(name)
    return Path(found) if found else None


def built_in() -> Path:
    """Where `cargo build --release` puts programs."""
    target = os.environ.get("CARGO_TARGET_DIR")
    return (Path(target) if target else _REPOSITORY / "target") / "release"
