"""A vhost-user back end that is not ours, to try guests on: DPDK's test program, which joins exactly two ports."""

from collections.abc import Sequence
from typing import ClassVar

from memlane_lab.common.wait import until
from memlane_lab.host import procfs
from memlane_lab.host.ports import Endpoint, GuestKind, Port, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.paths.masking import FeatureMask
from memlane_lab.paths.path import NetworkPath


class Testpmd(NetworkPath):
    """What comes in at one port goes out at the other."""

    __test__ = False
    name: ClassVar[str] = "testpmd"
    title: ClassVar[str] = "DPDK testpmd"

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        return "its ports are vhost-user" if kind == GuestKind.NETNS else None

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._folder = self.session.folder / "testpmd"
        self._folder.mkdir()
        self._ports = list(ports)
        self.start()
        return {port.name: self._endpoint(port) for port in ports}

    def _endpoint(self, port: Port) -> Endpoint:
        socket = self._folder / f"{port.name}.sock"
        if port.kind != GuestKind.UML:
            return VhostUser(socket)
        masked = self._folder / f"{port.name}.masked"
        FeatureMask(masked, socket, back_end_connects=False)
        return VhostUser(masked)

    def start(self) -> None:
        """Starts testpmd (again, after `kill`) and waits until it listens."""
        sockets = [self._folder / f"{port.name}.sock" for port in self._ports]
        for socket in sockets:
            socket.unlink(missing_ok=True)
        queues = max(port.queues for port in self._ports)
        command = [
            *("dpdk-testpmd", "--no-pci", "--no-huge", "-m", "256", "--no-telemetry"),
            *(f"--file-prefix={self.session.name}", "--lcores", "0@(0-1),1@(0-1)"),
            *(f"--vdev=net_vhost{i},iface={socket},queues={queues},tso=1" for i, socket in enumerate(sockets)),
            *("--", "--nb-cores=1", "--forward-mode=io", "--no-mlockall", "--total-num-mbufs=8192", "--auto-start"),
            *(f"--rxq={queues}", f"--txq={queues}", "--no-lsc-interrupt", "--stats-period=3600"),
        ]
        self._process: HostProcess = self.session.start("testpmd", command)

        def listening() -> bool:
            self._process.check()
            return all(procfs.listens(self._process.pid, socket) for socket in sockets)

        until(listening, timeout=30, what="testpmd to listen")

    def parties(self) -> list[HostProcess]:
        return [self._process]

    def kill(self) -> None:
        """Ends testpmd at once."""
        self._process.kill()

    def clear(self) -> None:
        self.kill()
