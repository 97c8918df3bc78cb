"""The bridge again, but seen by the guests through an emulated Intel e1000: full virtualisation of a NIC."""

from typing import ClassVar

from memlane_lab.guests import KINDS
from memlane_lab.host.ports import GuestKind
from memlane_lab.paths.bridge import Bridge


class E1000(Bridge):
    """TAP and Linux bridge; e1000 in the guests."""

    name: ClassVar[str] = "e1000"
    title: ClassVar[str] = "TAP + Linux bridge, emulated e1000"
    rank: ClassVar[int] = 20
    emulated: ClassVar[str] = "e1000"

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        return None if KINDS[kind].emulates else "only QEMU emulates NICs"
