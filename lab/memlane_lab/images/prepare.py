"""All images at once, so that the long work is done before anything is measured or tested."""

from collections.abc import Iterable

from memlane_lab.images import machine_kernel, root, shop, uml_kernel
from memlane_lab.images.machine_kernel import Flavour
from memlane_lab.ports import GuestKind


def prepare(kind: GuestKind | None = None, shops: Iterable[tuple[int, int]] = ()) -> None:
    """Builds or downloads what guests of that kind boot, or of any kind, if it is not in the cache yet.

    `shops` are numbers of books and customers; for any kind, the shop that tests use is among them.
    """
    root.image()
    for items, customers in {*shops, *([shop.SMALL] if kind is None else [])}:
        shop.image(items, customers)
    if kind is None or kind == GuestKind.UML:
        uml_kernel.kernel()
    if kind is None or kind.is_qemu:
        for flavour in Flavour:
            machine_kernel.kernel(flavour)
