"""Guests: machines with network stacks of their own, all booted, used and ended in the same way.

`guest.py` is the common interface; `netns.py`, `uml.py` and `qemu.py` hold one kind each; `kvm.py` finds out whether
hardware virtualisation really works here; `mconsole.py` talks to a running UML kernel.
"""

from collections.abc import Sequence
from typing import Any

from memlane_lab.errors import LabError
from memlane_lab.guests.guest import Guest
from memlane_lab.guests.netns import NetnsGuest
from memlane_lab.guests.qemu import KvmGuest, TcgGuest
from memlane_lab.guests.uml import UmlGuest
from memlane_lab.ports import GuestKind, Nic
from memlane_lab.session import Session

KINDS: dict[GuestKind, type[Guest]] = {guest.kind: guest for guest in (NetnsGuest, UmlGuest, KvmGuest, TcgGuest)}


def make(session: Session, kind: GuestKind, name: str, nics: Sequence[Nic] = (), **options: Any) -> Guest:  # noqa: ANN401
    """A guest of that kind, not yet booted; `options` are those of `Guest`."""
    return KINDS[kind](session, name, nics, **options)


def choose(wanted: str = "auto") -> GuestKind:
    """The kind that the operator names, or the best that this machine can run: KVM, then UML, then TCG."""
    if wanted != "auto":
        return GuestKind(wanted)
    for kind in (GuestKind.KVM, GuestKind.UML, GuestKind.TCG):
        if KINDS[kind].missing() is None:
            return kind
    raise LabError("this machine can run none of the guests: `memlane-lab doctor` says why")


__all__ = ["KINDS", "Guest", "GuestKind", "choose", "make"]
