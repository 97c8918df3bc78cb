"""Paths, as far as they can be checked without a guest."""

import json
import os
import socket
import struct
import subprocess
import threading
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from memlane_lab import guests, paths
from memlane_lab.bed.bed import Bed, BedSettings, ipv4
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.common.wait import until
from memlane_lab.guests.uml import UmlGuest
from memlane_lab.host import network, procfs
from memlane_lab.host.ports import Device, GuestKind, Nic, Port, Tap, VhostUser, mac
from memlane_lab.host.session import Session
from memlane_lab.paths import frr, ovs_dpdk
from memlane_lab.paths.apart import Apart
from memlane_lab.paths.masking import FeatureMask
from memlane_lab.paths.memlane import Memlane, program
from memlane_lab.paths.memlane_bridge import MemlaneBridge
from memlane_lab.paths.overlay import Overlay


def _port(name: str, kind: GuestKind = GuestKind.UML) -> Port:
    return Port(name, kind, mac(len(name)))


@pytest.mark.parametrize(
    ("path", "kind", "why"),
    [
        ("none", GuestKind.UML, "veth"),
        ("e1000", GuestKind.UML, "only QEMU"),
        ("e1000", GuestKind.NETNS, "only QEMU"),
        ("vde", GuestKind.TCG, "User Mode Linux"),
    ],
)
def test_a_path_says_why_it_cannot_serve_a_guest(session: Session, path: str, kind: GuestKind, why: str) -> None:
    with pytest.raises(NotAvailable, match=f"path {path} cannot serve {kind} guests: .*{why}"):
        paths.make(session, path).lay([_port("a", kind), _port("b", kind)])


def test_an_unknown_path_is_answered_with_the_known_ones(session: Session) -> None:
    with pytest.raises(LabError, match="bridge"):
        paths.make(session, "brigde")


def test_every_path_serves_somebody() -> None:
    for path in paths.PATHS.values():
        assert any(path.refuses(kind) is None for kind in guests.KINDS)


def test_no_path_joins_two_and_two(session: Session) -> None:
    with pytest.raises(NotAvailable, match="two and two; 3 is an odd"):
        paths.make(session, "none").lay([_port(name, GuestKind.NETNS) for name in ("a", "b", "c")])


def test_a_path_that_cannot_limit_a_port_says_so(session: Session) -> None:
    limited = replace(_port("a", GuestKind.NETNS), receive_rate=1_000_000)
    with pytest.raises(NotAvailable, match="path none cannot limit what port a is sent"):
        paths.make(session, "none").lay([limited, _port("b", GuestKind.NETNS)])


def test_the_bridge_limits_what_a_port_is_sent(session: Session) -> None:
    (limited, _) = paths.make(session, "bridge").lay([replace(_port("a"), receive_rate=24_000_000), _port("b")])
    assert isinstance(limited.endpoint, Tap)
    show = ["tc", "qdisc", "show", "dev", limited.endpoint.device]
    shown = subprocess.run(
        [*network.enter(limited.endpoint.namespace), *show], capture_output=True, text=True, check=True
    )
    assert "tbf" in shown.stdout
    assert "24Mbit" in shown.stdout


def test_htb_gives_each_sender_a_class_of_the_limit(session: Session) -> None:
    ports = [replace(_port("a"), receive_rate=24_000_000), _port("bb"), _port("ccc"), _port("dddd")]
    limited, *_ = paths.make(session, "bridge-htb").lay(ports)
    assert isinstance(limited.endpoint, Tap)
    place = network.enter(limited.endpoint.namespace)

    def shown(what: str) -> str:
        command = [*place, "tc", what, "show", "dev", limited.endpoint.device]  # type: ignore[union-attr]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    classes = shown("class").splitlines()
    assert sum("rate 24Mbit ceil 24Mbit" in line for line in classes) == 1
    assert sum("rate 6Mbit ceil 24Mbit" in line for line in classes) == 4  # three senders and all others
    assert shown("filter").count("flowid 1:") == 3


def test_a_share_names_every_sender_and_no_other() -> None:
    lines = network.share_lines("d", 24_000_000, [mac(1), mac(2)])
    assert [line.split()[0] for line in lines] == ["qdisc", "class", "class", "class", "filter", "class", "filter"]
    assert lines[4].endswith(f"match ether src {mac(1)} flowid 1:1")
    assert lines[6].endswith(f"match ether src {mac(2)} flowid 1:2")
    assert all("rate 8000000bit ceil 24000000bit" in lines[at] for at in (2, 3, 5))


def test_open_vswitch_with_dpdk_may_sleep(session: Session) -> None:
    polling, sleeping = ovs_dpdk.OvsDpdk(session), ovs_dpdk.OvsDpdk(session, max_sleep=500)
    assert not any("sleep" in word for word in polling._settings(2))
    assert {"pmd-maxsleep=500", "pmd-sleep-max=500"} <= {*sleeping._settings(2)}


def test_memlane_before_a_bridge_has_a_segment_for_each_guest(session: Session) -> None:
    switch = MemlaneBridge(session)
    first, second = switch._carried(_port("a"))
    assert (first["segment"], second["segment"], first["name"], second["name"]) == ("a", "a", "a", "a-tap")
    assert "vhost-user" in first
    assert second["tap"] == session.link_name("a")
    assert switch._carried(_port("b", GuestKind.NETNS)) == []


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.parametrize("path", ["bridge-htb", "ovs", "memlane-bridge", "memlane-veth"])
def test_namespaces_reach_each_other_over_a_fair_baseline(session: Session, path: str) -> None:
    bed = Bed(session, paths.make(session, path), BedSettings([GuestKind.NETNS] * 2))
    assert bed.guests[0].run(["ping", "-c", "3", "-i", "0.2", ipv4(1)]).status == 0
    if path != "memlane-bridge":
        assert bed.path.tallies()["frames"] >= 0


def test_the_bridge_makes_taps_for_machines_and_devices_for_namespaces(session: Session) -> None:
    bridge = paths.make(session, "bridge")
    machine, namespace = bridge.lay([_port("a"), _port("b", GuestKind.NETNS)])
    assert isinstance(machine.endpoint, Tap)
    assert isinstance(namespace.endpoint, Device)
    assert network.exists(machine.endpoint.device, namespace=machine.endpoint.namespace)
    assert bridge.counters()["a"]["rx_packets"] == 0
    bridge.clear()
    assert not Path("/run/netns", machine.endpoint.namespace).exists()


@pytest.mark.real
def test_a_guest_refuses_what_it_cannot_be_plugged_into(session: Session) -> None:
    guest = UmlGuest(session, "a", [Nic(_port("a"), Device("veth", None))])
    with pytest.raises(LabError, match="no NIC for"):
        guest.boot()


FAKE_SWITCH = """#!/usr/bin/env python3
import json, os, socket, sys, tomllib
assert sys.argv[1] == "up", sys.argv
with open(sys.argv[2], "rb") as file:
    network = tomllib.load(file)
kept = []
for port in network["port"]:
    kept.append(socket.socket(socket.AF_UNIX))
    try:
        kept[-1].bind(port["vhost-user"])
    except OSError as error:
        sys.exit(f"memlane: port {port['name']}: {error}")
    kept[-1].listen()
kept.append(socket.socket(socket.AF_UNIX))
kept[-1].bind(network["control"])
kept[-1].listen()
report = json.dumps({"pid": os.getpid()})
while True:
    client, _ = kept[-1].accept()
    with client:
        client.recv(4096)
        client.sendall(f"HTTP/1.0 200 OK\\r\\n\\r\\n{report}".encode())
"""


@pytest.fixture
def fake_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with memlane's command line that only listens, and tells its process identifier."""
    switch = tmp_path / "memlane"
    switch.write_text(FAKE_SWITCH)
    switch.chmod(0o755)
    monkeypatch.setenv("MEMLANE", str(switch))
    return switch


def test_memlane_is_started_with_the_networks_file(session: Session, fake_switch: Path) -> None:
    assert program() == fake_switch
    switch = Memlane(session, workers=1, poll="never")
    first, second = switch.lay([_port("a"), _port("b", GuestKind.TCG)])
    assert isinstance(first.endpoint, VhostUser)
    assert isinstance(second.endpoint, VhostUser)
    stated = tomllib.loads((first.endpoint.socket.parent / "net.toml").read_text())
    assert stated == {
        "workers": 1,
        "poll": "never",
        "control": str(first.endpoint.socket.parent / "control.sock"),
        "port": [
            {"name": "a", "vhost-user": str(first.endpoint.socket)},
            {"name": "b", "vhost-user": str(second.endpoint.socket)},
        ],
    }
    (party,) = switch.parties()
    assert procfs.listens(party.pid, first.endpoint.socket)
    switch.kill()
    assert first.endpoint.socket.exists()
    assert not procfs.listens(party.pid, first.endpoint.socket)


@pytest.mark.usefixtures("fake_switch")
def test_a_switch_that_does_not_start_says_why(session: Session) -> None:
    switch = Memlane(session)
    switch.lay([_port("a")])
    switch.kill()
    with pytest.raises(LabError, match=r"memlane: port a: .*in use"):
        switch.start()


def test_a_missing_switch_is_told_with_the_remedy(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MEMLANE", raising=False)
    with pytest.raises(NotAvailable, match=r"path memlane cannot be set up: .*make build"):
        Memlane(session).lay([_port("a")])


def test_statistics_of_open_vswitch_are_read() -> None:
    read = ovs_dpdk._statistics('{ovs_rx_qos_drops=0, rx_bytes=1234, "rx_1_to_64_packets"=7}')
    assert read == {"ovs_rx_qos_drops": 0, "rx_bytes": 1234, "rx_1_to_64_packets": 7}
    assert ovs_dpdk._statistics("{}") == {}


def test_the_mask_hides_the_control_queue_and_passes_the_rest(tmp_path: Path) -> None:
    back_end = socket.socket(socket.AF_UNIX)
    back_end.bind(str(tmp_path / "back"))
    back_end.listen()
    mask = FeatureMask(tmp_path / "guest", tmp_path / "back", back_end_connects=False)
    with socket.socket(socket.AF_UNIX) as guest:
        guest.connect(str(tmp_path / "guest"))
        switch, _ = back_end.accept()
        for request, offered, seen in (
            (1, (1 << 17) | (1 << 34) | (1 << 32) | 1, (1 << 32) | 1),  # features
            (15, 0b1011, 0b1010),  # protocol features, without MQ
            (17, 0b1011, 0b1011),  # anything else
        ):
            guest.sendall(struct.pack("<III", request, 1, 0))
            assert switch.recv(12) == struct.pack("<III", request, 1, 0)
            switch.sendall(struct.pack("<IIIQ", request, 5, 8, offered))
            assert guest.recv(20, socket.MSG_WAITALL) == struct.pack("<IIIQ", request, 5, 8, seen)
        switch.close()
        assert guest.recv(1) == b""
    mask.close()


def test_the_mask_passes_descriptors(tmp_path: Path) -> None:
    listener = threading.Event()
    mask = FeatureMask(tmp_path / "guest", tmp_path / "back", back_end_connects=True)
    with socket.socket(socket.AF_UNIX) as switch, socket.socket(socket.AF_UNIX) as guest:
        switch.connect(str(tmp_path / "back"))
        guest.connect(str(tmp_path / "guest"))
        with (tmp_path / "memory").open("wb+") as memory:
            memory.write(b"guest memory")
            memory.flush()
            socket.send_fds(guest, [struct.pack("<IIIQ", 5, 1, 8, 0)], [memory.fileno()])
        message, descriptors, _, _ = socket.recv_fds(switch, 100, 4)
        assert message == struct.pack("<IIIQ", 5, 1, 8, 0)
        with open(descriptors[0], "rb") as received:  # noqa: PTH123
            received.seek(0)
            assert received.read() == b"guest memory"
    listener.set()
    mask.close()


def test_a_listening_socket_is_told_from_a_dead_one(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    code = f"import socket, signal; s = socket.socket(1); s.bind({json.dumps(str(path))}); s.listen(); signal.pause()"
    process = session.start("listener", ["python3", "-c", code])
    until(lambda: procfs.listens(process.pid, path), timeout=60, what="the socket")
    process.kill()
    assert path.exists()
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(str(path))
    assert not procfs.listens(1, path)


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.parametrize("path", ["bridge", "memlane"])
def test_guests_of_two_hosts_reach_each_other_over_the_cable(session: Session, path: str) -> None:
    other = session.enter_context(Session(session.logs / "other"))
    both = Apart(session, paths.make(session, path), (other, paths.make(other, path)), ["s1", "s2"])
    bed = Bed(session, both, BedSettings([GuestKind.NETNS, GuestKind.UML, GuestKind.NETNS], names=["c1", "s1", "s2"]))
    near, far, third = bed.guests
    assert near.run(f"ping -c 3 -i 0.1 -W 5 {ipv4(1)}").status == 0
    assert third.run(f"ping -c 1 -W 5 {ipv4(1)}").status == 0
    cable = network.counters("cable0", namespace=f"{session.name}-cable")
    assert cable["tx_packets"] >= 3
    assert both.tallies()["frames"] >= 12
    far.run(f"ping -c 3 -i 0.1 -W 5 {ipv4(2)}").check()
    assert network.counters("cable0", namespace=f"{session.name}-cable")["tx_packets"] <= cable["tx_packets"] + 8


@pytest.mark.real
@pytest.mark.skipif(frr.missing() is not None, reason="FRR is not installed, or the switch not built")
@pytest.mark.parametrize("path", ["bridge", "memlane"])
def test_guests_of_two_hosts_reach_each_other_over_vxlan(session: Session, path: str) -> None:
    other = session.enter_context(Session(session.logs / "other"))
    both = Overlay(session, paths.make(session, path), (other, paths.make(other, path)), ["s1", "s2"])
    bed = Bed(session, both, BedSettings([GuestKind.NETNS, GuestKind.UML, GuestKind.NETNS], names=["c1", "s1", "s2"]))
    near, _, third = bed.guests
    # At first FRR may still be getting to know its neighbour.
    until(
        lambda: near.run(f"ping -c 1 -W 1 {ipv4(1)}").status == 0, timeout=40, what="the other host's guest to answer"
    )
    assert third.run(f"ping -c 1 -W 5 {ipv4(1)}").status == 0
    near.run(
        ["ping", "-c", "2", "-i", "0.1", "-W", "5", "-M", "do", "-s", "1472", ipv4(2)]
    ).check()  # 1500 bytes, whole
    assert len(both.helpers()) == 4


def test_memlane_tells_its_drops_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    port = {"transmit-frames": 1, "kicks": 1, "interrupts": 1, "receive-bytes": 1}
    ports = [port | {"drops": {"link-loss": 2}}, port | {"drops": {"link-loss": 1, "same-port": 4}}]
    told = {"ports": ports, "workers": [], "cycles-per-second": 1}
    monkeypatch.setattr(Memlane, "report", lambda _: told)
    with Session() as session:
        tallies = Memlane(session).tallies()
    assert {name: count for name, count in tallies.items() if name.startswith("drops")} == {
        "drops": 7, "drops.link-loss": 3, "drops.same-port": 4,
    }  # fmt: skip
