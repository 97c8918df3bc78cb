"""A bed: guests on a path, booted together and given addresses. Most tests and experiments begin with one."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from memlane_lab import guests
from memlane_lab.guests import Guest
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind, Nic, Port
from memlane_lab.host.session import Session
from memlane_lab.images.root import RootImage
from memlane_lab.paths import NetworkPath

_AT_A_TIME = 16
"""Guests that are given their NICs' addresses side by side."""


@dataclass(frozen=True)
class BedSettings:
    """The guests of a bed and their NICs: one guest for each of `kinds`."""

    kinds: Sequence[GuestKind]
    names: Sequence[str] = ()
    """Of the guests; none: a, b, c ..."""
    mtu: int = 1500
    queues: int = 1
    """Queue pairs of each NIC, where the kind of guest can have several."""
    ring: int | None = None
    """Entries of each ring of a NIC; see `Port`."""
    receive_rates: Mapping[str, int] = field(default_factory=dict)
    """Bit/s by a guest's name; see `Port`."""
    processors: int = 1
    cpus: Sequence[Sequence[int]] = ()
    """The host's CPUs that each guest is kept on; none: any."""
    memory: int | None = None
    """MiB of each guest; none: the kind's usual."""
    memories: Mapping[str, int] = field(default_factory=dict)
    """MiB by a guest's name, for guests that need more."""
    image: RootImage | None = None
    """The root tree of all guests; none: the usual one."""

    def ports(self) -> list[Port]:
        """The guests' ports, in their order."""
        names = self.names or [name(index) for index in range(len(self.kinds))]
        return [
            Port(
                named,
                kind,
                ports.mac(index + 1),
                self.mtu,
                self.queues if guests.KINDS[kind].has_queues else 1,
                self.ring,
                self.receive_rates.get(named, 0),
            )
            for index, (named, kind) in enumerate(zip(names, self.kinds, strict=True))
        ]

    def make(self, session: Session, index: int, nic: Nic) -> Guest:
        """Guest number `index`, not yet booted."""
        return guests.make(
            session,
            nic.port.kind,
            nic.port.name,
            [nic],
            memory=self.memories.get(nic.port.name, self.memory),
            processors=self.processors,
            cpus=self.cpus[index] if self.cpus else (),
            image=self.image,
        )


class Bed:
    """Guests numbered from 0 on one segment: number i has the addresses `ipv4(i)` and `ipv6(i)` on its net0."""

    def __init__(self, session: Session, path: NetworkPath, settings: BedSettings) -> None:
        """Lays the path and boots the guests."""
        self.path = path
        nics = path.lay(settings.ports())
        self.guests = [settings.make(session, index, nic) for index, nic in enumerate(nics)]
        self.named = {guest.name: guest for guest in self.guests}
        self.services: dict[str, Any] = {}
        """Services that workloads have started for the lifetime of the bed, by name."""
        for guest in self.guests:
            guest.start()
        with ThreadPoolExecutor(max_workers=_AT_A_TIME) as waiting:
            list(waiting.map(self._await, range(len(self.guests))))

    def _await(self, index: int) -> None:
        self.guests[index].wait_ready()
        self.address(index)

    def address_of(self, named: str) -> str:
        """The IPv4 address of the guest of that name."""
        return ipv4(list(self.named).index(named))

    def restart(self, named: str) -> None:
        """The guest's power fails, and it boots again."""
        guest = self.named[named]
        guest.kill()
        guest.boot()
        self.address(self.guests.index(guest))

    def restart_network(self) -> None:
        """Kills the switch's process and starts it again; guests that lost their NIC with it get it back."""
        self.path.restart()
        for index, guest in enumerate(self.guests):
            if not guest.connects_again:
                guest.plug(0)
                self.address(index)

    def address(self, index: int) -> None:
        """Gives a guest its addresses (again, after a reboot or a new plug)."""
        self.guests[index].address(0, f"{ipv4(index)}/16", f"{ipv6(index)}/64")


def name(index: int) -> str:
    """The name of guest number `index`: a, b, ... z, a1, b1 ..."""
    return chr(ord("a") + index % 26) + (str(index // 26) if index >= 26 else "")


def ipv4(index: int) -> str:
    """The IPv4 address of guest number `index`."""
    return f"10.77.{(index + 1) >> 8}.{(index + 1) & 0xFF}"


def ipv6(index: int) -> str:
    """The IPv6 address of guest number `index`."""
    return f"fd77::{index + 1:x}"
