"""The interface of all paths: the kinds of guests served, laying, counters, processes, clearing."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from memlane_lab.common.errors import NotAvailable
from memlane_lab.host.ports import Endpoint, GuestKind, Nic, Port, Uplink
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session

DROPS = "drops."
"""Before a drop reason, in the name of its tally."""


class NetworkPath(ABC):
    """A path, from its description to its end."""

    name: ClassVar[str]
    """As experiments write it."""
    title: ClassVar[str]
    """Its description, in a few words."""
    rank: ClassVar[int] = 50
    """Where it stands in lists: smaller first."""
    only: ClassVar[GuestKind | None] = None
    """The kind of guests that it always joins, regardless of the chosen kind, or None."""
    joins_pairs: ClassVar[bool] = False
    """Whether its ports reach their partner only: the first the second, the third the fourth, and so on."""
    polls: ClassVar[bool] = False
    """Whether it keeps a CPU busy even when idle, so that nothing else can be measured beside it."""

    limits: ClassVar[bool] = False
    """Whether it can keep to a port's receive rate."""

    spreads: ClassVar[bool] = False
    """Whether its segment can go on at other hosts."""
    uplink: Uplink | None = None
    """Where its segment goes on at other hosts; set before it is laid."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.nics: dict[str, Nic] = {}
        """The NICs made by `lay`, by port name."""

    @classmethod
    def missing(cls) -> str | None:
        """Why the path cannot be laid on this machine, with the remedy, or None."""
        return None

    @classmethod
    @abstractmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        """Why guests of that kind cannot be plugged in, or None if they can."""

    @abstractmethod
    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        """Makes an endpoint for each port, all on one segment."""

    def lay(self, ports: Sequence[Port]) -> list[Nic]:
        """Lays the path for these ports; returns a NIC for each, in their order, for guests to be booted with."""
        if reason := self.missing():
            raise NotAvailable(f"path {self.name} cannot be set up: {reason}")
        for port in ports:
            if reason := self.refuses(port.kind):
                raise NotAvailable(f"path {self.name} cannot serve {port.kind} guests: {reason}")
            if port.receive_rate and not self.limits:
                raise NotAvailable(
                    f"path {self.name} cannot limit what port {port.name} is sent: leave receive_rates out"
                )
        if self.uplink and not self.spreads:
            raise NotAvailable(f"path {self.name} cannot span hosts")
        endpoints = self._lay(ports)
        self.nics = {port.name: Nic(port, endpoints[port.name]) for port in ports}
        return list(self.nics.values())

    @classmethod
    def kept_to(cls, cpu: int) -> dict[str, Any] | None:  # noqa: ARG003
        """The options that keep the network's own work to one of the host's CPUs.

        None where it has no process of its own: its work is done in the senders' calls.
        """
        return None

    def counters(self) -> dict[str, dict[str, int]]:
        """The path's counters so far: by port, by the counter's own name there."""
        return {}

    def tallies(self) -> dict[str, float]:
        """The path's counters so far, all ports together, as far as it counts at all.

        Of these names: frames (taken from senders), drops, kicks, path_interrupts, delivered (bytes), worker_busy
        (seconds), worker_cycles, worker_frames, sleeps, and drops.REASON for the drops of each reason.
        """
        return {}

    def held(self) -> dict[str, float]:
        """Bytes of its own memory, as far as it tells: frames_held (frames that lie there now), pools (set aside)."""
        return {}

    def kicks(self) -> dict[str, int]:
        """How often each port's guest has woken the network so far, by the port's name, if the path counts that."""
        return {}

    def parties(self) -> list[HostProcess]:
        """The processes that are the network; none where the host's kernel does its work inside others' calls."""
        return []

    def restart(self) -> None:
        """Ends the network's process as a crash would, and starts it again."""
        raise NotAvailable(f"path {self.name} has no process that could be restarted")

    def helpers(self) -> list[HostProcess]:
        """Processes that the network needs, but that move no frames."""
        return []

    @abstractmethod
    def clear(self) -> None:
        """Takes the path away while its guests may still live. Needless at the session's end."""
