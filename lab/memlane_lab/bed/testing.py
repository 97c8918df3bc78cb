"""For tests that need real guests: `pytest_plugins = ["memlane_lab.bed.testing"]` gives them the fixture `session`.

    def test_two_guests_talk(session):
        pair = Bed(session, paths.make(session, "bridge"), BedSettings([GuestKind.UML, GuestKind.TCG]))
        assert_reachable(pair, 0, 1)
        assert tcp_throughput(pair, 0, 1, seconds=1) > 0

Logs of guests and switches are kept in the test's temporary folder.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlane_lab.bed import bed
from memlane_lab.bed.bed import Bed
from memlane_lab.host.session import Session

_ports = itertools.count(5201)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session of the lab that ends with the test; nothing that it starts outlives it."""
    with Session(tmp_path / "logs") as opened:
        yield opened


def assert_reachable(pair: Bed, source: int, target: int) -> None:
    """Fails unless guest `source` gets answers from guest `target` over IPv4 and IPv6, nearly all of them."""
    for address in (bed.ipv4(target), bed.ipv6(target)):
        command = ["ping", "-c", "5", "-i", "0.2", "-W", "5", address]
        said = pair.guests[source].run(command, timeout=30).stdout
        received = int(said.split(" received")[0].rsplit(" ", 1)[1]) if " received" in said else 0
        assert received >= 4, f"guest {source} to {address}:\n{said}"


def tcp_throughput(pair: Bed, source: int, target: int, *, seconds: float = 1, length: str = "1M") -> float:
    """Bits a second that arrived of one TCP flow from guest `source` to guest `target`."""
    port = str(next(_ports))
    server = pair.guests[target].spawn(["iperf3", "--server", "--one-off", "--port", port])
    pair.guests[target].wait_listening(int(port))
    command = ["iperf3", "--client", bed.ipv4(target), "--port", port, "--time", str(seconds), "--length", length]
    report = json.loads(pair.guests[source].run([*command, "--json"], timeout=seconds + 60).check().stdout)
    server.wait(timeout=30)
    return float(report["end"]["sum_received"]["bits_per_second"])
