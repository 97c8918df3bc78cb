"""Switches of other commits: from a real repository, with a builder in place of cargo; and the page of their runs."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.commands import published
from memlane_lab.common.errors import LabError
from memlane_lab.measuring import machine, revisions
from memlane_lab.results import agreement, results
from tests import made_up


def _git(top: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(top), *author, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of a switch, and a change that is not committed."""
    top = tmp_path / "top"
    top.mkdir()
    _git(top, "init", "--quiet")
    for text in ("first", "second"):
        (top / "switch").write_text(text)
        _git(top, "add", "switch")
        _git(top, "commit", "--quiet", "--message", text)
    (top / "switch").write_text("changed")
    return top


def _builder(built: list[str]) -> Callable[[Path, Path], Path]:
    """In place of cargo: a program holds its tree's source."""

    def build(tree: Path, target: Path) -> Path:
        built.append((tree / "switch").read_text())
        (target / "release").mkdir(parents=True, exist_ok=True)
        for name in revisions.PROGRAMS:
            (target / "release" / name).write_text(f"{name} {built[-1]}")
        return target / "release"

    return build


def test_a_commit_is_built_once_in_a_tree_of_its_own(repository: Path) -> None:
    built: list[str] = []
    shas = {text: _git(repository, "rev-parse", name) for text, name in (("first", "HEAD~1"), ("second", "HEAD"))}
    for text, sha in [*shas.items(), *shas.items()]:
        folder = revisions.built(sha[:12], repository, _builder(built))
        assert (folder / "memlane").read_text() == f"memlane {text}"
        assert revisions.of(folder / "memlane") == sha[:12]
    assert built == ["first", "second"]
    assert (repository / "switch").read_text() == "changed"
    assert len(_git(repository, "worktree", "list").splitlines()) == 1


def test_what_a_killed_build_left_is_no_obstacle(repository: Path) -> None:
    def killed(tree: Path, _: Path) -> Path:
        (tree / "switch").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        revisions.built("HEAD", repository, killed)
    left = repository / "target" / "revisions" / "tree"
    _git(repository, "worktree", "add", "--detach", str(left), "HEAD~1")  # as after SIGKILL
    folder = revisions.built("HEAD", repository, _builder([]))
    assert (folder / "memlane").read_text() == "memlane second"
    assert not left.exists()


def test_a_failed_build_keeps_nothing(repository: Path) -> None:
    def fails(_: Path, target: Path) -> Path:
        target.mkdir(parents=True)
        (target / "memlane").write_text("without its rig")
        return target

    with pytest.raises(LabError, match=r"has no program memlane-rig"):
        revisions.built("HEAD", repository, fails)
    assert (revisions.built("HEAD", repository, _builder([])) / "memlane-rig").exists()


@pytest.mark.parametrize("name", ["nonsense", "--all", "0123456789ab"])
def test_an_unknown_commit_is_said_to_be_one(repository: Path, name: str) -> None:
    with pytest.raises(LabError, match=r"this clone has no commit .*: fetch the whole history"):
        revisions.built(name, repository, _builder([]))


def test_a_run_of_a_kept_switch_records_both_commits(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = revisions.built("HEAD~1", repository, _builder([]))
    monkeypatch.setattr(machine, "own_commit", lambda: "0123456789ab")
    monkeypatch.setenv("MEMLANE", str(folder / "memlane"))
    assert machine._commits() == {"commit": folder.name[:12], "lab commit": "0123456789ab"}
    monkeypatch.setenv("MEMLANE", str(tmp_path / "memlane"))
    assert machine._commits() == {"commit": "0123456789ab"}


RELEASE: dict[str, Any] = {"commit": "5d0090cb78ac", "lab commit": "0123456789ab"}


def test_runs_of_a_commit_are_joined_whichever_build_of_it_they_had(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    for number in range(5):
        build = {"memlane": f"memlane 0.1.0 (build {number})"}
        published.publish(made_up.headline(tmp_path / str(number), number, 1.0, versions=build, **RELEASE), "h", folder)
    page = (folder / "headlines.md").read_text()
    assert "**5 runs (days: 5, machines: 1)**" in page
    assert "One commit, built 5 times: memlane 0.1.0 (build 0); memlane" in page
    assert page.count("\n## ") == 1
    runs = [published.read(own.parent) for own in sorted(folder.glob("*/*/run.json"))]
    assert agreement.between_runs(runs)


@pytest.mark.parametrize(
    "described",
    [
        {"commit": "5d0090cb78ac"},  # no kept switch: its program may be any
        {"commit": "6e0090cb78ac", "lab commit": "0123456789ab"},
    ],
)
def test_other_switches_are_not_joined(described: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    for number, machine_told in enumerate((RELEASE, described)):
        run = made_up.headline(tmp_path / str(number), number, 1.0, versions={"memlane": str(number)}, **machine_told)
        published.publish(run, "h", folder)
    assert (folder / "headlines.md").read_text().count("\n## ") == 2


def test_a_lab_with_changes_publishes_no_kept_switch_either(tmp_path: Path) -> None:
    described = RELEASE | {"lab commit": f"0123456789ab{machine.CHANGED}"}
    run = made_up.headline(tmp_path / "run", 0, 1.0, **described)
    assert results.read(run)[0].machine["commit"] == "5d0090cb78ac"
    with pytest.raises(LabError, match="was measured on 0123456789ab with changes, which nobody else has"):
        published.publish(run, "h", tmp_path / "docs" / "benchmarks")


def test_make_measures_the_commit_that_it_is_given() -> None:
    top = revisions.REPOSITORY
    told = subprocess.run(
        ["make", "--dry-run", "headlines", "REV=HEAD"], cwd=top, capture_output=True, text=True, check=True
    ).stdout
    sha = _git(top, "rev-parse", "HEAD")
    assert "memlane_lab.measuring.revisions HEAD" in told
    assert f"MEMLANE={top}/target/revisions/{sha}/memlane " in told
    assert f"--out results/headlines/{sha[:12]}/" in told
