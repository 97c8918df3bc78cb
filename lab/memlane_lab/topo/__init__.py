"""Networks of real systems on one computer: nodes with kernels of their own, links with delay, loss and rate.

    from memlane_lab import topo

    with topo.up("line", 100) as net:
        print(net["r1"].run("ping -c 3 r100").stdout)
        net.link("r3", "r4", delay="20ms", loss="1%")

Nouns, in the order in which a topology meets them:

- **Topology** (`model.py`): the stated network: nodes, links, routing. It comes from a shape (`shapes.py`) or a file
  (`files.py`: TOML, containerlab's YAML, GraphML).
- **Plan** (`addresses.py`): the addresses and interfaces of all nodes.
- **Fabric** (`fabric.py`): the links: one memlane daemon, a segment of two ports for each (`switched.py`); to compare,
  the kernel's own links (`kernel_links.py`).
- **Machine** (`machines.py`): a node that runs: a guest of the lab, set up by one script (`setup.py`, `frr.py`).
- **Net** (`net.py`): all of it while it is up, from Python.
- **Keeper** (`keeper.py`) and **service** (`service.py`): the process in which it lives after `memlane-lab topo up`,
  and the socket at which the other commands (`command.py`) find it.
"""

from memlane_lab.topo.model import BadTopology, Impairment, Link, Node, Routing, Topology
from memlane_lab.topo.net import Net, state, up
from memlane_lab.topo.settings import Settings

__all__ = ["BadTopology", "Impairment", "Link", "Net", "Node", "Routing", "Settings", "Topology", "state", "up"]
