"""Guests get addresses and names from the switch: a DHCP boot, and pings by name over IPv4 and IPv6."""

import json
import subprocess
from functools import partial

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.paths.memlane import program
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG, UML, Lan

pytestmark = pytest.mark.real

_SEGMENT = [{"name": "lan", "subnet": "10.0.0.0/24", "subnet6": "fd00::/64"}]

_BOUND = """#!/bin/sh
# Called by udhcpc with the lease in its environment.
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
echo "search $domain" >/etc/resolv.conf
for server in $dns; do echo "nameserver $server" >>/etc/resolv.conf; done
"""
_LET_KERNEL_ADDRESS = (
    "for s in accept_ra autoconf accept_dad; do echo 1 >/proc/sys/net/ipv6/conf/net0/$s; done; "
    "ip link set dev net0 down; ip link set dev net0 up"
)
"""By router advertisements, for which the kernel asks when the interface comes up."""


def _boot_by_dhcp(guest: Guest) -> None:
    # The image's folder is read-only in a guest of User Mode Linux.
    guest.run("cp -r /etc /tmp/etc; mount -t tmpfs tmpfs /etc; cp -r /tmp/etc/. /etc").check()
    guest.put("/tmp/bound", _BOUND.encode())
    guest.run(_LET_KERNEL_ADDRESS).check()
    guest.run("chmod +x /tmp/bound; udhcpc -i net0 -s /tmp/bound -n -q -t 20 -T 2", timeout=80).check()


def _has_its_ipv6_address(lan: Lan, index: int) -> bool:
    """Whether the guest has an address of the prefix that is no one else's."""
    shown = lan.guests[index].run("ip -6 address show dev net0 scope global -tentative").stdout
    return "fd00::" in shown


def _ping(lan: Lan, source: int, family: str, target: str) -> None:
    guest = lan.guests[source]
    asked = f"ping {family} -c 1 -W 20 {target}"
    until(lambda: guest.run(asked, timeout=80).status == 0, timeout=60, what=f"guest {guest.name}: {asked}")


@pytest.mark.parametrize(
    "kinds", [pytest.param((UML, UML), id="uml"), pytest.param((UML, TCG), id="tcg", marks=pytest.mark.prove)]
)
def test_guests_boot_by_dhcp_and_reach_each_other_by_name(build: Builder, kinds: tuple[str, str]) -> None:
    """With no other service: each gets an address of each kind, and finds the others as `NAME` and `NAME.lan`."""
    lan = build(*kinds, segment=_SEGMENT)
    for guest in lan.guests:
        _boot_by_dhcp(guest)
    for index, guest in enumerate(lan.guests):
        until(partial(_has_its_ipv6_address, lan, index), timeout=30, what=f"{guest.name}'s IPv6 address")
    for source, target in ((0, 1), (1, 0)):
        for family in ("-4", "-6"):
            _ping(lan, source, family, f"{bed.name(target)}.lan")
        _ping(lan, source, "-4", bed.name(target))
    command = [str(program()), "leases", str(lan.switch.file), "--json"]
    [names] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    leased = {(lease["port"], lease["source"]) for lease in names["leases"]}
    assert leased == {(bed.name(index), source) for index in (0, 1) for source in ("dhcp", "slaac")}
    assert names["refused"]["malformed"] == 0, names
