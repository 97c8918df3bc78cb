"""The host's network devices: namespaces, TAPs, bridges, veth pairs. Names of namespaces and devices are complete.

All by `ip` of iproute2, which does as many changes in one call as it is given lines.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.host.ports import Uplink

_NAMESPACES = Path("/run/netns")
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
"""Bits of capabilities(7)."""


def may_change() -> str | None:
    """Why this user cannot make namespaces and devices, or None."""
    if _has_capability(_CAP_NET_ADMIN) and _has_capability(_CAP_SYS_ADMIN):
        return None
    return "network namespaces and devices need root"


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective, 16) >> number & 1)


def enter(namespace: str | None) -> list[str]:
    """The words to put before a command that shall run in the namespace."""
    return ["nsenter", f"--net={_NAMESPACES / namespace}"] if namespace else []


def add_namespace(name: str) -> None:
    """Creates a network namespace."""
    if reason := may_change():
        raise NotAvailable(f"cannot create a network namespace: {reason}")
    _ip(None, f"netns add {name}")


def remove_namespace(name: str) -> None:
    """Removes a namespace, with the devices that live in it; nothing happens if there is none."""
    if (_NAMESPACES / name).exists():
        _ip(None, f"netns delete {name}")


def silence(namespace: str) -> None:
    """Keeps devices that will appear in the namespace from sending anything of their own (IPv6 discovery)."""
    setting = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    subprocess.run([*enter(namespace), "sh", "-c", f"! [ -e {setting} ] || echo 1 >{setting}"], check=True)


def tune(namespace: str, settings: Sequence[str]) -> None:
    """Sets the namespace's parameters, as "ipv4/ip_forward=1"."""
    lines = (f"echo {value} >/proc/sys/net/{name}" for name, _, value in (each.partition("=") for each in settings))
    subprocess.run([*enter(namespace), "sh", "-ec", "; ".join(lines)], check=True)


def add_namespaces(names: Sequence[str]) -> None:
    """Creates many network namespaces at once."""
    if reason := may_change():
        raise NotAvailable(f"cannot create network namespaces: {reason}")
    _ip(None, *(f"netns add {name}" for name in names))


def remove_namespaces(names: Sequence[str]) -> None:
    """Removes those of the namespaces that are there, with the devices in them."""
    found = [name for name in names if (_NAMESPACES / name).exists()]
    if found:
        _ip(None, *(f"netns delete {name}" for name in found))


def address(device: str, addresses: Sequence[str]) -> None:
    """Gives a device of the host's own namespace its addresses ("10.0.0.1/31"), and brings it up."""
    _ip(None, f"link set dev {device} up", *(f"address replace {text} dev {device} nodad" for text in addresses))


def add_tap(name: str, *, born_as: str, namespace: str, mtu: int, queues: int = 1) -> None:
    """Creates a TAP that carries virtio-net headers, hence large frames and undone checksums.

    It can only be created in the host's own namespace, where it is called `born_as` for a moment.
    """
    flags = "vnet_hdr multi_queue" if queues > 1 else "vnet_hdr"
    _ip(
        None,
        f"tuntap add dev {born_as} mode tap {flags}",
        f"link set dev {born_as} netns {namespace} name {name}",
    )
    _ip(namespace, f"link set dev {name} mtu {mtu} up")


def add_veth(name: str, peer: str, *, namespace: str, mtu: int) -> None:
    """Creates a pair of joined devices in the namespace, the first of them up; the peer is for a guest to take."""
    _ip(
        namespace,
        f"link add dev {name} mtu {mtu} type veth peer name {peer} mtu {mtu}",
        f"link set dev {name} up",
    )


def add_bridge(name: str, *, namespace: str, mtu: int) -> None:
    """Creates a bridge that forwards at once: no spanning tree, no delay."""
    _ip(
        namespace,
        f"link add dev {name} mtu {mtu} type bridge stp_state 0 forward_delay 0",
        f"link set dev {name} up",
    )


def add_vxlan(name: str, uplink: Uplink, *, mtu: int) -> None:
    """Creates a VXLAN device of a host, which learns nothing by itself (RFC 7348); it is down."""
    what = f"type vxlan id {uplink.vni} dstport 4789 local {uplink.local} nolearning"
    _ip(uplink.namespace, f"link add dev {name} mtu {mtu} {what}", f"link set dev {name} addrgenmode none")


def forwarding(namespace: str) -> list[str]:
    """The entries of all forwarding tables there, as `bridge fdb` shows them."""
    command = [*enter(namespace), "bridge", "fdb", "show"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def join(device: str, bridge: str, *, namespace: str) -> None:
    """Makes a device a port of a bridge."""
    _ip(namespace, f"link set dev {device} master {bridge}")


def move(device: str, *, source: str | None, target: str) -> None:
    """Moves a device to another namespace."""
    _ip(source, f"link set dev {device} netns {target}")


def limit(device: str, rate: int, *, namespace: str) -> None:
    """Has a device send at most `rate` bit/s, by a token bucket behind a queue, as hosters limit their guests."""
    shape = f"tbf rate {rate}bit burst 128kb latency 50ms"
    command = [*enter(namespace), "tc", "qdisc", "replace", "dev", device, "root", *shape.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{device} cannot be limited: tc qdisc {shape}: {done.stderr.strip()}")


def share(device: str, rate: int, senders: Sequence[str], *, namespace: str) -> None:
    """Has a device send at most `rate` bit/s, in equal shares of all senders, each told by its MAC address.

    Hierarchical token buckets (tc-htb(8)): each sender has its share for sure, and lends the rest of it.
    """
    lines = share_lines(device, rate, senders)
    command = [*enter(namespace), "tc", "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{device} cannot be shared fairly: tc {'; '.join(lines)}: {done.stderr.strip()}")


def share_lines(device: str, rate: int, senders: Sequence[str]) -> list[str]:
    """The commands of tc that `share` gives: a bucket for all, one for each sender, one for all other senders."""
    each = max(rate // (len(senders) + 1), 8)
    bucket = f"htb rate {each}bit ceil {rate}bit burst 32kb cburst 32kb"
    lines = [
        f"qdisc replace dev {device} root handle 1: htb default ffff",
        f"class add dev {device} parent 1: classid 1:fffe htb rate {rate}bit ceil {rate}bit burst 128kb cburst 128kb",
        f"class add dev {device} parent 1:fffe classid 1:ffff {bucket}",
    ]
    for number, mac in enumerate(senders, 1):
        lines += [
            f"class add dev {device} parent 1:fffe classid 1:{number:x} {bucket}",
            f"filter add dev {device} parent 1: protocol all prio 1 u32 match ether src {mac} flowid 1:{number:x}",
        ]
    return lines


def exists(device: str, *, namespace: str | None) -> bool:
    """Whether there is such a device."""
    return any(link["ifname"] == device for link in json.loads(_ip(namespace, "link show")))


def remove_link(name: str) -> None:
    """Removes a device from the host's own namespace; nothing happens if there is none."""
    if exists(name, namespace=None):
        _ip(None, f"link delete dev {name}")


def change(namespace: str | None, *lines: str) -> None:
    """Does many changes at once, each a command of `ip` without its first word ("link add ..."), in this order."""
    if lines:
        _ip(namespace, *lines)


def all_counters(namespace: str | None) -> dict[str, dict[str, int]]:
    """The kernel's counters of all devices there, by name, as `counters` tells those of one."""
    links = json.loads(_ip(namespace, "link show", options=("-stats",)))
    return {link["ifname"]: _counted(link) for link in links}


def counters(device: str, *, namespace: str | None) -> dict[str, int]:
    """The kernel's counters of a device, as "rx_packets", "tx_dropped" and so on: in the device's own words."""
    (link,) = json.loads(_ip(namespace, f"link show dev {device}", options=("-stats",)))
    return _counted(link)


def _counted(link: Any) -> dict[str, int]:  # noqa: ANN401
    return {f"{way}_{name}": value for way in ("rx", "tx") for name, value in link["stats64"][way].items()}


def _ip(namespace: str | None, *lines: str, options: Sequence[str] = ()) -> str:
    """Runs `ip` with these lines, in the namespace; returns its output, in JSON."""
    where = ["-netns", namespace] if namespace else []
    command = ["ip", "-json", *options, *where, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        place = f"namespace {namespace}" if namespace else "the host's namespace"
        raise LabError(f"network set-up in {place} failed: ip {'; '.join(lines)}: {done.stderr.strip()}")
    return done.stdout
