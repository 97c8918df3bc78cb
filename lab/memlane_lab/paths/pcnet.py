"""The bridge again, but seen by the guests through an emulated AMD PCnet, as virtual machines had it about 2005."""

from typing import ClassVar

from memlane_lab.paths.e1000 import E1000


class PcNet(E1000):
    """TAP and Linux bridge; PCnet in the guests."""

    name: ClassVar[str] = "pcnet"
    title: ClassVar[str] = "TAP + Linux bridge, emulated AMD PCnet"
    rank: ClassVar[int] = 21
    emulated: ClassVar[str] = "pcnet"
