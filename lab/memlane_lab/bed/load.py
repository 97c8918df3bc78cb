"""Load: a computation inside guests beside their traffic, the papers' softloader, by stress-ng."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.guests.control import Running


@contextmanager
def applied(guests: Sequence[Guest], share: int, slice_ms: int = 0) -> Iterator[None]:
    """Keeps every processor of the guests busy to `share` per cent; 0 is no load at all.

    It computes for `slice_ms` milliseconds at a time; 0: as long as stress-ng likes.
    """
    if not share:
        yield
        return
    running = [_start(guest, share, slice_ms) for guest in guests]
    for guest in guests:
        until(partial(_computes, guest), timeout=30, what=f"guest {guest.name}'s load to start")
    yield
    for load in running:
        load.kill()
        load.wait(10)


def _start(guest: Guest, share: int, slice_ms: int) -> Running:
    # Without a level it wants memory as large as the host's largest cache, which no guest may have.
    small = ["--cache-level", "1"]
    slices = ["--cpu-load-slice", str(slice_ms)] if slice_ms else []
    return guest.spawn(
        ["stress-ng", "--quiet", *small, "--cpu", str(guest.processors), "--cpu-load", str(share), *slices]
    )


def _computes(guest: Guest) -> bool:
    return guest.run("ps | grep -q [s]tress-ng-cpu").status == 0
