"""The cost of rules about addresses: the command with the programs that tests run."""

import pytest

from memlane_lab.bench_gate import addresses


@pytest.mark.real
def test_the_command_measures_each_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(addresses, "MACHINES", 100)
    assert addresses.main(["--rounds", "6", "--seconds", "0.2"]) in {0, 1, 3}
    told = capsys.readouterr()
    assert told.out.count(" at most ") == 4, told
