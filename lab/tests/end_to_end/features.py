"""Features that a guest lacks: switched off while it runs, or never agreed to.

A **mix** is a list of `ethtool -K` words for a running guest. A **lack** is a set of virtio features that a guest never
sees: QEMU leaves them out by properties of the device; from User Mode Linux, which takes all it is offered, a
go-between hides them.
"""

from dataclasses import dataclass

from memlane_lab.guests import Guest

SENDER_MIXES = {
    "all": "",
    "no-tso": "tso off",
    "no-tso-gso": "tso off gso off",
    "no-checksum": "tso off tx off",
    "no-scatter": "tso off tx off sg off gso off",
}
"""Offloads that a sender can switch off, from none to all."""
RECEIVER_MIXES = {"all": "", "no-gro": "gro off"}
"""Offloads that a receiver can switch off. Those of its hardware are agreed once (see `Lack`): virtio_net has no switch
for them (User Mode Linux), or one (rx-gro-hw) that QEMU keeps from the back end."""


def switch(guest: Guest, words: str) -> None:
    """Switches features of net0, such as "tso off gso off"; nothing if there are no words."""
    if words:
        guest.run(["ethtool", "-K", "net0", *words.split()]).check()


def switch_back(guest: Guest, words: str) -> None:
    """Undoes `switch`."""
    switch(guest, words.replace(" off", " on"))


@dataclass(frozen=True)
class Lack:
    """Features that a guest never agrees to."""

    bits: tuple[int, ...] = ()
    """Numbers of virtio features (virtio 1.4, sections 5.1.3 and 6)."""
    device: str = ""
    """Properties of QEMU's virtio-net device, separated by commas."""

    @property
    def mask(self) -> int:
        """The features as a number."""
        return sum(1 << bit for bit in self.bits)

    def __add__(self, other: "Lack") -> "Lack":
        return Lack(self.bits + other.bits, ",".join(filter(None, (self.device, other.device))))


_GUEST_ECN = Lack((9,), "guest_ecn=off")
_HOST_ECN = Lack((13,), "host_ecn=off")
_GUEST_TSO = Lack((7, 8, 54, 55), "guest_tso4=off,guest_tso6=off") + _GUEST_ECN
_GUEST_CHECKSUM = Lack((1,), "guest_csum=off,guest_ufo=off") + _GUEST_TSO
_HOST_TSO = Lack((11, 12, 56), "host_tso4=off,host_tso6=off") + _HOST_ECN
_HOST_CHECKSUM = Lack((0,), "csum=off,gso=off,host_ufo=off") + _HOST_TSO
_MERGEABLE = Lack((15,), "mrg_rxbuf=off")
_EVENT_INDEX = Lack((29,), "event_idx=off")
_INDIRECT = Lack((28,), "indirect_desc=off")

LACKS = {
    "nothing": Lack(),
    "guest-ecn": _GUEST_ECN,
    "guest-tso4": Lack((7,), "guest_tso4=off"),
    "guest-tso": _GUEST_TSO,
    "guest-checksum": _GUEST_CHECKSUM,
    "host-tso": _HOST_TSO,
    "host-checksum": _HOST_CHECKSUM,
    "mergeable": _MERGEABLE,
    "mergeable-guest-tso": _MERGEABLE + _GUEST_TSO,
    "mergeable-guest-checksum": _MERGEABLE + _GUEST_CHECKSUM,
    "event-index": _EVENT_INDEX,
    "indirect": _INDIRECT,
    "everything": _GUEST_CHECKSUM + _HOST_CHECKSUM + _MERGEABLE + _EVENT_INDEX + _INDIRECT,
}
"""Lacks by name."""
