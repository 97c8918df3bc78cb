"""The state of a running topology: of each node and each link, in plain values for tables, pages and programs."""

from typing import TYPE_CHECKING, Any

from memlane_lab.common.errors import LabError
from memlane_lab.host import procfs
from memlane_lab.host.process import HostProcess
from memlane_lab.meters.memory import proportional
from memlane_lab.topo.addresses import is_host

if TYPE_CHECKING:
    from memlane_lab.topo.machines import Machine
    from memlane_lab.topo.net import Net


def of(net: "Net", *, memory: bool = True) -> dict[str, Any]:
    """The whole state; without `memory` it is quick."""
    by_session: dict[int, list[procfs.Stat]] = {}
    for process in procfs.processes():
        by_session.setdefault(process.session, []).append(process)
    switch = net.switch
    ports = switch.ports()
    forwarder = switch.process
    return {
        "name": net.topology.name,
        "seconds": vars(net.phases),
        "nodes": [_node(net, machine, by_session, memory=memory) for machine in net],
        "links": [_link(net, number, ports) for number in range(len(switch.links))],
        "switch": {
            "over": net.topology.over,
            **_use(forwarder, by_session, memory=memory),
            # The rest of it is guests' memory.
            "own": (proportional(forwarder.pid, "Anon", "File") if forwarder else 0) if memory else None,
            "file": str(switch.file) if switch.file else None,
        },
    }


def _node(net: "Net", machine: "Machine", by_session: dict[int, list[procfs.Stat]], *, memory: bool) -> dict[str, Any]:
    neighbours = [_neighbour(net, end.link, net.plan.peer(end).node) for end in machine.interfaces]
    return {
        "name": machine.name,
        "kind": machine.node.kind,
        "role": machine.node.role,
        "state": "up" if machine.alive else "down",
        "addresses": list(net.plan.names[machine.name]),
        "interfaces": {end.name: list(end.addresses) for end in machine.interfaces},
        "neighbours": neighbours,
        "routes": _routes(machine) if memory else None,
        **_use(machine.guest.process if machine.alive else None, by_session, memory=memory),
    }


def _routes(machine: "Machine") -> int | None:
    """How many ways to others its kernel knows, or None if it does not say."""
    try:
        return len(machine.routes()) if machine.alive else None
    except LabError:
        return None


def _neighbour(net: "Net", link: int, name: str) -> dict[str, Any]:
    alive = name not in net.machines or net[name].alive
    return {"node": name, "reached": alive and net.switch.links[link].up}


def _use(process: HostProcess | None, by_session: dict[int, list[procfs.Stat]], *, memory: bool) -> dict[str, Any]:
    """CPU time and memory of a program and all that came of it, daemons with sessions of their own among them."""
    if process is None:
        processes, cpu = [], procfs.CpuTime()
    elif process.group:
        processes, cpu = process.group.processes(), process.group.cpu()
    else:
        processes = by_session.get(process.pid, [])
        cpu = sum((process.cpu + process.cpu_reaped for process in processes), procfs.CpuTime())
    return {
        "cpu": round(cpu.total, 3),
        "memory": sum(proportional(process.pid) for process in processes) if memory else None,
    }


def _link(net: "Net", number: int, ports: dict[str, Any]) -> dict[str, Any]:
    link = net.switch.links[number]
    ends = net.plan.ends[number]
    told = [ports.get(end.port, {}) for end in ends]
    return {
        "name": link.name,
        "ends": [end.node for end in ends],
        "interfaces": [end.name for end in ends],
        "up": link.up,
        "alive": all(is_host(end) or net[end.node].alive for end in ends),
        "impairment": str(link.impairment),
        "frames": [port.get("transmit-frames", 0) for port in told],
        "bytes": [port.get("transmit-bytes", 0) for port in told],
        "drops": sum(sum(port.get("drops", {}).values()) for port in told),
    }
