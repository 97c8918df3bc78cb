"""Hosts of a data centre on this machine: namespaces, and the underlay between them."""

from collections.abc import Sequence

from memlane_lab.host import network
from memlane_lab.host.session import Session

HEADERS = 50
"""Bytes of VXLAN over IPv4 before a frame's payload (RFC 7348)."""
DEVICE = "underlay"
"""The device of each host that leads to the others."""


def lay(session: Session, places: Sequence[str], mtu: int) -> None:
    """Joins namespaces, each of which is a host with the address `address(number)`, by an underlay of this MTU.

    Two are joined by a veth pair, more by one each to a bridge.
    """
    for number, place in enumerate(places):
        network.silence(place)
        network.change(place, "link set dev lo up")
        if number == 0 and len(places) == 2:
            _veth(place, DEVICE, places[1], mtu)
    if len(places) > 2:
        middle = session.namespace("underlay")
        network.silence(middle)
        network.add_bridge("fabric", namespace=middle, mtu=mtu)
        for number, place in enumerate(places):
            _veth(middle, f"host{number}", place, mtu)
            network.change(middle, f"link set dev host{number} master fabric up")
    for number, place in enumerate(places):
        network.change(place, f"address add {address(number)}/24 dev {DEVICE}", f"link set dev {DEVICE} up")


def address(number: int) -> str:
    """The address of host `number` on the underlay."""
    return f"10.78.0.{number + 1}"


def _veth(place: str, device: str, other: str, mtu: int) -> None:
    network.change(place, f"link add dev {device} mtu {mtu} type veth peer name {DEVICE} mtu {mtu} netns {other}")
