"""Each guest's own account, read over its control channel, all guests at a time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from memlane_lab.guests import Guest
from memlane_lab.meters import reading
from memlane_lab.meters.reading import Reading

LOSSES = {"discards": "Ip.OutDiscards", "unassembled": "Ip.ReasmFails", "overflows": "Udp.RcvbufErrors"}
"""Where datagrams get lost inside guests, in the order in which they might: by the guest's own counters."""


def read(guests: Sequence[Guest]) -> list[Reading]:
    """A reading for each guest."""
    with ThreadPoolExecutor(max_workers=len(guests)) as readers:
        return list(readers.map(lambda guest: reading.take(lambda: _counts(guest)), guests))


def _counts(guest: Guest) -> dict[str, float]:
    cpu, received, interrupts = guest.inside_cpu(), guest.received(), guest.interrupts()
    counts: dict[str, float] = {**vars(cpu), "frames": received.frames, "bytes": received.bytes}
    told = guest.snmp()
    counts |= {name: told[counter] for name, counter in LOSSES.items()}
    return counts if interrupts is None else counts | {"interrupts": interrupts}
