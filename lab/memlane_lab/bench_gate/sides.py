"""The two sides: programs of this tree, and of another commit."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.measuring import revisions

REPOSITORY = Path(__file__).parents[3]
BENCHES = ("worker", "per_frame", "ring")
PROGRAMS = ("memlane", "memlane-rig")


@dataclass(frozen=True)
class Side:
    """Programs by their names: the benches, the switch and the rig."""

    name: str
    programs: dict[str, Path] = field(hash=False)

    def with_rig_of(self, other: "Side") -> "Side":
        """The same switch and benches, with the rig of `other`."""
        return Side(self.name, self.programs | {"memlane-rig": other.programs["memlane-rig"]})


def here() -> Side:
    """The tree that holds this file, with changes that are not committed."""
    return _kept("here", _build(REPOSITORY, "this tree"))


def built_here() -> Side:
    """Programs that [`here`] has built."""
    kept = _programs("here")
    if not all(path.exists() for path in kept.values()):
        raise LabError("nothing was built yet: run `make bench-gate`, which builds first")
    return Side("here", kept)


def commit(name: str) -> Side:
    """The commit that git calls `name`; its programs are kept, so a second gate against it builds nothing."""
    sha = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not sha:
        raise LabError(f"unknown git commit {name!r}")
    kept = _programs(sha)
    if all(path.exists() for path in kept.values()):
        return Side(sha, kept)
    with revisions.worktree(REPOSITORY, sha, _folder() / "tree") as tree:
        return _kept(sha, _build(tree, f"commit {sha[:12]}"))


def _folder() -> Path:
    return REPOSITORY / "target" / "bench-gate"


def _programs(side: str) -> dict[str, Path]:
    """Where the programs of the side of this name are kept."""
    return {program: _folder() / side / program for program in (*BENCHES, *PROGRAMS)}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _build(tree: Path, title: str) -> dict[str, Path]:
    """Builds benches and programs as releases are built, in the repository's target folder: dependencies are shared."""
    say(f"bench-gate: building {title} (a few minutes if it is new)")
    benches = [word for bench in BENCHES for word in ("--bench", bench)]
    built = _cargo(tree, "bench", "--no-run", "--workspace", *benches)
    return built | _cargo(tree, "build", "--release", "--workspace", "--bins")


def _cargo(tree: Path, *arguments: str) -> dict[str, Path]:
    target = REPOSITORY / "target"
    command = [
        "cargo",
        *arguments,
        "--quiet",
        "--locked",
        "--message-format=json-render-diagnostics",
        "--target-dir",
        str(target),
    ]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(command)}` failed in {tree}")
    return executables(done.stdout.splitlines())


def executables(messages: Sequence[str]) -> dict[str, Path]:
    """Programs that cargo's messages name, by the names of their targets."""
    artifacts = [json.loads(message) for message in messages]
    return {
        artifact["target"]["name"]: Path(artifact["executable"])
        for artifact in artifacts
        if artifact.get("reason") == "compiler-artifact" and artifact.get("executable")
    }


def _kept(name: str, programs: dict[str, Path]) -> Side:
    """The side called `name`, its programs copied to a place where the other side's do not replace them."""
    if lacking := [program for program in (*BENCHES, *PROGRAMS) if program not in programs]:
        raise LabError(f"{name} has no program {', '.join(lacking)} to compare")
    shutil.rmtree(_folder() / name, ignore_errors=True)
    (_folder() / name).mkdir(parents=True)
    kept = _programs(name)
    for program, path in kept.items():
        shutil.copy2(programs[program], path)
    return Side(name, kept)
