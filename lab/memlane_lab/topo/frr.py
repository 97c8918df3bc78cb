"""FRR's configuration of a router, made from the topology, one file for each daemon, or brought by it; its daemons."""

import re
from collections.abc import Iterator, Mapping, Sequence

from memlane_lab.common.errors import LabError
from memlane_lab.topo.addresses import Interface, Plan, is_host
from memlane_lab.topo.image import DAEMONS, NAMES
from memlane_lab.topo.model import INTEGRATED, Node, Topology

_LIST = "/etc/frr/daemons"
_UNASKED = ("zebra", "mgmtd", "watchfrr", "sharpd")
"""Daemons that run anyway, and daemons that nodes do without."""
_SPEAKS = {
    "ospfd": r"(router ospf\b|ip ospf )",
    "ospf6d": r"(router ospf6\b|ipv6 ospf6 )",
    "isisd": r"router isis\b",
    "bgpd": r"router bgp\b",
    "ripd": r"router rip\b",
    "ripngd": r"router ripng\b",
    "bfdd": r"bfd\b",
    "pimd": r"(router pim\b|ip pim\b|ip igmp\b)",
    "ldpd": r"mpls ldp\b",
    "vrrpd": r"vrrp \d",
    "pbrd": r"(pbr-map|pbr-policy)\b",
    "eigrpd": r"router eigrp\b",
}
"""By daemon, how the lines begin that are for it."""
_FIRST_PRIVATE_AS = 4_200_000_000


def configuration(topology: Topology, plan: Plan, node: Node) -> dict[str, str]:
    """By path in the node, the configuration of FRR's daemons, where the topology does not bring its own."""
    if INTEGRATED in node.files:
        return {}
    made = {"ospf": _ospf, "ospf6": _ospf6, "isis": _isis, "bgp": _bgp}
    files = {f"/etc/frr/{DAEMONS[protocol]}.conf": made[protocol] for protocol in topology.protocols(node)}
    # Accounts of each event's CPU time cost some system calls an event.
    head = f"hostname {node.name}\nno service cputime-stats\n"
    texts = {path: head + "".join(f"{line}\n" for line in make(topology, plan, node)) for path, make in files.items()}
    return {"/etc/frr/zebra.conf": head, **texts} if texts else {}


def daemons(topology: Topology, node: Node, given: Mapping[str, bytes]) -> list[str]:
    """The daemons of a node, zebra first, by the files that are `given` to it; raises if nodes lack one."""
    wanted = [DAEMONS[protocol] for protocol in topology.protocols(node)]
    wanted += [name for name in NAMES if f"/etc/frr/{name}.conf" in given]
    if node.daemons is not None or _LIST in given:
        wanted += [*(node.daemons or ()), *_listed(node, given.get(_LIST, b"").decode(errors="replace"))]
    else:
        wanted += _needed(given.get(INTEGRATED, b"").decode(errors="replace"))
    alone = INTEGRATED in given or node.daemons is not None
    return list(dict.fromkeys(["zebra", *(["staticd"] if alone else []), *wanted])) if wanted or alone else []


def _listed(node: Node, text: str) -> Iterator[str]:
    """The daemons that a file of daemons asks for, as FRR's packages have it: bgpd=yes."""
    for name in re.findall(r"(?m)^\s*(\w+)\s*=\s*[\"']?(?:yes|true|1)\b", text):
        if name not in NAMES and name.endswith("d") and name not in _UNASKED:
            raise LabError(f"{_LIST} of {node.name} enables {name}, but nodes have only {', '.join(NAMES)}: remove it")
        if name in NAMES:
            yield name


def _needed(text: str) -> list[str]:
    """Those that an integrated configuration speaks to."""
    return [name for name, pattern in _SPEAKS.items() if re.search(rf"(?m)^\s*{pattern}", text)]


def start(names: Sequence[str], given: Mapping[str, bytes], made: Mapping[str, str]) -> Iterator[str]:
    """The commands that start the daemons. Those that write to the kernel and to others' sockets as root may."""
    for name in names:
        own = f"/etc/frr/{name}.conf"
        # FRR's own rule: an integrated configuration counts, and files for each daemon where there is none.
        told = f" -f {own}" if INTEGRATED not in given and (own in given or own in made) else ""
        yield f"LD_PRELOAD=/lib/whole_waits.so {name} -d -u root -g root{told}"
    if names and INTEGRATED in given:
        yield "vtysh -b"


def asn(topology: Topology, node: Node) -> int:
    """Its autonomous system: the stated one, else one of its own from those that are private."""
    return node.asn or _FIRST_PRIVATE_AS + topology.nodes.index(node) + 1


def _routed(topology: Topology, plan: Plan, node: Node) -> Iterator[tuple[Interface, bool]]:
    """The node's interfaces, and whether a router is at the other end."""
    for end in plan.interfaces[node.name]:
        peer = plan.peer(end)
        yield end, not is_host(peer) and topology.node(peer.node).role == "router"


def _ospf(topology: Topology, plan: Plan, node: Node) -> Iterator[str]:
    yield from ("interface lo", " ip ospf area 0")
    for end, routed in _routed(topology, plan, node):
        yield from (f"interface {end.name}", " ip ospf area 0")
        if routed:
            yield from _ospf_timers(topology, "ip ospf")
        else:
            yield " ip ospf passive"
    yield from ("router ospf", f" ospf router-id {plan.loopback(node.name)}")
    # Changes are told at once; FRR's usual is five seconds after the one before.
    yield from (" timers throttle lsa all 100", " timers lsa min-arrival 0")


def _ospf6(topology: Topology, plan: Plan, node: Node) -> Iterator[str]:
    yield from ("interface lo", " ipv6 ospf6 area 0")
    for end, routed in _routed(topology, plan, node):
        yield from (f"interface {end.name}", " ipv6 ospf6 area 0")
        if routed:
            yield from _ospf_timers(topology, "ipv6 ospf6")
        else:
            yield " ipv6 ospf6 passive"
    yield from ("router ospf6", f" ospf6 router-id {plan.loopback(node.name)}", " timers lsa min-arrival 0")


def _ospf_timers(topology: Topology, prefix: str) -> Iterator[str]:
    yield f" {prefix} network point-to-point"
    yield f" {prefix} hello-interval {topology.routing.hello}"
    yield f" {prefix} dead-interval {topology.routing.dead_interval}"
    # A message over a new link in the first moment may be lost; FRR usually repeats it after 5 s. Not so
    # for ospf6d 8.4: where a busy neighbour answers late, a description that comes twice may leave it in ExChange.
    if prefix == "ip ospf":
        yield f" {prefix} retransmit-interval {topology.routing.hello}"


def _isis(topology: Topology, plan: Plan, node: Node) -> Iterator[str]:
    number = f"{topology.nodes.index(node) + 1:012d}"
    dotted = ".".join(number[at : at + 4] for at in range(0, 12, 4))
    yield from (
        "router isis 1",
        f" net 49.0001.{dotted}.00",
        " is-type level-2-only",
        " lsp-gen-interval 1",
        " spf-interval 1",
    )
    yield from ("interface lo", " ip router isis 1", " ipv6 router isis 1", " isis passive")
    for end, routed in _routed(topology, plan, node):
        yield from (f"interface {end.name}", " ip router isis 1", " ipv6 router isis 1")
        if routed:
            yield from (" isis network point-to-point", f" isis hello-interval {topology.routing.hello}")
            yield f" isis hello-multiplier {max(2, round(topology.routing.dead_interval / topology.routing.hello))}"
        else:
            yield " isis passive"


def _bgp(topology: Topology, plan: Plan, node: Node) -> Iterator[str]:
    yield from (f"router bgp {asn(topology, node)}", f" bgp router-id {plan.loopback(node.name)}")
    yield from (" no bgp ebgp-requires-policy", " no bgp default ipv4-unicast", " no bgp network import-check")
    neighbours: dict[int, list[str]] = {4: [], 6: []}
    for end, routed in _routed(topology, plan, node):
        peer = plan.peer(end)
        for version in (4, 6):
            address = peer.address(version)
            if routed and address and end.address(version):
                yield f" neighbor {address} remote-as {asn(topology, topology.node(peer.node))}"
                yield f" neighbor {address} timers {topology.routing.hello} {max(3, topology.routing.dead_interval)}"
                yield f" neighbor {address} timers connect 1"
                yield f" neighbor {address} advertisement-interval 0"
                neighbours[version].append(address)
    for version, length in ((4, 32), (6, 128)):
        yield f" address-family ipv{version} unicast"
        yield f"  network {plan.loopback(node.name, version)}/{length}"
        yield "  redistribute connected"
        yield from (f"  neighbor {address} activate" for address in neighbours[version])
        yield " exit-address-family"
