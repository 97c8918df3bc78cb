"""The lab's pages: generated ones are current, and every command on a page is one that the lab has."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memlane_lab import cli, workloads
from memlane_lab.commands import reference
from memlane_lab.experiment import experiment
from memlane_lab.statistics import measures

_TOP = Path(__file__).parents[2]
_PAGES = [_TOP / "README.md", *sorted((_TOP / "docs").rglob("*.md")), *sorted((_TOP / "examples").rglob("*.md"))]
_BLOCK = re.compile(r"^ *```(?:sh|console)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", reference.pages())
def test_generated_pages_are_current(name: str) -> None:
    committed = (reference.FOLDER / name).read_text()
    assert committed == reference.pages()[name], "run `memlane-lab reference`, and commit the pages"


def test_every_experiment_workload_and_measure_is_on_a_page() -> None:
    pages = reference.pages()
    for file in experiment.supplied():
        assert f"[{file.stem}]" in pages["lab-experiments.md"]
    for name, workload in workloads.WORKLOADS.items():
        assert f"\n## Workload `{name}`\n" in pages["lab-experiments.md"]
        for measure in (*workload.measures, *measures.COMMON, *measures.MEMORY):
            assert pages["lab-measures.md"].count(f"| `{measure.name}` |") == 1


def _commands(page: Path) -> list[list[str]]:
    """The arguments of every `memlane-lab` command in the blocks of shell of a page."""
    lines = (line for block in _BLOCK.findall(page.read_text()) for line in block.splitlines())
    found = (line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in lines)
    return [_arguments(line) for line in found if line.startswith("memlane-lab ")]


def _arguments(line: str) -> list[str]:
    """Those of the first command of a line, as a shell would read them."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(itertools.takewhile(lambda word: word not in {">", "|", "&&", ";"}, words))[1:]


def _parses(arguments: list[str]) -> bool:
    """Whether the lab takes these arguments; they are followed by the wish for help, so that nothing is run."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return CliRunner().invoke(cli.app, [*own, "--help"]).exit_code == 0


def test_commands_on_pages_are_those_of_the_lab() -> None:
    commands = [(page, arguments) for page in _PAGES for arguments in _commands(page)]
    wrong = [f"{page}: memlane-lab {' '.join(arguments)}" for page, arguments in commands if not _parses(arguments)]
    assert not wrong, "\n".join(wrong)
    assert len(commands) > 30


@pytest.mark.parametrize("wrong", [["predikt"], ["run", "promises", "--onli", "memlane"], ["topo", "upp", "line"]])
def test_a_command_that_the_lab_has_not_would_be_found(wrong: list[str]) -> None:
    assert not _parses(wrong)


def test_the_prediction_on_the_page_is_what_the_published_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_TOP)
    shown = re.findall(r"```console\n\$ (.*?)\n(.*?)```", _page("how-to/predict.md"), re.DOTALL)
    assert len(shown) == 1
    for command, told in shown:
        said = CliRunner().invoke(cli.app, _arguments(command)).stdout
        assert _lines(said) == _lines(told)


def _page(name: str) -> str:
    return (_TOP / "docs" / name).read_text()


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]
