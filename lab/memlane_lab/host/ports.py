"""Ports, endpoints and NICs: the interface between paths and guests.

A path is laid for **ports** and answers each with an **endpoint**; the two together are a **NIC**, which a guest is
booted with.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class GuestKind(str):
    """A kind of guests, by its name in experiments and on the command line. The lab's own kinds are named here.

    No enumeration: a file in `guests/` brings its kind with it.
    """

    __slots__ = ()
    NETNS: ClassVar["GuestKind"]
    """Network, process and mount namespaces of the host's kernel: no virtualisation."""
    UML: ClassVar["GuestKind"]
    """User Mode Linux."""
    KVM: ClassVar["GuestKind"]
    """QEMU with hardware virtualisation."""
    TCG: ClassVar["GuestKind"]
    """QEMU without: every instruction is translated."""


GuestKind.NETNS, GuestKind.UML = GuestKind("netns"), GuestKind("uml")
GuestKind.KVM, GuestKind.TCG = GuestKind("kvm"), GuestKind("tcg")


@dataclass(frozen=True)
class Port:
    """A guest's place on a path, before the path is laid."""

    name: str
    """Unique on its path; short (at most 8 characters), because device names are made from it."""
    kind: GuestKind
    mac: str
    mtu: int = 1500
    queues: int = 1
    """Queue pairs."""
    ring: int | None = None
    """Entries of each ring of its NIC; none: the usual number."""
    receive_rate: int = 0
    """Bit/s that the path delivers to it at most; 0: as fast as it goes."""


@dataclass(frozen=True)
class VhostUser:
    """A vhost-user back end's Unix socket."""

    socket: Path
    guest_listens: bool = False
    """Whether the back end connects to the socket, so that the guest's side (QEMU) must listen there."""


@dataclass(frozen=True)
class Tap:
    """A TAP, with virtio-net headers, for the virtual machine monitor to open."""

    device: str
    namespace: str
    """The network namespace that holds it; the monitor must run there."""
    emulated: str = ""
    """The emulated NIC by which the guest sees it, as QEMU names it; none: virtio-net."""


@dataclass(frozen=True)
class Device:
    """A kernel network device that a netns guest takes into its own namespace."""

    device: str
    namespace: str | None
    """Where it is now; None is the host's own namespace."""


@dataclass(frozen=True)
class Vde:
    """A port of a vde_switch: User Mode Linux's own way to a daemon that switches."""

    switch: Path
    """The folder of its sockets."""


Endpoint = VhostUser | Tap | Device | Vde


@dataclass(frozen=True)
class Uplink:
    """Where a path's segment goes on at other hosts: by a VXLAN device in a namespace, which is the host."""

    namespace: str
    local: str
    """The host's address on the underlay."""
    vni: int


@dataclass(frozen=True)
class Nic:
    """A port and its endpoint."""

    port: Port
    endpoint: Endpoint


def mac(number: int) -> str:
    """The `number`th (0 to 65535) locally administered address of the lab."""
    return f"02:6d:6c:00:{number >> 8:02x}:{number & 0xFF:02x}"
