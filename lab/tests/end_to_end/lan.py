"""Guests on the switch: planned, booted together, addressed.

Guest number i is called a, b, c ..., and has the addresses `bed.ipv4(i)` and `bed.ipv6(i)` on its net0, as in the
lab's own beds. Unlike those, each guest here can differ from the others, and each port be stated in detail.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from memlane_lab import guests
from memlane_lab.bed import bed
from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.guests.netns import NetnsGuest
from memlane_lab.guests.qemu import TcgGuest
from memlane_lab.host import ports
from memlane_lab.host.ports import Device, GuestKind, Nic, Port
from memlane_lab.host.session import Session
from memlane_lab.images.root import RootImage
from tests.end_to_end.features import Lack
from tests.end_to_end.switch import Switch
from tests.end_to_end.transfer import iperf

UML, TCG, HOST = GuestKind.UML, GuestKind.TCG, GuestKind.NETNS
BEDS = {"uml-uml": (UML, UML), "tcg-tcg": (TCG, TCG), "uml-tcg": (UML, TCG)}
"""The pairs of guests that most tests run on."""
PAIRS = [pytest.param(name, marks=pytest.mark.prove) if name == "tcg-tcg" else name for name in BEDS]
"""The same, as parameters: two of QEMU show little that the mixed pair does not, and take the longest."""
_TRIES = 5
"""A machine that is busy with other things keeps a guest's receiver from running for most of a second, now and then."""
ROOM_FOR_DATAGRAMS = "for f in /proc/sys/net/core/[rw]mem_max; do echo 8388608 >$f; done"
"""Bytes that may wait in a socket, at most: for a guest with a receiver that is not always running."""


@dataclass(frozen=True)
class Plan:
    """The plan of a guest and its port."""

    kind: GuestKind
    lack: Lack = field(default_factory=Lack)
    device: str = ""
    """Further properties of QEMU's virtio-net device, separated by commas."""
    mtu: int = 1500
    queues: int = 1
    processors: int = 1
    memory: int | None = None
    """MiB; None: the lab's usual."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the port in the network's file."""
    image: RootImage | None = None
    """Its root tree; None: the usual one."""


class Lan:
    """A switch and its guests."""

    def __init__(
        self,
        session: Session,
        plans: Sequence[Plan | GuestKind],
        *,
        others: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        """Starts the switch and boots one guest for each plan.

        `settings` go to the top of the network's file; `others` are vhost-user ports for programs that are no guests:
        their names, with their keys in the file.
        """
        others = others or {}
        self._plans = [plan if isinstance(plan, Plan) else Plan(plan) for plan in plans]
        named = {bed.name(index): plan for index, plan in enumerate(self._plans)}
        hidden = {name: plan.lack.mask if plan.kind is UML else 0 for name, plan in named.items()}
        stated = {name: plan.stated for name, plan in named.items()} | dict(others)
        self.switch = Switch(session, stated, hidden, **settings)
        wanted = [
            Port(name, plan.kind, ports.mac(index + 1), plan.mtu, plan.queues)
            for index, (name, plan) in enumerate(named.items())
        ]
        unused = [Port(name, TCG, ports.mac(index + 101)) for index, name in enumerate(others)]
        nics = self.switch.lay([*wanted, *unused])[: len(wanted)]
        self.guests: list[Guest] = [_guest(session, nic, plan) for nic, plan in zip(nics, self._plans, strict=True)]
        for guest in self.guests:
            guest.start()
        for index, guest in enumerate(self.guests):
            guest.wait_ready()
            self.address(index)
            if guest.kind is not HOST:
                guest.run(ROOM_FOR_DATAGRAMS).check()
        self.switch.wait_running(*named)

    def tell(self) -> str:
        """The state of switch and guests now, to look into a failure."""
        told = [("switch", _told(lambda: json.dumps(self.switch.report(), indent=1)))]
        told += [(guest.name, _told(partial(_counters_of, guest))) for guest in self.guests]
        return "\n".join(f"{name}: {text}" for name, text in told)

    def address(self, index: int) -> None:
        """Gives a guest its addresses (again, after a reboot or a new plug)."""
        self.guests[index].address(0, f"{bed.ipv4(index)}/16", f"{bed.ipv6(index)}/64")

    def reach(self, source: int, target: int, *, timeout: float = 30.0) -> None:
        """Waits until guest `source` gets an answer from guest `target` over IPv4 and IPv6."""
        for address in (bed.ipv4(target), bed.ipv6(target)):
            self.wait_answer(source, address, timeout=timeout)

    def wait_answer(self, source: int, address: str, *, timeout: float = 30.0) -> None:
        """Waits until guest `source` gets an answer from an address."""
        command = ["ping", "-c", "1", "-W", "0.5", address]
        guest = self.guests[source]
        what = f"guest {guest.name} to get an answer from {address}"
        until(lambda: guest.run(command).status == 0, timeout=timeout, what=what)

    def ping(self, source: int, address: str, *options: str) -> None:
        """Insists on an answer to each of three pings from guest `source`."""
        # One by one: ping waits for late answers only as long as none has come at all (-W), or asks on meanwhile (-w).
        asked = shlex.join(["ping", "-c", "1", "-W", "20", *options, address])
        said = self.guests[source].run(f"for _ in 1 2 3; do {asked} || exit 1; done", timeout=80)
        assert said.status == 0, said.stdout + said.stderr

    def datagrams(self, source: int, target: int, address: str, *, length: int, rate: str) -> None:
        """Sends UDP for a second at a rate that every guest keeps up with, most of the time; insists on nearly all.

        Drops of the receiver's kernel because its program is not running are not the switch's loss.
        """
        tried: list[tuple[float, dict[str, Any]]] = []
        while len(tried) < _TRIES and not any(_nearly_all(*each) for each in tried):
            before = self.switch.port(bed.name(target))["receive-frames"]
            options = ("--udp", "--length", str(length), "--bitrate", rate, "--window", "1M")
            end = iperf(self.guests[source], self.guests[target], address, *options)["sum"]
            tried.append((self.switch.port(bed.name(target))["receive-frames"] - before, end))
        delivered, end = tried[-1]
        assert end["packets"] > 50, end
        assert delivered > 0.8 * end["packets"], self.switch.report()
        assert end["lost_percent"] < 50, end


def _nearly_all(delivered: float, end: dict[str, Any]) -> bool:
    """Whether enough was sent in a second of UDP, and nearly all of it delivered and received."""
    return bool(end["packets"] > 50 and delivered > 0.8 * end["packets"] and end["lost_percent"] < 50)


def _counters_of(guest: Guest) -> str:
    return guest.run("ip -s link show net0; ss -tino", timeout=5).stdout


def _told(source: Callable[[], str]) -> str:
    """The source's text, or why there is none: a failure is being looked into."""
    try:
        return source()
    except (LabError, AssertionError) as error:
        return str(error)


class _TunedGuest(TcgGuest):
    """A QEMU guest with further properties of its NIC."""

    def __init__(self, *arguments: Any, properties: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._properties = properties

    def _virtio_device(self, nic: Nic) -> str:
        return ",".join(filter(None, (super()._virtio_device(nic), self._properties)))


class _HostGuest(NetnsGuest):
    """The host's kernel, in the namespace in which the switch has made its TAP."""

    def __init__(self, session: Session, name: str, nic: Nic, **options: Any) -> None:
        super().__init__(session, name, [nic], **options)
        assert isinstance(nic.endpoint, Device)
        self._namespace = nic.endpoint.namespace

    def plug(self, index: int, timeout: float = 15.0) -> None:
        """Nothing is to be taken from elsewhere: the switch makes its TAP in the guest's namespace."""
        Guest.plug(self, index, timeout)


def _guest(session: Session, nic: Nic, plan: Plan) -> Guest:
    options = {"memory": plan.memory, "processors": plan.processors, "image": plan.image}
    name = nic.port.name
    match plan.kind:
        case GuestKind.TCG:
            properties = ",".join(filter(None, (plan.lack.device, plan.device)))
            return _TunedGuest(session, name, [nic], properties=properties, **options)
        case GuestKind.NETNS:
            return _HostGuest(session, name, nic, **options)
        case kind:
            return guests.make(session, kind, name, [nic], **options)
