"""Real guests of every kind, and real paths between them."""

import random
import signal

import pytest

from memlane_lab import guests, paths
from memlane_lab.bed import bed
from memlane_lab.bed.bed import Bed, BedSettings
from memlane_lab.bed.testing import assert_reachable, tcp_throughput
from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest, mconsole
from memlane_lab.guests.control import GuestGone
from memlane_lab.guests.qemu import KvmGuest
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.process import members
from memlane_lab.host.session import Session
from tests.testpmd import Testpmd

pytestmark = pytest.mark.real

NETNS, UML, TCG, KVM = GuestKind.NETNS, GuestKind.UML, GuestKind.TCG, GuestKind.KVM
KINDS = [NETNS, UML, TCG, *([KVM] if KvmGuest.missing() is None else [])]
"""All that this machine can run; `memlane-lab doctor` says why KVM is not among them."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_guest_lives_and_dies(session: Session, kind: GuestKind) -> None:
    guest = guests.make(session, kind, "a")
    guest.boot()
    _check_commands(guest)
    _check_accounts(guest)
    _check_crash(guest)
    process = guest.process
    guest.stop()
    assert members(process.pid) == []
    if kind != NETNS:  # it went by itself, by switching its power off
        assert process.exit_code == 0
        assert "Power down" in process.log.read_text()


def _check_commands(guest: Guest) -> None:
    assert guest.run("hostname").check().stdout == "a\n"
    assert guest.run("exit 7").status == 7
    data = random.Random(3).randbytes(50_000)
    guest.put("/tmp/file", data)
    assert guest.get("/tmp/file") == data
    programs = ["iperf3", "sockperf", "stress-ng", "ethtool", "ip", "tc", "ss", "ping", "busybox"]
    for program in programs:
        assert guest.run(["which", program]).status == 0, program
    assert (
        "bogo ops"
        in guest.run("stress-ng --cache-level 1 --cpu 1 --timeout 1 --metrics-brief 2>&1", timeout=60).check().stdout
    )


def _check_accounts(guest: Guest) -> None:
    host, inside = guest.cpu(), guest.inside().cpu
    burner = guest.spawn("while :; do :; done")
    until(lambda: (guest.cpu() - host).total > 0.3, timeout=60, what="the host to count")
    until(lambda: (guest.inside().cpu - inside).busy > 0.3, timeout=60, what="the guest to count")
    burner.kill()


def _check_crash(guest: Guest) -> None:
    running = guest.spawn("sleep 1000")
    pid = guest.process.pid
    guest.kill()
    assert not guest.alive
    assert members(pid) == []
    with pytest.raises(GuestGone):
        running.wait(10)
    guest.boot()
    assert guest.run("ls /tmp/file").status != 0


@pytest.mark.parametrize("kind", KINDS)
def test_two_guests_talk_over_the_bridge(session: Session, kind: GuestKind) -> None:
    pair = Bed(session, paths.make(session, "bridge"), BedSettings([kind, kind]))
    assert_reachable(pair, 0, 1)
    assert_reachable(pair, 1, 0)
    assert tcp_throughput(pair, 0, 1) > 10e6
    assert tcp_throughput(pair, 1, 0) > 10e6
    assert pair.path.counters()["a"]["rx_packets"] > 100


def test_two_guests_talk_through_their_own_daemon(session: Session) -> None:
    pair = Bed(session, paths.make(session, "vde"), BedSettings([UML, UML]))
    assert_reachable(pair, 0, 1)
    assert tcp_throughput(pair, 1, 0) > 10e6
    assert [process.name for process in pair.path.parties()] == ["vde_switch"]


def test_all_kinds_share_a_bridge_with_large_frames(session: Session) -> None:
    everybody = Bed(session, paths.make(session, "bridge"), BedSettings(KINDS, mtu=8000))
    for source in range(len(KINDS)):
        for target in range(len(KINDS)):
            whole = ["ping", "-c", "2", "-i", "0.2", "-M", "do", "-s", str(8000 - 28), bed.ipv4(target)]
            assert "2 received" in everybody.guests[source].run(whole, timeout=30).stdout


@pytest.mark.timed
def test_namespaces_talk_without_a_switch(session: Session) -> None:
    pair = Bed(session, paths.make(session, "none"), BedSettings([NETNS, NETNS]))
    assert_reachable(pair, 0, 1)
    assert tcp_throughput(pair, 0, 1) > 500e6


@pytest.mark.timed
def test_an_emulated_nic_works(session: Session) -> None:
    pair = Bed(session, paths.make(session, "e1000"), BedSettings([TCG, TCG]))
    assert "driver: e1000" in pair.guests[0].run("ethtool -i net0").stdout
    assert_reachable(pair, 0, 1)
    assert tcp_throughput(pair, 0, 1) > 20e6


@pytest.mark.parametrize(
    "kinds",
    [(UML, UML), pytest.param((UML, TCG), marks=pytest.mark.prove)],
    ids=lambda kinds: "-".join(kinds),
)
def test_guests_talk_through_a_vhost_user_switch(session: Session, kinds: tuple[GuestKind, ...]) -> None:
    pair = Bed(session, Testpmd(session), BedSettings(kinds))
    for guest in pair.guests:
        assert "driver: virtio_net" in guest.run("ethtool -i net0").stdout
    assert_reachable(pair, 0, 1)
    assert tcp_throughput(pair, 0, 1) > 10e6


@pytest.mark.parametrize("kind", [UML, pytest.param(TCG, marks=pytest.mark.prove)])
def test_guests_survive_their_switch(session: Session, kind: GuestKind) -> None:
    """The switch dies and comes back; a guest reboots itself; a guest crashes and boots: each time they talk again."""
    switch = Testpmd(session)
    pair = Bed(session, switch, BedSettings([kind, kind]))
    boots = [guest.get("/proc/sys/kernel/random/boot_id") for guest in pair.guests]
    switch.kill()
    switch.start()
    for index, guest in enumerate(pair.guests):
        guest.plug(0)
        pair.address(index)
    assert_reachable(pair, 0, 1)
    assert [guest.get("/proc/sys/kernel/random/boot_id") for guest in pair.guests] == boots

    pair.guests[0].reboot()
    pair.address(0)
    assert_reachable(pair, 0, 1)
    pair.guests[0].kill()
    pair.guests[0].boot()
    pair.address(0)
    assert_reachable(pair, 0, 1)
    assert pair.guests[0].get("/proc/sys/kernel/random/boot_id") != boots[0]


def test_a_namespace_survives_a_crash_with_its_nic(session: Session) -> None:
    pair = Bed(session, paths.make(session, "bridge"), BedSettings([NETNS, UML]))
    pair.guests[0].kill()
    pair.guests[0].boot()
    pair.address(0)
    assert_reachable(pair, 0, 1)


@pytest.mark.parametrize("kinds", [pytest.param((UML, TCG), marks=pytest.mark.prove), (NETNS, UML)])
def test_open_vswitch_carries_traffic(session: Session, kinds: tuple[GuestKind, GuestKind]) -> None:
    pair = Bed(session, paths.make(session, "ovs-dpdk"), BedSettings(kinds))
    assert_reachable(pair, 0, 1)
    assert tcp_throughput(pair, 0, 1) > 10e6
    (switch,) = pair.path.parties()
    assert switch.cpu().total > 0.5
    until(lambda: pair.path.counters()["a"].get("rx_packets", 0) > 100, timeout=60, what="the port's counters")


def test_a_guest_that_does_not_boot_shows_its_console(session: Session) -> None:
    guest = guests.make(session, UML, "a", memory=1)
    with pytest.raises(LabError, match=r"guest-a.*ended|vain.*\n"):
        guest.boot(timeout=15)


def test_a_kernel_answers_its_console(session: Session) -> None:
    guest = guests.make(session, UML, "a")
    guest.boot()
    console = session.folder / "uml-a" / "console" / "mconsole"
    assert "Linux" in mconsole.ask(console, "version")
    with pytest.raises(LabError, match="refuses `config nonsense=1`"):
        mconsole.ask(console, "config nonsense=1")
    with pytest.raises(LabError, match="does not answer"):
        mconsole.ask(console.with_name("none"), "version")


@pytest.mark.parametrize("path", ["bridge", pytest.param("testpmd", marks=pytest.mark.prove)])
def test_a_nic_can_have_two_queue_pairs(session: Session, path: str) -> None:
    laid = Testpmd(session) if path == "testpmd" else paths.make(session, path)
    pair = Bed(session, laid, BedSettings([TCG, TCG], queues=2, processors=2))
    current = pair.guests[0].run("ethtool -l net0").stdout.split("Current hardware settings")[1]
    assert "Combined:\t2" in current or "Combined: 2" in " ".join(current.split())
    assert_reachable(pair, 0, 1)


def test_guests_can_be_kept_on_a_cpu(session: Session) -> None:
    guest = guests.make(session, UML, "a", cpus=[0])
    guest.boot()
    (line,) = (row for row in _status(guest.process.pid) if row.startswith("Cpus_allowed_list"))
    assert line.split()[1] == "0"


def _status(pid: int) -> list[str]:
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        return status.read().splitlines()


def test_many_guests_share_a_bridge(session: Session) -> None:
    crowd = Bed(session, paths.make(session, "bridge"), BedSettings([UML] * 12, memory=32))
    flood = crowd.guests[0].spawn(["ping", "-f", "-w", "1", bed.ipv4(11)])
    assert_reachable(crowd, 3, 7)
    flood.signal(signal.SIGINT)
    flood.wait(10)
