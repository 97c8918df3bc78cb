"""All images at once, so that the long work is done before anything is measured or tested."""

from collections.abc import Iterable

from memlane_lab.counting import host as counted_host
from memlane_lab.counting import machine
from memlane_lab.guests import KINDS
from memlane_lab.host.ports import GuestKind
from memlane_lab.images import shop, tools
from memlane_lab.topo import image as nodes


def prepare(kind: GuestKind | None = None, shops: Iterable[tuple[int, int]] = ()) -> None:
    """Builds or downloads the images of guests of that kind, or of all kinds, nodes and the counted host, if missing.

    `shops` are numbers of books and customers. For any kind, the shop and the tools that tests use are among them.
    """
    for items, customers in {*shops, *([shop.SMALL] if kind is None else [])}:
        shop.image(items, customers)
    for guest in KINDS.values() if kind is None else [KINDS[kind]]:
        guest.prepare()
    if kind is None:
        nodes.image()
        tools.image()
    if kind is None and not machine.missing():
        counted_host.prepare()
