"""The host's network devices: namespaces, TAPs, bridges, veth pairs. Names of namespaces and devices are whole ones."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetNS, netns
from pyroute2.netlink.exceptions import NetlinkError

from memlane_lab.errors import LabError, NotAvailable

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
    """What to put before a command that shall run in the namespace."""
    return ["nsenter", f"--net={_NAMESPACES / namespace}"] if namespace else []


def add_namespace(name: str) -> None:
    """Creates a network namespace."""
    if reason := may_change():
        raise NotAvailable(f"cannot create a network namespace: {reason}")
    netns.create(name)


def silence(namespace: str) -> None:
    """Keeps devices that will appear in the namespace from sending anything of their own (IPv6 discovery)."""
    setting = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    subprocess.run([*enter(namespace), "sh", "-c", f"! [ -e {setting} ] || echo 1 >{setting}"], check=True)


def remove_namespace(name: str) -> None:
    """Removes a namespace, with the devices that live in it; nothing happens if there is none."""
    if (_NAMESPACES / name).exists():
        netns.remove(name)


def add_tap(name: str, *, born_as: str, namespace: str, mtu: int, queues: int = 1) -> None:
    """Creates a TAP that carries virtio-net headers, hence large frames and undone checksums.

    It can only be created in the host's own namespace, where it is called `born_as` for a moment.
    """
    flags = {"vnet_hdr": 1, "multi_queue": int(queues > 1)}
    with _inside(None) as host:
        host.link("add", ifname=born_as, kind="tuntap", mode="tap", ifr=flags)
        host.link("set", index=_index(host, born_as), ifname=name, net_ns_fd=namespace)
    with _inside(namespace) as handle:
        handle.link("set", index=_index(handle, name), mtu=mtu, state="up")


def add_veth(name: str, peer: str, *, namespace: str, mtu: int) -> None:
    """Creates a pair of joined devices in the namespace, the first of them up; the peer is for a guest to take."""
    with _inside(namespace) as handle:
        handle.link("add", ifname=name, kind="veth", peer=peer)
        for device in (name, peer):
            handle.link("set", index=_index(handle, device), mtu=mtu)
        handle.link("set", index=_index(handle, name), state="up")


def add_bridge(name: str, *, namespace: str, mtu: int) -> None:
    """Creates a bridge that forwards at once: no spanning tree, no delay."""
    with _inside(namespace) as handle:
        handle.link("add", ifname=name, kind="bridge", br_stp_state=0, br_forward_delay=0)
        handle.link("set", index=_index(handle, name), mtu=mtu, state="up")


def join(device: str, bridge: str, *, namespace: str) -> None:
    """Makes a device a port of a bridge."""
    with _inside(namespace) as handle:
        handle.link("set", index=_index(handle, device), master=_index(handle, bridge))


def move(device: str, *, source: str | None, target: str) -> None:
    """Moves a device to another namespace."""
    with _inside(source) as handle:
        handle.link("set", index=_index(handle, device), net_ns_fd=target)


def exists(device: str, *, namespace: str | None) -> bool:
    """Whether there is such a device."""
    with _inside(namespace) as handle:
        return bool(handle.link_lookup(ifname=device))


def remove_link(name: str) -> None:
    """Removes a device from the host's own namespace; nothing happens if there is none."""
    with IPRoute() as host:
        for index in host.link_lookup(ifname=name):
            host.link("del", index=index)


def counters(device: str, *, namespace: str | None) -> dict[str, int]:
    """The kernel's counters of a device (packets, bytes, drops, errors); "rx" and "tx" are the device's own words."""
    with _inside(namespace) as handle:
        (link,) = handle.get_links(_index(handle, device))
        return {key: value for key, value in link.get_attr("IFLA_STATS64").items() if isinstance(value, int)}


@contextmanager
def _inside(namespace: str | None) -> Iterator[Any]:
    try:
        with IPRoute() if namespace is None else NetNS(namespace) as handle:
            yield handle
    except NetlinkError as error:
        raise LabError(f"network set-up in namespace {namespace or '(the host)'} failed: {error}") from error


def _index(handle: Any, device: str) -> int:  # noqa: ANN401  # pyroute2 has no types
    found = handle.link_lookup(ifname=device)
    if not found:
        raise LabError(f"there is no network device {device}")
    return int(found[0])
