"""The system of two guests that meet: each gets an address by DHCP, and pings the other by name until that answers."""

from pathlib import Path

from memlane_lab.images import cpio, machine_kernel, root
from memlane_lab.images.machine_kernel import Flavour

MET = "memlane: reached"
"""On the console of a guest, before the name of the one that has answered."""

_MEET = f"""#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
hostname "$me"
ip link set lo up
ip link set eth0 up
udhcpc -i eth0 -s /bound -n -q -t 40 -T 1
until ping -c 1 -W 2 "$peer.lan"; do sleep 0.2; done
echo "{MET} $peer"
# The peer may not have been answered yet.
while sleep 1; do :; done
"""
_BOUND = """#!/bin/sh
# Called by udhcpc with the lease in its environment.
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
for server in $dns; do echo "nameserver $server" >>/etc/resolv.conf; done
"""


def arguments(name: str, peer: str) -> str:
    """The command line of the kernel for guest `name`."""
    return f"console=ttyS0 quiet panic=-1 rdinit=/meet nokaslr cryptomgr.notests me={name} peer={peer}"


def kernel() -> Path:
    """The kernel."""
    return machine_kernel.kernel(Flavour.CLOUD).kernel


def make_initramfs(path: Path, scratch: Path) -> None:
    """Writes the initramfs: the lab's, with programs that meet. `scratch` is a folder."""
    tree, own = scratch / "tree", scratch / "own.cpio"
    tree.mkdir(parents=True)
    for name, text in (("meet", _MEET), ("bound", _BOUND)):
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    cpio.write(tree, own)
    parts = (root.image().initramfs, machine_kernel.kernel(Flavour.CLOUD).modules, own)
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
