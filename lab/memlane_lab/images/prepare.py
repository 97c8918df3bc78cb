"""All images at once, so that the long work is done before anything is measured or tested."""

from memlane_lab.images import machine_kernel, root, uml_kernel
from memlane_lab.images.machine_kernel import Flavour


def prepare() -> None:
    """Builds or downloads what is not in the cache yet; a moment when everything is."""
    root.image()
    uml_kernel.kernel()
    for flavour in Flavour:
        machine_kernel.kernel(flavour)
