"""The switch as these tests run it: ports stated in detail, a control socket of its own, its report."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memlane_lab.common.wait import until
from memlane_lab.host import network
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths.masking import FeatureMask
from memlane_lab.paths.memlane import Memlane, program

Report = dict[str, Any]
"""The output of `memlane status --json`, or the part of it that is about one port."""

HARMLESS_DROPS = {
    "flood-no-room",
    "transmit-disabled",
    "link-loss",
    "receiver-absent",
    "receiver-full",
    "receiver-stalled",
    "sender-stopped",
}
"""Drops that well-behaved guests meet: others come and go, and are slow. Any other reason is a fault."""

RARE_DROPS = {"sender-memory": 2, "too-long-for-receiver": 32}
"""Drops that an honest guest meets where the hypervisor stops this machine in the middle of a copy, which counts as CPU
time, or this machine stops the guest while it posts buffers for a large frame, and their limits."""
_SLOW_BOOT = "its guest kicks, but its rings stay empty: if its interface is up"
"""A warning about guests that take more than 5 s from their driver's start until their interface is up."""
_NOT_UP_YET = "has no carrier"
"""A warning about TAPs that a test sets up, or takes from their guest's namespace, while the switch runs."""


class Switch(Memlane):
    """memlane, with a TAP in a namespace of its own for each netns port."""

    def __init__(
        self,
        session: Session,
        stated: Mapping[str, Mapping[str, Any]],
        hidden: Mapping[str, int],
        **settings: Any,
    ) -> None:
        """`stated` adds keys to a port in the network's file; `hidden` are features that its guest never sees."""
        super().__init__(session, **settings)
        self._stated = stated
        self._hidden = hidden
        self._namespaces: dict[str, str] = {}

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        for port in ports:
            if port.kind is GuestKind.NETNS:
                self._namespaces[port.name] = self.session.namespace(port.name)
        return super()._lay(ports)

    def _port(self, port: Port) -> dict[str, Any]:
        if port.kind is GuestKind.NETNS:
            place = {"name": port.name, "tap": port.name, "netns": self._namespaces[port.name]}
        else:
            place = super()._port(port)
        return place | dict(self._stated[port.name])

    def _endpoint(self, port: Port) -> Endpoint:
        if port.kind is GuestKind.NETNS:
            return Device(port.name, self._namespaces[port.name])
        if hidden := self._hidden.get(port.name):
            return VhostUser(self._mask(port, hidden))
        return VhostUser(self._socket(port), guest_listens=self._connects(port))

    def _mask(self, port: Port, hidden: int) -> Path:
        """A socket for the guest behind which the features `hidden` are missing."""
        masked = self._folder / f"{port.name}.masked"
        self.session.callback(FeatureMask(masked, self._socket(port), back_end_connects=False, hidden=hidden).close)
        return masked

    def _connects(self, port: Port) -> bool:
        return bool(self._stated[port.name].get("connect", False))

    def _is_there(self, port: Port) -> bool:
        if port.kind is GuestKind.NETNS:
            return network.exists(port.name, namespace=self._namespaces[port.name])
        return self._connects(port) or super()._is_there(port)

    @property
    def file(self) -> Path:
        """The network's file."""
        return self._file

    def socket(self, name: str) -> VhostUser:
        """Where a program meets the switch that is to be on port `name`."""
        return VhostUser(self._folder / f"{name}.sock")

    @property
    def daemon(self) -> HostProcess:
        """The process that runs now, or ran last."""
        assert self._daemon is not None
        return self._daemon

    def report(self) -> Report:
        """The switch's report."""
        binary = program()
        assert binary is not None
        command: list[str | Path] = [binary, "status", "--json", self._file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        report: Report = json.loads(done.stdout)
        return report

    def port(self, name: str) -> Report:
        """Its report about one port."""
        return next(port for port in self.report()["ports"] if port["name"] == name)

    def wait_running(self, *names: str, timeout: float = 20.0) -> None:
        """Waits until the ports are in use."""

        def running() -> bool:
            return all(port["state"] == "running" for port in self.report()["ports"] if port["name"] in names)

        until(running, timeout=timeout, what=f"the ports {', '.join(names)} to run")

    def check(self) -> None:
        """Insists that the switch lives, without ports in quarantine, warnings, or frames dropped as faulty."""
        self.daemon.check()
        ports = self.report()["ports"]
        said = self.daemon.log.read_text(errors="replace")
        for port in ports:
            assert port["quarantines"] == 0, f"port {port['name']} was in quarantine; memlane said: {said}"
            drops = {reason: count for reason, count in port["drops"].items() if count >= RARE_DROPS.get(reason, 0)}
            assert set(drops) <= HARMLESS_DROPS, f"port {port['name']} dropped {port['drops']}"
            assert port["bad-receive-chains"] == 0, port
            # A guest that this machine stops in between may be late now and then.
            assert port["missed-kicks"] < 3, port
        told = [line for line in said.splitlines() if _SLOW_BOOT not in line and _NOT_UP_YET not in line]
        assert not any(word in line for line in told for word in ("WARN", "ERROR", "panicked")), said
