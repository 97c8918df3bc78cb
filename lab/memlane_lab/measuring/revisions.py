"""Switches of other commits: built in a git worktree as releases are, and kept, so that later days measure them too.

    target/revisions/COMMIT/memlane, memlane-rig    the programs of a commit, by its 40 digits

    python -m memlane_lab.measuring.revisions 5d0090cb78ac    builds them, unless they are kept; prints their folder

A run with such a program records the switch's commit as its own, and that of the lab beside it.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say, tell

REPOSITORY = Path(__file__).parents[3]
PROGRAMS = ("memlane", "memlane-rig")
_COMMIT = re.compile(r"[0-9a-f]{40}")

Build = Callable[[Path, Path], Path]
"""Builds the programs of a tree in a target folder; returns where they are."""


def of(program: Path | None) -> str:
    """The commit that a program was built from, in 12 digits as runs record it; empty where it is none of these."""
    if program is None or program.parent.parent.name != "revisions" or not _COMMIT.fullmatch(program.parent.name):
        return ""
    return program.parent.name[:12]


def cargo(tree: Path, target: Path) -> Path:
    """The release build of a tree."""
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", str(target)]
    if subprocess.run(command, cwd=tree, check=False).returncode:
        raise LabError(f"`{' '.join(command)}` failed in {tree}")
    return target / "release"


def built(name: str, top: Path = REPOSITORY, build: Build = cargo) -> Path:
    """The folder with the programs of the commit that git calls `name`; builds them only if they are not kept."""
    sha = _git(top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not sha:
        raise LabError(f"this clone has no commit {name!r}: fetch the whole history (git fetch --unshallow)")
    folder = top / "target" / "revisions"
    kept = folder / sha
    if not kept.exists():
        say(f"building commit {sha[:12]} (a few minutes)")
        folder.mkdir(parents=True, exist_ok=True)
        with worktree(top, sha, folder / "tree") as tree:
            _keep(build(tree, folder / "build"), kept)
    return kept


def _keep(made: Path, kept: Path) -> None:
    """Copies programs in one step, so that an interruption leaves none of them."""
    if lacking := [name for name in PROGRAMS if not (made / name).exists()]:
        raise LabError(f"the build of {kept.name[:12]} has no program {', '.join(lacking)}")
    scratch = kept.with_name(f".{kept.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name in PROGRAMS:
        shutil.copy2(made / name, scratch / name)
    scratch.replace(kept)


@contextmanager
def worktree(top: Path, sha: str, tree: Path) -> Iterator[Path]:
    """A worktree of the repository at `top` in the folder `tree`, in place of the leftovers of a killed process."""
    _git(top, "worktree", "remove", "--force", str(tree))
    shutil.rmtree(tree, ignore_errors=True)
    _git(top, "worktree", "prune")
    _git(top, "worktree", "add", "--detach", str(tree), sha)
    if not tree.is_dir():
        raise LabError(f"git cannot create a worktree of {sha[:12]} in {tree}")
    try:
        yield tree
    finally:
        _git(top, "worktree", "remove", "--force", str(tree))


def _git(top: Path, *arguments: str) -> str:
    command = ["git", "-C", str(top), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds a commit's programs and prints their folder; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m memlane_lab.measuring.revisions",
        description="Build the switch of a commit, and keep it in target/revisions.",
        epilog="For example, the release of the front page: make headlines REV=5d0090cb78ac",
    )
    parser.add_argument("commit", help="the commit, as git names it")
    try:
        tell(str(built(parser.parse_args(arguments).commit)))
    except LabError as error:
        say(f"revisions: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
