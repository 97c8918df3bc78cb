"""The control agent, built statically from `lab/agent`, so that it runs in a guest without any library."""

import os
import subprocess
from pathlib import Path

from memlane_lab import cache
from memlane_lab.errors import LabError
from memlane_lab.progress import say

SOURCE = Path(__file__).parents[2] / "agent"
_TARGET = "x86_64-unknown-linux-gnu"


def sources() -> list[Path]:
    """The files that the agent is made from."""
    return [SOURCE / "Cargo.toml", SOURCE / "Cargo.lock", *sorted((SOURCE / "src").glob("*.rs"))]


def build() -> Path:
    """Builds the agent (a few seconds the first time) and returns the program."""
    say("building the guests' control agent")
    target = cache.folder() / "agent"
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target", _TARGET]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-C target-feature=+crt-static"}
    try:
        done = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LabError("no Rust toolchain found (cargo): the guests' agent cannot be built; install one") from error
    if done.returncode:
        raise LabError(f"building the guests' agent in {SOURCE} failed:\n{done.stderr}")
    return target / _TARGET / "release" / "memlane-agent"
