"""The example of two hosts, whole: memlane, FRR and guests on each, an underlay between them."""

import os
import subprocess
from pathlib import Path

import pytest

from memlane_lab.host import network
from memlane_lab.paths import frr
from memlane_lab.paths.memlane import program

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-hosts" / "run.sh"


@pytest.mark.real
@pytest.mark.skipif(program() is None, reason="the switch is not built in this lane")
@pytest.mark.skipif(network.may_change() is not None, reason="namespaces need root")
def test_guests_of_two_hosts_find_each_other_and_are_forgotten() -> None:
    assert frr.missing() is None
    environment = os.environ | {"MEMLANE": str(program())}
    done = subprocess.run([EXAMPLE], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "02:00:00:00:01:02" in done.stdout
    assert done.stdout.count(" 0% packet loss") == 2
    assert "host 1 has forgotten the guest" in done.stdout
