"""The root tree of nodes: the lab's, with FRR's daemons and tcpdump in it, built once and kept."""

from memlane_lab.images import root
from memlane_lab.images.root import PROGRAMS, Recipe, RootImage

DAEMONS = {"ospf": "ospfd", "ospf6": "ospf6d", "isis": "isisd", "bgp": "bgpd"}
"""A routing protocol, and FRR's daemon for it."""
NAMES = (*DAEMONS.values(), "staticd", "bfdd", "ripd", "ripngd", "pimd", "ldpd", "vrrpd", "pbrd", "eigrpd")
"""All of FRR's daemons that nodes have, zebra left out, which runs wherever another does."""

_PRECEDENCES = {"::1/128": 50, "::/0": 40, "2002::/16": 30, "::/96": 20, "::ffff:0:0/96": 100}
_RECIPE = Recipe(
    "router",
    {
        **{package: names for package, names in PROGRAMS.items() if package not in {"sockperf", "stress-ng"}},
        "bash": ["bash"],
        "bsdutils": ["script"],
        "frr": ["zebra", "vtysh", *NAMES],
        "libpam-modules": ["pam_permit.so"],  # vtysh asks whether root may
        "tcpdump": ["tcpdump"],
    },
    links={"var/run": "../run", "var/tmp": "../tmp"},
    etc={
        "passwd": "root:x:0:0:root:/root:/bin/sh\nfrr:x:101:101::/:/bin/false\n",
        "group": "root:x:0:\nfrr:x:101:\nfrrvty:x:102:root\n",
        "frr/vtysh.conf": "",
        "pam.d/frr": "auth required /bin/pam_permit.so\naccount required /bin/pam_permit.so\n",
        # As glibc has it (RFC 6724), but IPv4 first: names are reached by the addresses that pages and tables show.
        "gai.conf": "".join(f"precedence {prefix} {value}\n" for prefix, value in _PRECEDENCES.items()),
        "host.conf": "multi on\n",
        "nsswitch.conf": "hosts: files\n",
        "protocols": "icmp 1\ntcp 6\nudp 17\nospf 89\n",
    },
    libraries=["whole_waits.c"],
)


FOLDERS = frozenset({"/etc/frr", "/var", "/.image", *root.folders(_RECIPE)})
"""Paths at which a node has folders."""
KERNELS = ("/proc", "/sys", "/dev")
"""Folders that are the kernel's, of a netns node this machine's."""


def image() -> RootImage:
    """The nodes' root tree."""
    return root.image(_RECIPE)
