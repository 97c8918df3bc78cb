"""The set-up of a node that has booted: one shell script, so that a hundred nodes need few processes.

Addresses, names and FRR's configuration go into it; nothing is asked back but its exit code. A second one starts FRR's
daemons, when all nodes are set up: each router that joins makes all that route already compute their ways anew, so that
daemons that start one after another take time that grows with the square of the number of nodes.
"""

import base64
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.topo import frr
from memlane_lab.topo.addresses import Plan
from memlane_lab.topo.model import Node, Topology

_HOPS = 255
"""The hop limit of nodes' packets: Linux's usual 64 ends within a line of a hundred."""
LACK = "lack: "
"""Before a line of the script's output that tells a fault which the node tolerates."""
_END = "END_OF_THIS_FILE"
_SHARED_TREE = ("mkdir -p /run/frr /dev/pts", "mount -t devpts devpts /dev/pts")
_OWN_SYSTEM = (
    # The agent answers before the system's init has started: systemd would undo settings that it finds.
    "case $(readlink -f /sbin/init) in */systemd)",
    "until [ -S /run/systemd/private ]; do sleep 0.2; done",
    "systemctl is-system-running --wait >/dev/null || true ;;",  # 1: a service has failed, which is its own affair
    "esac",
)


def script(topology: Topology, plan: Plan, node: Node, devices: Mapping[str, str]) -> str:
    """Sets the node up; `devices` holds, by interface, a shell line that puts its kernel's name for it in $d."""
    brought = given(topology, node)
    made = frr.configuration(topology, plan, node)
    lines = [
        "set -e",
        *(_OWN_SYSTEM if node.image else _SHARED_TREE),
        *_settings(node),
        *_interfaces(plan, node, devices),
        *_stated(node),
        *_room(node, [*made, *brought]),
        *_files({"/etc/hosts": _hosts(plan), **made}, brought),
        *_executable(topology, node),
    ]
    return "\n".join(lines) + "\n"


def routing(topology: Topology, plan: Plan, node: Node) -> str:
    """Starts the node's daemons; empty without any."""
    brought = given(topology, node)
    commands = frr.start(frr.daemons(topology, node, brought), brought, frr.configuration(topology, plan, node))
    lines = [f"{command} 2>>/run/frr/start.log\n" for command in commands]
    return "".join(["set -e\n", *lines]) if lines else ""


def verify(topology: Topology) -> None:
    """Raises if a node could not be set up, as far as that is known before it boots."""
    for node in topology.nodes:
        frr.daemons(topology, node, given(topology, node))


def _settings(node: Node) -> Iterator[str]:
    yield f"echo {_HOPS} >/proc/sys/net/ipv4/ip_default_ttl"
    yield f"for s in all default; do echo {_HOPS} >/proc/sys/net/ipv6/conf/$s/hop_limit; done"
    if node.role == "router":
        yield "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"


def _stated(node: Node) -> Iterator[str]:
    """Settings of the kernel that the topology states; one that is not there is a fault, if the node tolerates none."""
    for key, value in node.sysctls.items():
        path = f"/proc/sys/{key if '/' in key else key.replace('.', '/')}"
        line = f"echo {shlex.quote(str(value))} >{shlex.quote(path)}"
        lack = shlex.quote(
            f"{LACK}the sysctl {key} of {node.name} cannot be set to {value}: its kernel has none, or refuses"
        )
        yield f"( {line} ) 2>/dev/null || echo {lack}" if node.tolerant else line


def _interfaces(plan: Plan, node: Node, devices: Mapping[str, str]) -> Iterator[str]:
    """Names, addresses and states of all interfaces, by one call of `ip`."""
    ends = plan.interfaces.get(node.name, ())
    for number, end in enumerate(ends):
        yield f"{devices[end.name]}; d{number}=$d"
        # Addresses are usable as soon as they are set.
        yield f"c=/proc/sys/net/ipv6/conf/$d; echo 0 >$c/accept_dad; echo 0 >$c/accept_ra; echo {_HOPS} >$c/hop_limit"
    yield f"ip -batch - <<{_END}"
    yield from (f"address add {text} dev lo" for text in plan.loopbacks[node.name])
    renamed = {number: end.name for number, end in enumerate(ends) if devices[end.name] != f"d={end.name}"}
    # The kernel's name for one may be the wanted name of another: first all get names that none is ever given.
    yield from (f"link set dev $d{number} name _{number}" for number in renamed)
    yield from (f"link set dev _{number} name {name}" for number, name in renamed.items())
    for end in ends:
        yield f"link set dev {end.name} address {end.mac} mtu {end.mtu} up"
        yield from (f"address add {text} dev {end.name}" for text in end.addresses)
    if node.role == "host" and ends:
        yield from _default_routes(plan, node)
    yield _END


def _default_routes(plan: Plan, node: Node) -> Iterator[str]:
    first = plan.interfaces[node.name][0]
    for version in (4, 6):
        gateway = plan.peer(first).address(version)
        if gateway and first.address(version):
            yield f"route add default via {gateway}"


def _hosts(plan: Plan) -> str:
    names = "".join(f"{address} {name}\n" for name, texts in plan.names.items() for address in texts)
    return f"127.0.0.1 localhost\n::1 localhost\n{names}"


def _room(node: Node, paths: Iterable[str]) -> Iterator[str]:
    """Makes the folders of files, by one program for all."""
    elsewhere = sorted(path for path in set(paths) if path.rpartition("/")[0] not in {"/etc", "/etc/frr"})
    if not elsewhere:
        return
    if node.image:
        yield f"mkdir -p {shlex.join(sorted({path.rpartition('/')[0] or '/' for path in elsewhere}))}"
    else:
        yield f"own-root --room {shlex.join(elsewhere)}"


def _files(made: Mapping[str, str], brought: Mapping[str, bytes]) -> Iterator[str]:
    for path, content in {**{path: text.encode() for path, text in made.items()}, **brought}.items():
        yield f"{_printed(content)} >{shlex.quote(path)}"


def _printed(content: bytes) -> str:
    """A command that prints it: the shell's own, for a process more for each file takes a tenth of a node's start."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return f"echo {base64.b64encode(content).decode()} | base64 -d"
    return f"printf %s {shlex.quote(text)}"


def _executable(topology: Topology, node: Node) -> Iterator[str]:
    for path, source in node.files.items():
        if (Path(topology.folder) / source).stat().st_mode & 0o100:
            yield f"chmod +x {shlex.quote(path)}"


def given(topology: Topology, node: Node) -> dict[str, bytes]:
    """The files that the topology gives to a node, by their path there."""
    found = {}
    for path, source in node.files.items():
        try:
            found[path] = (Path(topology.folder) / source).read_bytes()
        except OSError as error:
            told = f"the file {source} for {path} of {node.name} cannot be read: {error.strerror}"
            raise LabError(told) from error
    return found
