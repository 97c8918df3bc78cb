"""The words of comments and pages: `words/count` finds breaches of the rules, and nothing here is worse than before."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
RUST = """//! The worker polls each virtqueue. Who has
//! nothing to send sleeps on its eventfd.

/// A parcel. Its used ring is kept.
fn whoever() -> &'static str {
    "somebody" // what stands behind code is no line of a comment
}
"""
PYTHON = '''"""Boots guests; everybody waits."""

# Whose turn it is.
NAME = "nobody"  # an egress


def turn() -> str:
    """Tells the interrupt."""
    return """what is no docstring"""
'''
PAGE = """# What it is

Who reads a page may be told of an intake.

```sh
memlane delivery
```
"""


def count(top: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command on the repository at `top`."""
    command = [sys.executable, str(TOP / "words/count"), "--top", str(top), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def pages(top: Path) -> subprocess.CompletedProcess[str]:
    """Checks the length of the pages of the repository at `top`."""
    command = [sys.executable, str(TOP / "words/pages"), "--check", "--top", str(top)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def git(top: Path, *arguments: str) -> None:
    """Runs git in `top`, with an author of its own."""
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", str(top), *author, *arguments], check=True, capture_output=True)


def ratchet(top: Path, percent: float = 33.3, terms: float = 750.0, lab: float = 50.0, old: int = 2) -> None:
    """States these numbers, and that no comment begins with a pronoun."""
    lines = [f"switch-pronoun-percent = {percent}", "switch-opening-percent = 0", f"switch-terms-per-1000 = {terms}"]
    lines += [f"lab-pronoun-percent = {lab}", f"old-words = {old}"]
    (top / "words/ratchet.toml").write_text("\n".join(lines) + "\n")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A small repository with a ratchet of its own numbers."""
    for path, text in {"switch/virtq/src/lib.rs": RUST, "lab/boots.py": PYTHON, "docs/page.md": PAGE}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "words").mkdir()
    ratchet(tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=begin")
    return tmp_path


def test_counts_comments_docstrings_and_pages(made: Path) -> None:
    told = count(made, "--check")
    assert told.stderr == ""
    assert told.returncode == 0
    assert told.stdout.splitlines() == [
        "switch-pronoun-percent = 33.3",  # one of three lines
        "switch-opening-percent = 0",
        "switch-terms-per-1000 = 1000",  # virtqueue, eventfd, used ring
        "lab-pronoun-percent = 50",  # two of four
        "old-words = 2",
    ]


def test_names_the_sentence_the_rule_and_where_to_read(made: Path) -> None:
    told = count(made, "--lines", str(made / "switch"), str(made / "docs"))
    comment, page = "Who has nothing to send sleeps on its eventfd.", "Who reads a page may be told of an intake."
    assert f"switch/virtq/src/lib.rs:1: name the thing instead of 'Who': \"{comment}\"" in told.stdout
    assert f"docs/page.md:3: write 'transmit (TX) queue' instead of 'intake': \"{page}\"" in told.stdout
    assert "docs/page.md:1" not in told.stdout


def test_fails_with_the_new_sentence_only(made: Path) -> None:
    path = made / "switch/virtq/src/lib.rs"
    path.write_text(path.read_text() + "/// Tells whom the port serves. Its egress queue.\n/// Why not.\n")
    ratchet(made, percent=33.3)
    told = count(made, "--check")
    assert told.returncode == 1
    assert "switch-pronoun-percent rose from 33.3 to 40; read CONTRIBUTING.md, section Words" in told.stderr
    assert "lib.rs:8: name the thing instead of 'whom': \"Tells whom the port serves.\"" in told.stderr
    assert "lib.rs:1" not in told.stderr


def test_fails_where_a_comment_begins_with_a_pronoun(made: Path) -> None:
    path = made / "switch/virtq/src/lib.rs"
    path.write_text(path.read_text() + "/// Its egress queue is kept, as this one is.\n")
    told = count(made, "--check")
    assert told.returncode == 1
    assert "switch-opening-percent rose from 0 to 25; read CONTRIBUTING.md, section Words" in told.stderr
    fault = "lib.rs:8: begin with the thing instead of 'Its'"
    assert f'{fault}: "Its egress queue is kept, as this one is."' in told.stderr


def test_fails_where_terms_are_lost(made: Path) -> None:
    ratchet(made, terms=1000.1)
    told = count(made, "--check")
    assert told.returncode == 1
    assert "switch-terms-per-1000 fell from 1000.1 to 1000" in told.stderr


@pytest.mark.parametrize(
    ("looser", "was"),
    [({"percent": 34.0}, "33.3"), ({"terms": 749.0}, "750"), ({"lab": 51.0}, "50"), ({"old": 3}, "2")],
)
def test_fails_where_the_ratchet_was_loosened(made: Path, looser: dict[str, float], was: str) -> None:
    ratchet(made, **looser)  # type: ignore[arg-type]
    told = count(made, "--check")
    assert told.returncode == 1
    assert f"was {was} before, and may not go to" in told.stderr


def test_fails_where_a_number_is_not_stated(made: Path) -> None:
    (made / "words/ratchet.toml").write_text("switch-pronoun-percent = 33.3\n")
    told = count(made, "--check")
    assert told.returncode == 1
    assert "does not state old-words" in told.stderr


def test_tightens_what_is_better_and_leaves_the_rest(made: Path) -> None:
    ratchet(made, percent=90.0, terms=2000.0)
    assert count(made, "--tighten").returncode == 0
    stated = (made / "words/ratchet.toml").read_text()
    assert "switch-pronoun-percent = 33.3\n" in stated
    assert "switch-terms-per-1000 = 2000.0\n" in stated


def test_counts_the_alerts_of_vale(made: Path) -> None:
    report = made / "alerts.json"
    report.write_text('{"lab/boots.py": [{"Check": "memlane.Pronouns"}, {"Check": "memlane.Pronouns"}]}')
    with (made / "words/ratchet.toml").open("a") as stated:
        stated.write("vale-pronouns = 1\nvale-glossary = 0\n")
    told = count(made, "--check", "--alerts", str(report))
    assert told.returncode == 1
    assert "vale-pronouns rose from 1 to 2" in told.stderr
    assert "vale-glossary" not in told.stderr


def test_a_file_that_is_not_there_is_told(made: Path) -> None:
    told = count(made, str(made / "gone"))
    assert told.returncode == 2
    assert "no such file or folder" in told.stderr


def test_no_number_of_this_repository_is_worse_than_before() -> None:
    told = count(TOP, "--check")
    assert told.returncode == 0, told.stderr


def test_both_linters_read_the_same_rules() -> None:
    """`words/count` reads Vale's files line by line: each line of theirs must be one that it understands."""
    for name, key in (("Pronouns", "tokens"), ("Glossary", "swap")):
        text = (TOP / f"words/styles/memlane/{name}.yml").read_text()
        entries = text.partition(f"\n{key}:\n")[2].splitlines()
        assert len(entries) >= 9
        assert all(re.fullmatch(r"  (- )?\S.*", entry) for entry in entries), entries
    assert shutil.which("git"), "the history of the ratchet is read by git"


COUNTED = re.compile(
    r"\{(?!(?:stats\.)?_?[A-Z])[^{}]*\} (?:good |failed |other )?"
    r"(?:file|flow|node|pair|port|round|row|sample|link|machine|page|address)(?:e?s)\b"
)
"""A number before a plural in a format string; a constant is never one."""
NEVER_ONE = ("{len(inside)} files; {_MOST_FILES}", "{wanted} machines, the switch")
"""More than a limit, or of a measurement that is never of one."""


def test_numbers_in_messages_are_counted_by_one_function() -> None:
    assert COUNTED.search("f'{len(found)} samples failed'")
    assert COUNTED.search("f'{count} good rounds'")
    assert not COUNTED.search("f'{MOST} samples, {counted(1, 1)}, {ends} samplesheet'")
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((TOP / "lab/memlane_lab").rglob("*.py"))
        for line in path.read_text().splitlines()
        if COUNTED.search(line) and not any(known in line for known in NEVER_ONE)
    ]
    assert found == []


def test_the_pages_are_no_longer_than_their_aim() -> None:
    told = pages(TOP)
    assert told.returncode == 0, told.stderr


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page of 28 300 words beside an empty README."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("")
    path = tmp_path / "docs/page.md"
    table = "<!-- Figures: generated by a command. -->\nno prose\n<!-- End of figures -->\n"
    path.write_text("word - [word](not/counted.md)\n" * 14_150 + "```\nno prose\n```\n" + table)
    return path


def test_a_word_more_than_the_aim_fails_with_the_longest_page(page: Path) -> None:
    assert pages(page.parents[1]).returncode == 0
    page.write_text("more " + page.read_text())
    told = pages(page.parents[1])
    assert told.returncode == 1
    assert "the pages are longer than 28300 words (the longest: docs/page.md" in told.stderr


def test_notes_beside_the_benchmarks_count_with_the_pages(page: Path) -> None:
    notes = page.parent / "benchmarks/notes"
    notes.mkdir(parents=True)
    (notes / "speed.md").write_text("word " * 20_000)
    (notes / "made.md").write_text("<!-- Generated by a command. -->\n" + "word " * 20_000)
    assert pages(page.parents[1]).returncode == 0
    (notes / "speed.md").write_text("word " * 20_001)
    told = pages(page.parents[1])
    assert told.returncode == 1
    assert "the pages and the notes of measurements (docs/benchmarks) are longer than 48300 words" in told.stderr


def test_a_readme_of_more_than_700_words_fails(page: Path) -> None:
    page.write_text("")
    (page.parents[1] / "README.md").write_text("word " * 701)
    told = pages(page.parents[1])
    assert told.returncode == 1
    assert "README.md is longer than 700 words" in told.stderr


@pytest.mark.parametrize("term", ["backpressure", "interrupt coalescing", "FDB aging", "head-of-line blocking"])
def test_a_newcomer_finds_the_code_and_the_page_by_the_fields_word(term: str) -> None:
    wanted = re.compile(term.replace(" ", r"[\s*]+(?://!\s*)?"), re.IGNORECASE)
    heads = (
        "\n".join(line for line in path.read_text().splitlines() if line.startswith("//!"))
        for path in (TOP / "switch").glob("*/src/**/*.rs")
    )
    assert any(wanted.search(head) for head in heads), "the head of a module"
    explained = [path for path in (TOP / "docs/explanation").glob("*.md") if wanted.search(path.read_text())]
    decided = [path for path in (TOP / "docs/adr").glob("*.md") if wanted.search(path.read_text())]
    assert explained or decided, "a page"
    assert wanted.search((TOP / "docs/glossary.md").read_text()), "the glossary"
