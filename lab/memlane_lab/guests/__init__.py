"""Guests: machines with network stacks of their own, all booted, used and ended in the same way.

`guest.py` is the common interface; each other file brings a kind (or helps one: `kvm.py` finds out whether hardware
virtualisation really works here, `mconsole.py` talks to a running UML kernel), and is found by being here.
"""

from collections.abc import Sequence
from typing import Any

from memlane_lab.common import plugins
from memlane_lab.common.errors import LabError
from memlane_lab.guests.guest import Guest
from memlane_lab.host.ports import GuestKind, Nic
from memlane_lab.host.session import Session

_FOUND = plugins.found(__name__, __path__, Guest, named_by="kind")  # type: ignore[type-abstract]
KINDS: dict[GuestKind, type[Guest]] = {guest.kind: guest for guest in sorted(_FOUND, key=lambda guest: guest.rank)}


def make(session: Session, kind: GuestKind, name: str, nics: Sequence[Nic] = (), **options: Any) -> Guest:  # noqa: ANN401
    """A guest of that kind, not yet booted; `options` are those of `Guest`."""
    return KINDS[kind](session, name, nics, **options)


def choose(wanted: str = "auto") -> GuestKind:
    """The kind that the operator names, or the best that this machine can run: KVM, then UML, then TCG."""
    if wanted != "auto":
        return GuestKind(wanted)
    for kind, guest in KINDS.items():
        if guest.is_machine and guest.missing() is None:
            return kind
    raise LabError("this machine can run no kind of guests: `memlane-lab doctor` shows the causes")


__all__ = ["KINDS", "Guest", "GuestKind", "choose", "make"]
