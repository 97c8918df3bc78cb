"""The bridge at its best where fairness is asked: a limit that gives each sender a class of its own.

Without it a limit is a token bucket over one queue (FIFO), in which senders crowd each other out. The classes have to
be configured, for each receiver and each sender.
"""

from typing import ClassVar

from memlane_lab.host import network
from memlane_lab.host.ports import Port
from memlane_lab.paths.bridge import Bridge


class BridgeHtb(Bridge):
    """TAP and Linux bridge; limits by HTB with a class for each sender."""

    name: ClassVar[str] = "bridge-htb"
    title: ClassVar[str] = "TAP + Linux bridge, limits by HTB with a class for each sender"
    rank: ClassVar[int] = 11
    spreads: ClassVar[bool] = False

    def _limit(self, device: str, port: Port) -> None:
        senders = [each.mac for each in self._ports if each.name != port.name]
        network.share(device, port.receive_rate, senders, namespace=self._namespace)
