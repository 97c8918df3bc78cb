"""The lab: boots real guests, lays the competing paths between them, measures the cost of each.

The folders lie in one order, from `common/` up to `commands/`, and import downwards only (`tests/test_layers.py`).

Nouns, in the order in which an experiment meets them:

- **Image** (`images/`): the disk of guests: a kernel and one root tree for all of them, built once from Debian
  packages and kept in the user's cache folder.
- **Session** (`host/session.py`): one use of the lab. It owns every process, namespace and device that is started, and
  records each before it exists, so that nothing outlives it, not even after a crash of the lab.
- **Path** (`paths/`): a way for frames to get from guest to guest: veth, bridge, an emulated NIC, OVS-DPDK, memlane.
  It is *laid* for a list of **ports** and answers with one **endpoint** a port: the socket or device of a guest's NIC.
- **Guest** (`guests/`): a machine with its own network stack: a namespace, User Mode Linux, or QEMU. It is booted
  with **NICs**, each plugged into an endpoint.
- **Control** (`guests/control.py`): the channel by which the lab runs commands in a guest; never the network
  under test.

The switch is known here only from outside: its command line and its sockets, so that rivals are treated alike.
"""
