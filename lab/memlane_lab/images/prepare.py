"""All images at once, so that the long work is done before anything is measured or tested."""

from memlane_lab.images import machine_kernel, root, uml_kernel
from memlane_lab.images.machine_kernel import Flavour
from memlane_lab.ports import GuestKind


def prepare(kind: GuestKind | None = None) -> None:
    """Builds or downloads what guests of that kind boot, or of any kind, if it is not in the cache yet."""
    root.image()
    if kind is None or kind == GuestKind.UML:
        uml_kernel.kernel()
    if kind is None or kind.is_qemu:
        for flavour in Flavour:
            machine_kernel.kernel(flavour)
