"""The figures of README and docs: writes them again, and says which of them are of another switch than the present.

A figure is **stale** if files of the data path changed since the commit of its run. Between releases that is a warning;
a release shows no stale figure (CONTRIBUTING.md).
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from memlane_lab.commands import published
from memlane_lab.common.counted import counted
from memlane_lab.measuring import machine
from memlane_lab.report import figures, shown

DATA_PATH = ("switch/virtq", "switch/dataplane", "switch/backends")
"""Folders whose code every frame passes."""


def stale(commits: Mapping[str, Sequence[str]], top: Path = published.FOLDER.parents[1]) -> list[str]:
    """A sentence for each commit of shown figures since which the data path changed, or of which that is unknown."""
    told = ((commit, runs, _changed(commit, top)) for commit, runs in commits.items())
    return [
        f"figures of {', '.join(runs)} are of commit {commit}: {changed}" for commit, runs, changed in told if changed
    ]


def shown_commits(folder: Path = published.FOLDER) -> dict[str, list[str]]:
    """The commits of all shown figures and plots, each with its runs."""
    runs = published.front(folder)
    told = [shown.commits(runs), figures.commits(runs)]
    return {
        commit: list(dict.fromkeys(run for each in told for run in each.get(commit, ())))
        for commit in dict.fromkeys(commit for each in told for commit in each)
    }


def _changed(commit: str, top: Path) -> str:
    """How the data path differs from a commit's, in words; empty: it does not."""
    known = commit.split(machine.CHANGED)[0]
    done = subprocess.run(
        ["git", "-C", str(top), "diff", "--name-only", f"{known}^{{commit}}", "--", *DATA_PATH],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return "this clone does not have that commit: fetch the whole history"
    count = len(done.stdout.split())
    if count:
        return f"{counted(count, 'file')} of {', '.join(DATA_PATH)} changed since; measure again by make headlines"
    return "measured with changes that were not committed" if machine.CHANGED in commit else ""
