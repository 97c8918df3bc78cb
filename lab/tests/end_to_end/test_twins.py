"""Guests that were restored from one saved guest run at once, each with addresses of its own outside."""

import pytest

from memlane_lab.bed import bed
from memlane_lab.host import ports
from memlane_lab.host.ports import Nic, Port
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG, UML
from tests.end_to_end.monitor import monitor, wait
from tests.end_to_end.movable import Movable, restore_guest, save_guest
from tests.end_to_end.transfer import Library

pytestmark = [pytest.mark.real, pytest.mark.prove]

_TWINS = 10
_BASE = 1
"""Number of the guest that is saved."""


def _mac(index: int) -> str:
    return f"02:00:00:00:77:{index:02x}"


def test_ten_twins_of_a_saved_guest_run_at_once(build: Builder) -> None:
    """A peer fetches a file from each under its own IPv4 and IPv6 address, and sees its own MAC address."""
    inside = {"mac": ports.mac(_BASE + 1), "addresses": [bed.ipv4(_BASE), bed.ipv6(_BASE)]}
    own = {f"twin{index}": index for index in range(_BASE + 1, _BASE + 1 + _TWINS)}
    twins = {
        name: {
            "mac": _mac(index),
            "addresses": [bed.ipv4(index), bed.ipv6(index)],
            "anti-spoof": "all",
            "inside": inside,
        }
        for name, index in own.items()
    }
    lan = build(UML, others={"base": {}, **twins})
    session, peer = lan.switch.session, lan.guests[0]

    def guest(name: str, port: str) -> Movable:
        return Movable(session, name, [Nic(Port("saved", TCG, ports.mac(_BASE + 1)), lan.switch.socket(port))])

    base = guest("base", "base")
    base.boot()
    base.address(0, f"{bed.ipv4(_BASE)}/16", f"{bed.ipv6(_BASE)}/64")
    lan.reach(0, _BASE)
    library = Library(base, 1)
    # Each twin goes on to ask the peer.
    base.spawn(f"while :; do ping -c 1 -W 5 {bed.ipv4(0)}; sleep 1; done >/dev/null 2>&1")
    state = session.folder / "saved.state"
    with monitor(base.qmp) as ask:
        save_guest(ask, state)
    base.kill()
    for name in twins:
        twin = guest(f"{name}-restored", name)
        twin.await_copy()
        with monitor(twin.qmp) as ask:
            restore_guest(ask, state)
    for index in own.values():
        lan.reach(0, index, timeout=120)
    for address in (bed.ipv4, bed.ipv6):
        fetches = [library.fetch(peer, address(index)) for index in own.values()]
        for fetch in fetches:
            fetch.finish(240)
    known = peer.run(["ip", "neigh"]).check().stdout
    for index in own.values():
        lines = [line.split() for line in known.splitlines() if line.split()[0] == bed.ipv4(index)]
        assert any(_mac(index) in words for words in lines), known
    assert not any(line.split()[0] == bed.ipv4(_BASE) and "REACHABLE" in line for line in known.splitlines()), known
    for name in twins:
        wait(lambda name=name: lan.switch.port(name)["transmit-frames"] > 0, f"{name} to send")  # type: ignore[misc]
