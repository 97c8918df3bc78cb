"""A pair beside holes: the command with the programs that tests run."""

import pytest

from memlane_lab.bench_gate import holes


@pytest.mark.real
@pytest.mark.prove
def test_the_command_measures_the_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert holes.main(["--rounds", "6", "--seconds", "0.2"]) in {0, 1, 3}
    told = capsys.readouterr()
    assert told.out.count(" at most ") == 1, told
