"""An uplink by AF_XDP beside one by TAP and bridge: the command with the programs that tests run."""

import pytest

from memlane_lab.bench_gate import uplinks


@pytest.mark.real
@pytest.mark.prove
def test_the_command_measures_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert uplinks.main(["--rounds", "6", "--seconds", "0.5"]) in {0, 1, 3}
    told = capsys.readouterr()
    assert told.out.count(" at most ") == len(uplinks.SIZES), told
