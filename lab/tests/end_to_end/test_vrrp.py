"""keepalived moves an address by VRRP between two guests under anti-spoofing, where both have it in `allowed`."""

import json
import subprocess
from typing import Any

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.guests.control import Running
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.images import tools
from memlane_lab.paths.memlane import program
from tests.end_to_end.captured import captured, seconds_to_answer
from tests.end_to_end.lan import TCG, UML, Lan, Plan
from tests.end_to_end.switch import Switch

pytestmark = pytest.mark.real

_CLIENT, _FIRST, _SECOND = 0, 1, 2
_SHARED = "10.77.9.9"
_REACHED = 1.0
"""Seconds from the announcement of the new owner until the client has an answer of it, on a busy machine too."""
_CONFIGURATION = """
vrrp_instance web {
    interface net0
    version 3
    state BACKUP
    virtual_router_id 7
    priority PRIORITY
    advert_int 0.2
    virtual_ipaddress { 10.77.9.9/16 }
}
"""
_KEEPALIVED = (
    "keepalived --dont-fork --log-console --vrrp -f /tmp/keepalived.conf -p /tmp/keepalived.pid -r /tmp/vrrp.pid"
)
_KINDS = [pytest.param((UML,) * 3, id="uml"), pytest.param((UML, UML, TCG), id="tcg", marks=pytest.mark.prove)]


def _lan(session: Session, kinds: tuple[GuestKind, ...], allowed: set[int]) -> Lan:
    """A client and two guests for keepalived, under anti-spoofing; those of `allowed` may use the shared address."""

    def stated(index: int) -> dict[str, Any]:
        own = {"mac": ports.mac(index + 1), "addresses": [bed.ipv4(index), bed.ipv6(index)], "anti-spoof": "all"}
        return own | ({"allowed": [{"ip": _SHARED}]} if index in allowed else {})

    return Lan(session, [Plan(kind, stated=stated(index), image=tools.image()) for index, kind in enumerate(kinds)])


def _keepalived(guest: Guest, priority: int) -> Running:
    guest.put("/tmp/keepalived.conf", _CONFIGURATION.replace("PRIORITY", str(priority)).encode())
    return guest.spawn(_KEEPALIVED)


def _await_owner(lan: Lan, index: int) -> None:
    """Waits until the client finds the shared address at that guest."""
    client, own = lan.guests[_CLIENT], ports.mac(index + 1)
    asks = f"ping -n -q -c 1 -W 0.5 {_SHARED} >/dev/null && ip neighbour show {_SHARED}"
    until(lambda: own in client.run(asks).stdout, timeout=30, what=f"{own} to answer for {_SHARED}")


def _refused(switch: Switch) -> list[dict[str, Any]]:
    """The events about refused addresses."""
    binary = program()
    assert binary is not None
    done = subprocess.run([binary, "events", switch.file, "--json"], capture_output=True, text=True, check=True)
    return [event for event in map(json.loads, done.stdout.splitlines()) if event["event"] == "address-refused"]


@pytest.mark.timed
@pytest.mark.parametrize("kinds", _KINDS)
def test_an_address_moves_by_vrrp_between_guests_that_may_both_use_it(
    session: Session, kinds: tuple[GuestKind, ...]
) -> None:
    """To a guest of higher priority, and back once that fails."""
    lan = _lan(session, kinds, {_FIRST, _SECOND})
    second = _keepalived(lan.guests[_SECOND], 100)
    second.wait_for_output("Entering MASTER STATE", timeout=30)
    _await_owner(lan, _SECOND)
    asks = lan.guests[_CLIENT].spawn(["ping", "-n", "-i", "0.01", _SHARED])
    taken = []
    for owner in (_FIRST, _SECOND):
        file = session.folder / f"to-{owner}.pcapng"
        with captured(lan.switch, bed.name(_CLIENT), file):
            if owner == _FIRST:
                _keepalived(lan.guests[_FIRST], 150)
            else:
                lan.guests[_FIRST].kill()
            _await_owner(lan, owner)
        taken.append(seconds_to_answer(file, ports.mac(owner + 1), _SHARED))
    asks.kill()
    print(f"reached {', '.join(f'{1000 * seconds:.1f}' for seconds in taken)} ms after the announcement")
    assert max(taken) < _REACHED, taken
    assert not _refused(lan.switch)


@pytest.mark.parametrize("kinds", _KINDS)
def test_without_the_pair_the_address_does_not_move_and_the_line_is_named(
    session: Session, kinds: tuple[GuestKind, ...]
) -> None:
    lan = _lan(session, kinds, {_FIRST})
    _keepalived(lan.guests[_FIRST], 150)
    _await_owner(lan, _FIRST)
    second = _keepalived(lan.guests[_SECOND], 100)
    second.wait_for_output("Entering BACKUP STATE", timeout=30)
    assert not _refused(lan.switch)
    lan.guests[_FIRST].kill()
    second.wait_for_output("Entering MASTER STATE", timeout=30)
    until(lambda: bool(_refused(lan.switch)), timeout=30, what="the announcement to be refused")
    event = _refused(lan.switch)[0]
    assert event["port"] == bed.name(_SECOND)
    assert (event["ip"], event["mac"]) == (_SHARED, ports.mac(_SECOND + 1))
    assert event["allowed-by"] == f'addresses = ["{_SHARED}"]'
    assert lan.guests[_CLIENT].run(["ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", _SHARED]).status == 1
