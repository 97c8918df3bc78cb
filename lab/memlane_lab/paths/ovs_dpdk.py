"""Open vSwitch with DPDK: the fastest switch that hosts run today. It polls: one CPU is busy even when idle.

With `max_sleep` its polling thread sleeps for so many microseconds at most where there is nothing to do, as memlane's
workers may: then it is a rival that does not take a CPU.

vhost-user client ports (the switch connects, the guest listens), TSO on, in a namespace of its own because it makes a
TAP for its bridge.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.guests import KINDS
from memlane_lab.host import network, procfs
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.images import foreign
from memlane_lab.paths.masking import FeatureMask
from memlane_lab.paths.path import NetworkPath

SWITCH = Path("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
_BRIDGE = "br"
_MEMORY = 1024
"""MiB for DPDK's packet pools."""
_MOST_POOLS = 8
"""Ports that have a pool each, of about 70 MiB. More would find no memory and carry nothing: they share one pool, which
is Open vSwitch's default, and takes 800 MiB at any number."""


class OvsDpdk(NetworkPath):
    """One bridge of Open vSwitch's user-space datapath, learning as usual (NORMAL)."""

    name: ClassVar[str] = "ovs-dpdk"
    title: ClassVar[str] = "Open vSwitch with DPDK, vhost-user, TSO"
    rank: ClassVar[int] = 30
    polls: ClassVar[bool] = True
    limits: ClassVar[bool] = True

    def __init__(self, session: Session, *, cpu: int | None = None, max_sleep: int = 0, newest: bool = False) -> None:
        """`cpu` is the one that polls; None leaves the choice to the switch. `max_sleep`: microseconds.

        With `newest` the switch and its DPDK are those of Debian's newest suite, unpacked beside the machine's.
        """
        super().__init__(session)
        self._unpacked = foreign.newest_ovs() if newest else None
        self._cpu = cpu
        self._max_sleep = max_sleep
        self._folder = session.folder / "ovs"
        self._switch: HostProcess | None = None
        self._database: HostProcess | None = None
        self._masks: list[FeatureMask] = []

    @classmethod
    def missing(cls) -> str | None:
        return network.may_change() or (None if SWITCH.exists() else f"{SWITCH} is not installed: run make deps")

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:  # noqa: ARG003
        return None

    @classmethod
    def kept_to(cls, cpu: int) -> dict[str, Any] | None:
        return {"cpu": cpu}

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._folder.mkdir()
        self._namespace = self.session.namespace("ovs")
        self._start_database()
        self._start_switch(len(ports))
        self._control("add-br", _BRIDGE, "--", "set", "bridge", _BRIDGE, f"datapath_type={self._datapath()}")
        return {port.name: self._plug(port) for port in ports}

    def _start_database(self) -> None:
        kept = self._folder / "conf.db"
        schema = self._unpacked / _SCHEMA.relative_to("/") if self._unpacked else _SCHEMA
        subprocess.run(["ovsdb-tool", "create", kept, schema], check=True)
        command: list[str | Path] = [
            "ovsdb-server",
            kept,
            f"--remote=punix:{self._remote}",
            f"--unixctl={self._folder}/database.ctl",
        ]
        database = self.session.start("ovsdb-server", command, environment=self._environment)
        self._database = database
        until(lambda: procfs.listens(database.pid, self._remote), timeout=30, what="Open vSwitch's database")
        self._control("--no-wait", "init")

    def _start_switch(self, ports: int) -> None:
        settings = self._settings(ports)
        self._control("--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{word}" for word in settings))
        command: list[str | Path] = [
            *self._kept(),
            self._unpacked / "bin" / SWITCH.name if self._unpacked else self._program(),
            f"unix:{self._remote}",
            f"--unixctl={self._folder}/switch.ctl",
        ]
        switch = self.session.start("ovs-vswitchd", command, namespace=self._namespace, environment=self._environment)
        self._switch = switch

        def initialised() -> bool:
            switch.check()
            return self._is_up(switch)

        until(initialised, timeout=60, what="Open vSwitch to start")

    def _kept(self) -> list[str]:
        """The words before the daemon's command that keep it to a CPU; DPDK's own thread has a setting for it."""
        return []

    @classmethod
    def _program(cls) -> Path:
        """The switch's daemon."""
        return SWITCH

    @classmethod
    def _datapath(cls) -> str:
        """The kind of its bridge's datapath."""
        return "netdev"

    def _is_up(self, switch: HostProcess) -> bool:  # noqa: ARG002
        return self._control("get", "Open_vSwitch", ".", "dpdk_initialized") == "true"

    def _settings(self, ports: int) -> list[str]:
        pages = "--in-memory" if _free_huge_memory() >= _MEMORY else f"--no-huge --legacy-mem -m {_MEMORY}"
        settings = [
            "dpdk-init=true",
            f"dpdk-extra=--no-pci --file-prefix={self.session.name} --no-telemetry {pages}{self._drivers()}",
            "userspace-tso-enable=true",
            f"per-port-memory={'true' if ports <= _MOST_POOLS else 'false'}",
            "stats-update-interval=1000",
            "vhost-sock-dir=.",
        ]
        if self._max_sleep:  # its name in Open vSwitch 3.1, and from 3.2 on
            settings += [f"pmd-maxsleep={self._max_sleep}", f"pmd-sleep-max={self._max_sleep}"]
        return settings if self._cpu is None else [*settings, f"pmd-cpu-mask={1 << self._cpu:#x}"]

    def _drivers(self) -> str:
        """Words that load the unpacked DPDK's drivers, which it looks for where they would be installed."""
        found = sorted(self._unpacked.rglob("dpdk/pmds-*")) if self._unpacked else []
        return "".join(f" -d {folder}" for folder in found)

    def _plug(self, port: Port) -> Endpoint:
        if KINDS[port.kind].takes_devices:
            return self._plug_namespace(port)
        socket = self._folder / f"{port.name}.sock"
        masked = KINDS[port.kind].takes_every_feature
        server = self._folder / f"{port.name}.ovs" if masked else socket
        if masked:
            self._masks.append(FeatureMask(socket, server, back_end_connects=True))
        interface = ["type=dpdkvhostuserclient", f"options:vhost-server-path={server}", f"mtu_request={port.mtu}"]
        self._control("add-port", _BRIDGE, port.name, "--", "set", "Interface", port.name, *interface)
        if port.receive_rate:
            self._limit(port)
        return VhostUser(socket, guest_listens=not masked)

    def _plug_namespace(self, port: Port) -> Endpoint:
        """A veth pair, one end of it read by the switch as any of the host's devices."""
        device = self._interface(port)
        network.add_veth(device, port.name, namespace=self._namespace, mtu=port.mtu)
        self._add(device)
        return Device(port.name, self._namespace)

    def _add(self, device: str) -> None:
        self._control("add-port", _BRIDGE, device)

    def _limit(self, port: Port) -> None:
        """By the only means that its user-space datapath has: a policer, which drops."""
        rate = port.receive_rate // 8
        policer = ["type=egress-policer", f"other-config:cir={rate}", f"other-config:cbs={max(rate // 20, 128 << 10)}"]
        self._control("set", "port", port.name, "qos=@q", "--", "--id=@q", "create", "qos", *policer)

    @property
    def _remote(self) -> Path:
        return self._folder / "db.sock"

    @property
    def _environment(self) -> dict[str, str]:
        return {f"OVS_{name}": str(self._folder) for name in ("RUNDIR", "DBDIR", "SYSCONFDIR", "LOGDIR")}

    def _control(self, *arguments: str) -> str:
        command = ["ovs-vsctl", f"--db=unix:{self._remote}", "--timeout=60", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"ovs-vsctl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def counters(self) -> dict[str, dict[str, int]]:
        """Each port's statistics, up to a second old; their "rx" are frames from the guest."""
        names = {name: self._interface(nic.port) for name, nic in self.nics.items()}
        return {name: _statistics(self._control("get", "Interface", own, "statistics")) for name, own in names.items()}

    @staticmethod
    def _interface(port: Port) -> str:
        """The switch's name of the port."""
        return f"port-{port.name}" if KINDS[port.kind].takes_devices else port.name

    def tallies(self) -> dict[str, float]:
        ports = self.counters().values()
        return {
            "frames": sum(port.get("rx_packets", 0) for port in ports),
            "drops": sum(port.get("rx_dropped", 0) + port.get("tx_dropped", 0) for port in ports),
        }

    def held(self) -> dict[str, float]:
        command = ["ovs-appctl", f"--target={self._folder / 'switch.ctl'}", "netdev-dpdk/get-mempool-info"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return pools(done.stdout)

    def parties(self) -> list[HostProcess]:
        return [self._switch] if self._switch else []

    def helpers(self) -> list[HostProcess]:
        return [self._database] if self._database else []

    def clear(self) -> None:
        for mask in self._masks:
            mask.close()
        for process in (self._switch, self._database):
            if process:
                process.stop()
        self.session.remove_namespace(self._namespace)


def pools(told: str) -> dict[str, float]:
    """Bytes of DPDK's pools, from rte_mempool_dump of each: all of them, and those in use now."""
    found = {"frames_held": 0.0, "pools": 0.0}
    for pool in told.split("mempool <")[1:]:
        sizes = {name: int(value) for name, value in re.findall(r"^\s*(\w+)=(\d+)$", pool, re.MULTILINE)}
        each = sizes.get("total_obj_size", 0) or sizes["header_size"] + sizes["elt_size"] + sizes["trailer_size"]
        spare = sizes["common_pool_count"] + sizes.get("total_cache_count", 0)
        found["pools"] += sizes["populated_size"] * each
        found["frames_held"] += (sizes["populated_size"] - spare) * each
    return found


def _statistics(text: str) -> dict[str, int]:
    """Reads ovs-vsctl's map: {rx_bytes=1, rx_packets=2}."""
    pairs = (pair.split("=") for pair in text.strip("{}").split(", ") if "=" in pair)
    return {key.strip('"'): int(value) for key, value in pairs}


def _free_huge_memory() -> int:
    """MiB of the host's free huge pages."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["HugePages_Free"]) * int(fields["Hugepagesize"].split()[0]) // 1024
