"""A front end that is neither QEMU nor User Mode Linux: DPDK's test program on virtio-user ports."""

from collections.abc import Sequence

from memlane_lab.host.ports import VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session


class Testpmd:
    """Polls its rings, shares its memory from a file of small pages, serves its control queue itself."""

    __test__ = False

    def __init__(
        self, session: Session, ports: Sequence[VhostUser], forward: str, *, queues: int = 1, used: int | None = None
    ) -> None:
        """`forward` is one of its modes: "io" joins neighbouring ports, "icmpecho" answers.

        Its devices are given `queues` pairs, of which it uses `used` (None: all).
        It ends at once if a port has fewer than it is to use.
        """
        used = queues if used is None else used
        devices = (
            f"--vdev=net_virtio_user{i},path={port.socket},queues={queues},queue_size=256"
            + (",server=1" if port.guest_listens else "")
            for i, port in enumerate(ports)
        )
        self._session = session
        self._own_sockets = [port.socket for port in ports if port.guest_listens]
        self._command = [
            *("dpdk-testpmd", "--no-pci", "--no-huge", "-m", "128", "--no-telemetry"),
            *(f"--file-prefix={session.name}", "--lcores", "0@(0-1),1@(0-1)", *devices),
            *("--", "--nb-cores=1", f"--forward-mode={forward}", "--no-mlockall", "--total-num-mbufs=16384"),
            *(f"--rxq={used}", f"--txq={used}", "--auto-start", "--stats-period=3600"),
        ]
        self.start()

    def start(self) -> None:
        """Starts it (again, after `kill`, which leaves the sockets behind that it listened at)."""
        for socket in self._own_sockets:
            socket.unlink(missing_ok=True)
        self.process: HostProcess = self._session.start("testpmd", self._command)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
