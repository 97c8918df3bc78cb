"""The lab's own programs for guests, built statically from `lab/agent`, so that they run without any library."""

import os
import subprocess
from pathlib import Path

from memlane_lab import cache
from memlane_lab.errors import LabError
from memlane_lab.progress import say

SOURCE = Path(__file__).parents[2] / "agent"
_TARGET = "x86_64-unknown-linux-gnu"


def sources() -> list[Path]:
    """The files that the programs are made from."""
    return [SOURCE / "Cargo.toml", SOURCE / "Cargo.lock", *sorted((SOURCE / "src").rglob("*.rs"))]


def build() -> list[Path]:
    """Builds the control agent and what else the lab brings (a few seconds the first time); returns the programs."""
    say("building the guests' own programs")
    target = cache.folder() / "agent"
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target", _TARGET]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-C target-feature=+crt-static"}
    try:
        done = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LabError("no Rust toolchain found (cargo): the guests' agent cannot be built; install one") from error
    if done.returncode:
        raise LabError(f"building the guests' agent in {SOURCE} failed:\n{done.stderr}")
    return [target / _TARGET / "release" / name for name in ("memlane-agent", "exchange")]
