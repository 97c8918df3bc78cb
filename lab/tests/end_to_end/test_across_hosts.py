"""Segments that go on at other hosts, with FRR: announced MAC addresses, moves, failures."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from memlane_lab import guests
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.host import network
from memlane_lab.host.ports import GuestKind, Nic, Port, VhostUser, mac
from memlane_lab.host.session import Session
from memlane_lab.host.underlay import DEVICE
from memlane_lab.images import tools
from memlane_lab.paths import frr
from tests.end_to_end import hosts
from tests.end_to_end.hosts import Host
from tests.end_to_end.lan import ROOM_FOR_DATAGRAMS
from tests.end_to_end.transfer import iperf

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(network.may_change() is not None, reason="namespaces need root"),
]
_FORGOTTEN = 30.0
"""Seconds after which hosts must have noticed that one of them is gone: three times FRR's hold timer."""


_MOST, _HEADERS = 65535, 28
"""Bytes of the longest packet of IPv4, and of its headers with those of UDP."""


def test_frr_is_there() -> None:
    assert frr.missing() is None


def _answers(guest: Guest, address: str) -> Callable[[], bool]:
    return lambda: guest.run(["ping", "-n", "-c", "1", "-W", "1", address]).status == 0


def test_a_machine_is_reached_from_another_host_though_it_has_said_nothing(
    session: Session, record_property: Callable[[str, object], None]
) -> None:
    near, far = hosts.start(session, 2)
    asks = near.guest("asks", mac(1), "10.77.0.1/16")
    began = time.monotonic()
    quiet = far.guest("quiet", mac(2), "10.77.0.2/16")
    until(lambda: near.knows(mac(2)), timeout=30, what="the other host to know of the machine")
    record_property("seconds from attach until another host knew", time.monotonic() - began)
    before = far.uplink()["transmit-frames"]
    until(_answers(asks, "10.77.0.2"), timeout=30, what="the machine to answer")
    assert far.uplink()["transmit-frames"] > before
    far.memlane_does("detach", "quiet")
    until(lambda: not near.knows(mac(2)), timeout=30, what="the other host to forget the machine")
    quiet.kill()


def test_an_address_at_another_host_is_answered_for_here(session: Session) -> None:
    """A configured address crosses the hosts by EVPN (type 2 routes with IP), and no question for it does."""
    near, far = hosts.start(session, 2)
    asks = near.guest("asks", mac(1), "10.77.0.1/16", "--addresses", '["10.77.0.1"]')
    far.guest("quiet", mac(2), "10.77.0.2/16", "--addresses", '["10.77.0.2"]')

    def known(host: Host, address: str) -> str | None:
        (segment,) = json.loads(host.memlane_does("addresses", "--json"))
        return next((each["source"] for each in segment["addresses"] if each["ip"] == address), None)

    until(lambda: known(near, "10.77.0.2") == "evpn", timeout=30, what="the address to be known at the other host")
    until(lambda: known(far, "10.77.0.1") == "evpn", timeout=30, what="the other address, too")
    until(_answers(asks, "10.77.0.2"), timeout=30, what="the machine to answer")
    (segment,) = json.loads(near.memlane_does("addresses", "--json"))
    assert segment["answers"] > 0, segment
    far.memlane_does("detach", "quiet")
    until(lambda: known(near, "10.77.0.2") is None, timeout=30, what="the address to be forgotten")
    near.memlane.kill()
    until(lambda: known(far, "10.77.0.1") is None, timeout=30, what="the addresses of a killed memlane, too")


def _with_large_mtu(host: Host, kind: GuestKind, number: int) -> Guest:
    """Boots a machine on a port with the largest MTU that there is, far above the uplink's."""
    name, socket = f"m{number}", host.socket(f"m{number}")
    host.memlane_does("attach", name, "--vhost-user", socket, "--mac", mac(number), "--mtu", str(_MOST))
    nic = Nic(Port(name, kind, mac(number), _MOST), VhostUser(socket))
    guest = guests.make(host.session, kind, name, [nic], image=tools.image())
    guest.boot()
    guest.address(0, f"10.77.0.{number}/16")
    guest.run(ROOM_FOR_DATAGRAMS).check()
    return guest


def _path_mtu(guest: Guest, address: str) -> int:
    """The MTU of the path that tracepath finds, by UDP that must not be fragmented, from the guest's MTU downwards."""
    said = guest.run(["tracepath", "-n", "-m", "3", address], timeout=60).check().stdout
    found = re.search(r"Resume: pmtu (\d+) hops 1 ", said)
    assert found, said
    return int(found[1])


@pytest.mark.parametrize("kind", [GuestKind.UML, pytest.param(GuestKind.TCG, marks=pytest.mark.prove)])
def test_tracepath_finds_the_mtu_outside_while_datagrams_of_64_kb_pass_inside(
    session: Session, kind: GuestKind
) -> None:
    near, far = hosts.start(session, 2)
    asks, inside = (_with_large_mtu(near, kind, number) for number in (1, 2))
    outside = far.guest("outside", mac(3), "10.77.0.3/16")
    for address in ("10.77.0.2", "10.77.0.3"):
        until(_answers(asks, address), timeout=30, what=f"{address} to answer")
    assert _path_mtu(asks, "10.77.0.2") == _MOST
    assert near.uplink_drops().get("too-long", 0) == 0
    assert _path_mtu(asks, "10.77.0.3") == hosts.MTU
    assert near.uplink_drops()["too-long"] > 0
    assert _path_mtu(asks, "10.77.0.2") == _MOST, "as before"
    before = near.port("m2")
    sent = iperf(asks, inside, "10.77.0.2", "--udp", "--length", str(_MOST - _HEADERS), "--bitrate", "100M")["sum"]
    after = near.port("m2")
    frames, length = (after[key] - before[key] for key in ("receive-frames", "receive-bytes"))
    assert sent["packets"] > 20, sent
    assert length / frames > _MOST / 2, "datagrams pass in one frame each"
    # No black hole: the connection begins with segments of 64 KB.
    asks.run("ip route flush cache").check()
    assert iperf(asks, outside, "10.77.0.3")["sum_received"]["bytes"] > 1 << 20


def test_a_connection_survives_a_move_to_another_host(
    session: Session, record_property: Callable[[str, object], None]
) -> None:
    """The machine's QEMU finds another host's memlane at the other end of its socket, as after a live migration."""
    first, second = hosts.start(session, 2)
    server = first.guest("server", mac(1), "10.77.0.1/16")
    way = session.folder / "moving.sock"
    way.symlink_to(first.socket("moving"))
    first.memlane_does("attach", "moving", "--vhost-user", first.socket("moving"), "--mac", mac(2))
    nic = Nic(Port("moving", GuestKind.TCG, mac(2)), VhostUser(way))
    moving = guests.make(session, GuestKind.TCG, "moving", [nic])
    moving.boot()
    moving.address(0, "10.77.0.2/16")
    server.spawn(["iperf3", "--server", "--one-off"])
    server.wait_listening(5201)
    client = moving.spawn(["iperf3", "--client", "10.77.0.1", "--time", "12", "--interval", "0.1", "--json"])
    time.sleep(4)
    first.memlane_does("detach", "moving")
    way.unlink()
    way.symlink_to(second.socket("moving"))
    second.memlane_does("attach", "moving", "--vhost-user", second.socket("moving"), "--mac", mac(2))
    said = json.loads(client.wait(120).check().stdout)
    assert "error" not in said
    assert first.knows(mac(2))
    sent = [interval["sum"] for interval in said["intervals"]]
    assert sum(each["bytes"] for each in sent[-20:]) > 0, "it sends again at its new place"
    record_property("seconds without a byte", _gap(sent))


def _gap(intervals: list[dict[str, Any]]) -> float:
    longest, begin = 0.0, 0.0
    for each in intervals:
        if each["bytes"]:
            longest, begin = max(longest, each["start"] - begin), each["end"]
    return longest


def test_hosts_that_fall_silent_are_forgotten_and_found_again(session: Session) -> None:
    first, second, third = hosts.start(session, 3)
    a = first.guest("a", mac(1), "10.77.0.1/16")
    b = second.guest("b", mac(2), "10.77.0.2/16")
    second.guest("c", mac(3), "10.77.0.3/16")
    third.guest("d", mac(4), "10.77.0.4/16")
    _all_know(first, second, third)
    local = b.spawn(["ping", "-n", "-i", "0.2", "-c", "10000", "10.77.0.3"])

    second.kill_frr()
    until(lambda: not first.knows(mac(2)), timeout=_FORGOTTEN, what="the first host to forget the second's machines")
    assert first.knows(mac(4)), "others are known as before"
    second.start_frr(3)
    _all_know(first, second, third)
    until(_answers(a, "10.77.0.2"), timeout=30, what="an answer after FRR has come back")

    network.change(second.namespace, f"link set dev {DEVICE} down")
    until(lambda: not first.knows(mac(2)), timeout=_FORGOTTEN, what="the first host to forget who is cut off")
    until(lambda: not second.knows(mac(1)), timeout=_FORGOTTEN, what="who is cut off to forget the first host")
    network.change(second.namespace, f"link set dev {DEVICE} up")
    _all_know(first, second, third)
    until(_answers(a, "10.77.0.2"), timeout=30, what="an answer after the underlay has healed")

    local.signal(2)
    assert " 0% packet loss" in local.wait(10).stdout, "meanwhile who is on one host heard each other"


def _all_know(first: Host, second: Host, third: Host) -> None:
    """Waits until each knows exactly the others' machines: nothing is missing, nothing is stale."""
    there = {first: {mac(1)}, second: {mac(2), mac(3)}, third: {mac(4)}}
    for host in there:
        others = set().union(*(machines for other, machines in there.items() if other is not host))
        until(
            lambda at=host, wanted=others: {each["address"] for each in at.uplink()["learned-addresses"]} == wanted,  # type: ignore[misc]
            timeout=60,
            what=f"host {host.number} to know the others' machines",
        )


def test_a_thousand_machines_on_three_hosts_are_known(
    session: Session, record_property: Callable[[str, object], None]
) -> None:
    ports = [
        [{"name": f"m{at}", "null": True, "mac": mac(1000 * (host + 1) + at)} for at in range(333)] for host in range(3)
    ]
    began = time.monotonic()
    all_hosts = hosts.start(session, 3, ports)
    for host in all_hosts:
        until(lambda at=host: len(at.uplink()["learned-addresses"]) == 666, timeout=60, what="all machines to be known")  # type: ignore[misc]
    record_property("seconds from the start until all knew all", time.monotonic() - began)
    asks = all_hosts[0].guest("asks", mac(1), "10.77.0.1/16")
    until(lambda: all_hosts[2].knows(mac(1)), timeout=30, what="one more to be known")
    before = [host.uplink()["transmit-frames"] for host in all_hosts]
    asks.run(["ip", "neighbour", "replace", "10.77.0.9", "lladdr", mac(2005), "dev", "net0"]).check()
    asks.run(["ping", "-n", "-c", "20", "-i", "0.05", "-W", "1", "10.77.0.9"])  # not answered
    after = [host.uplink()["transmit-frames"] for host in all_hosts]
    assert after[1] - before[1] >= 20, "the host that has the machine gets its frames"
    assert after[2] - before[2] < 10, "the other is not flooded with them"
