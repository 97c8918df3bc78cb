"""Rust programs of the lab's own that run in guests: linked statically, because a guest has no library of ours."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say

_TARGET = "x86_64-unknown-linux-gnu"


def sources(folder: Path) -> list[Path]:
    """The files that the program in the crate `folder` is made from."""
    return [folder / "Cargo.toml", folder / "Cargo.lock", *sorted((folder / "src").rglob("*.rs"))]


def build(folder: Path, programs: Sequence[str], name: str) -> list[Path]:
    """Builds the crate's programs, called `name` for people, and returns them."""
    say(f"building {name}")
    target = cache.folder() / folder.name
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target", _TARGET]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-C target-feature=+crt-static"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LabError(f"no Rust toolchain found (cargo): {name} cannot be built; install one") from error
    if done.returncode:
        raise LabError(f"building {name} in {folder} failed:\n{done.stderr}")
    return [target / _TARGET / "release" / program for program in programs]
