"""Images that machines boot by default: those of a kit where the lab runs from one, else those of the cache."""

from memlane_lab.common import unpacked
from memlane_lab.common.errors import LabError
from memlane_lab.images import machine_kernel, root
from memlane_lab.images.machine_kernel import Flavour, MachineKernel
from memlane_lab.images.root import RootImage

ROOT, KERNEL, MODULES, TREE = "root.cpio", "vmlinuz", "modules.cpio", "tree"
"""Names in a kit's folder of images."""
FLAVOUR = Flavour.CLOUD
"""The kernel that a kit brings."""


def root_image() -> RootImage:
    """The usual root tree; a kit has few files of it beside the archive."""
    if kit := unpacked.here():
        return RootImage(kit.images / TREE, kit.images / ROOT)
    return root.image()


def kernel(flavour: Flavour) -> MachineKernel:
    """The kernel of that flavour."""
    if kit := unpacked.here():
        if flavour is not FLAVOUR:
            raise LabError(f"a kit brings the kernel {FLAVOUR.value} only, not {flavour.value}")
        return MachineKernel(kit.images / KERNEL, kit.images / MODULES)
    return machine_kernel.kernel(flavour)
