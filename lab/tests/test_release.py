"""A release: one version number in crates, programs for guests and lab, and its part of the changelog."""

import datetime
import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
VERSION: str = tomllib.loads((TOP / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def test_the_changelog_begins_with_the_version_of_the_crates() -> None:
    headings = re.findall(r"^## (.+)$", (TOP / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = headings[1:] if headings[0] == "Unreleased" else headings
    version, _, date = released[0].partition(" - ")
    assert version == VERSION, "the newest version of CHANGELOG.md is that of Cargo.toml"
    assert datetime.date.fromisoformat(date), "its heading ends with the date of the release (YYYY-MM-DD)"


@pytest.mark.parametrize(
    "manifest",
    ["lab/pyproject.toml", "lab/agent/Cargo.toml", "lab/shop/application/Cargo.toml", "switch/fuzz/Cargo.toml"],
)
def test_programs_beside_the_workspace_have_its_version(manifest: str) -> None:
    stated = tomllib.loads((TOP / manifest).read_text())
    assert (stated.get("project") or stated["package"])["version"] == VERSION


def test_crates_that_name_their_version_name_this_one() -> None:
    workspace = tomllib.loads((TOP / "Cargo.toml").read_text())["workspace"]
    own = {name: entry for name, entry in workspace["dependencies"].items() if name.startswith("memlane")}
    assert own, "the workspace has crates of its own"
    stated = {name: entry["version"] for name, entry in own.items() if "version" in entry}
    assert set(stated.values()) <= {VERSION}, stated
