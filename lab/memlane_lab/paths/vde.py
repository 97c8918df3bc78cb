"""A switch that is an ordinary program: User Mode Linux's own way since its beginnings (its "daemon" transport).

Each guest's kernel hands its frames to a `vde_plug`, which it starts, and that to `vde_switch`, and back on the other
side: a system call for each frame at each step, and no large segments. It shows what a switch in user space costs that
moves frames by sockets.
"""

import os
import shutil
from collections.abc import Sequence
from typing import Any, ClassVar

from memlane_lab.common.wait import until
from memlane_lab.host.ports import Endpoint, GuestKind, Port, Vde
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths.path import NetworkPath

_PROGRAMS = ("vde_switch", "vde_plug")


class VdeSwitch(NetworkPath):
    """One vde_switch, learning as usual."""

    name: ClassVar[str] = "vde"
    title: ClassVar[str] = "vde_switch: User Mode Linux's own daemon"
    rank: ClassVar[int] = 35

    def __init__(self, session: Session, *, cpu: int | None = None) -> None:
        """`cpu` is the one that the switch is kept to; None: any."""
        super().__init__(session)
        self._cpus = () if cpu is None else (cpu,)
        self._switch: HostProcess | None = None

    @classmethod
    def missing(cls) -> str | None:
        absent = [program for program in _PROGRAMS if shutil.which(program) is None]
        return f"{' and '.join(absent)} not found: run make deps" if absent else None

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        return None if kind == GuestKind.UML else "it is the way of User Mode Linux"

    @classmethod
    def kept_to(cls, cpu: int) -> dict[str, Any] | None:
        return {"cpu": cpu}

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        folder = self.session.folder / "vde"
        most = str(max(2 * len(ports), 32))
        command = ["vde_switch", "--sock", str(folder), "--numports", most, "--rcfile", "/dev/null"]
        # It takes commands there, and ends when they do.
        orders, keep_open = os.pipe()
        self.session.callback(os.close, keep_open)
        try:
            switch = self.session.start("vde_switch", command, stdin=orders, cpus=self._cpus)
        finally:
            os.close(orders)
        self._switch = switch

        def listening() -> bool:
            switch.check()
            return (folder / "ctl").exists()

        until(listening, timeout=10, what="vde_switch's socket to appear")
        return {port.name: Vde(folder) for port in ports}

    def parties(self) -> list[HostProcess]:
        return [self._switch] if self._switch else []

    def clear(self) -> None:
        if self._switch:
            self._switch.stop()
