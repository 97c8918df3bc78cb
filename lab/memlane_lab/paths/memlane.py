"""memlane: each packet moves once, from the sender's memory into the receiver's. Known here only from outside."""

import http.client
import json
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import tomli_w

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.guests import KINDS
from memlane_lab.host import network, rust
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port, Uplink, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths.path import DROPS, NetworkPath


def program() -> Path | None:
    """The switch: `$MEMLANE`, else the one built in this repository, else the one on `$PATH`."""
    return rust.program("memlane", named_by="MEMLANE")


class Memlane(NetworkPath):
    """One memlane daemon; a vhost-user port for each virtual machine, a TAP for each namespace."""

    name: ClassVar[str] = "memlane"
    title: ClassVar[str] = "memlane: one copy, guest to guest"
    rank: ClassVar[int] = 40
    limits: ClassVar[bool] = True
    spreads: ClassVar[bool] = True

    def __init__(self, session: Session, *, program: str | None = None, **settings: Any) -> None:  # noqa: ANN401
        """`settings` go to the top of the network's file: workers, cpus, poll; `ports` holds keys of ports, by name.

        `program` is another build of the switch than the usual one.
        """
        super().__init__(session)
        self._program = program
        self._settings = settings
        self._port_settings: dict[str, dict[str, Any]] = self._settings.pop("ports", {})
        self._folder = session.folder / "memlane"
        self._daemon: HostProcess | None = None
        self._ports: list[Port] = []

    @classmethod
    def missing(cls) -> str | None:
        return (
            None if program() else "no memlane found in target/release, on $PATH or named by $MEMLANE: run make build"
        )

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        return network.may_change() if KINDS[kind].takes_devices else None

    @classmethod
    def kept_to(cls, cpu: int) -> dict[str, Any] | None:
        return {"cpus": [cpu]}

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._folder.mkdir(exist_ok=True)
        self._ports = list(ports)
        stated = {**self._settings, "control": str(self._control), "port": [self._port(port) for port in ports]}
        if self.uplink:
            stated["segment"] = [_spread(self.uplink)]
        self._file.write_text(tomli_w.dumps(stated))
        self.start()
        return {port.name: self._endpoint(port) for port in ports}

    @property
    def _file(self) -> Path:
        return self._folder / "net.toml"

    @property
    def _control(self) -> Path:
        return self._folder / "control.sock"

    def _port(self, port: Port) -> dict[str, Any]:
        """The port as the network's file states it."""
        limit = {"receive": {"rate": f"{port.receive_rate}bit"}} if port.receive_rate else {}
        own = limit | self._port_settings.get(port.name, {})
        if KINDS[port.kind].takes_devices:
            return {"name": port.name, "tap": self.session.link_name(port.name)} | own
        return {"name": port.name, "vhost-user": str(self._socket(port))} | own

    def _socket(self, port: Port) -> Path:
        return self._folder / f"{port.name}.sock"

    def _endpoint(self, port: Port) -> Endpoint:
        if KINDS[port.kind].takes_devices:
            return Device(self.session.link_name(port.name), None)
        return VhostUser(self._socket(port))

    def start(self) -> None:
        """Starts the daemon (again, after `stop` or `kill`) and waits until all its ports are there."""
        daemon = self._run()

        def listening() -> bool:
            daemon.check()
            return self._answers(daemon) and all(self._is_there(port) for port in self._ports)

        until(listening, timeout=10, what="memlane's ports to appear")

    def take_over(self) -> None:
        """Has another daemon take the network over, as an upgrade does; the one before ends by itself."""
        before = self._daemon
        assert before is not None
        daemon = self._run("--takeover")

        def ended() -> bool:
            daemon.check()
            return not before.alive

        until(ended, timeout=20, what="the memlane that served before to end")
        assert before.exit_code == 0, before.tail()

    def _run(self, *options: str) -> HostProcess:
        binary = self._program or program()
        assert binary is not None
        self._daemon = self.session.start("memlane", [binary, "up", *options, self._file])
        return self._daemon

    def _answers(self, daemon: HostProcess) -> bool:
        """Whether this daemon answers at the control socket, which it opens after those of its ports.

        `/proc/net/unix` does not tell: a socket that replaces that of a daemon that was killed has another path there.
        """
        try:
            return bool(Memlane.report(self)["pid"] == daemon.pid)
        except LabError:
            return False

    def _is_there(self, port: Port) -> bool:
        if KINDS[port.kind].takes_devices:
            return network.exists(self.session.link_name(port.name), namespace=None)
        return self._socket(port).is_socket()

    def report(self) -> dict[str, Any]:
        """The report from the daemon's control socket (`memlane status --json` prints the same)."""
        connection = http.client.HTTPConnection("memlane")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)  # a timeout of the connection would not reach a socket that it did not make
        try:
            with closing(connection):
                connection.sock.connect(str(self._control))
                connection.request("GET", "/v1/network")
                answer: dict[str, Any] = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            raise LabError(f"memlane does not answer at {self._control}: {error}") from error
        return answer

    def counters(self) -> dict[str, dict[str, int]]:
        """The daemon's counters of each port."""
        return {
            port["name"]: {name: value for name, value in port.items() if isinstance(value, int)}
            for port in self.report()["ports"]
        }

    def kicks(self) -> dict[str, int]:
        return {name: port["kicks"] for name, port in self.counters().items()}

    def tallies(self) -> dict[str, float]:
        told = self.report()
        ports, workers = told["ports"], told["workers"]
        cycles = sum(worker["busy-cycles"] for worker in workers)
        by_reason = Counter[str]()
        for port in ports:
            by_reason.update(port["drops"])
        return {
            **{f"{DROPS}{reason}": count for reason, count in by_reason.items()},
            "frames": sum(port["transmit-frames"] for port in ports),
            "drops": by_reason.total(),
            "kicks": sum(port["kicks"] for port in ports),
            "path_interrupts": sum(port["interrupts"] for port in ports),
            "delivered": sum(port["receive-bytes"] for port in ports),
            "worker_busy": cycles / told["cycles-per-second"],
            "worker_cycles": cycles,
            "worker_frames": sum(worker["frames"] for worker in workers),
            "sleeps": sum(worker["sleeps"] for worker in workers),
        }

    def held(self) -> dict[str, float]:
        return {"frames_held": self.report()["memory-held"]}

    def parties(self) -> list[HostProcess]:
        return [self._daemon] if self._daemon else []

    def stop(self) -> None:
        """Ends the daemon as an operator would, while guests live."""
        if self._daemon:
            self._daemon.stop()

    def kill(self) -> None:
        """Ends the daemon as a crash would; its sockets stay behind, dead."""
        if self._daemon:
            self._daemon.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    def clear(self) -> None:
        self.stop()


def _spread(uplink: Uplink) -> dict[str, Any]:
    """The ports' segment as the network's file states it, if it goes on at other hosts."""
    place = {"local": uplink.local, "netns": uplink.namespace}
    return {"name": "lan", "uplink": True, "vni": uplink.vni, **place}
