"""The process that a topology lives in after `topo up`: brings it up, then waits to be told to end it.

It reads the topology from its standard input. The starter follows its news, and gives the topology up by hanging
up before it is up.
"""

import json
import os
import signal
import sys
import threading

from memlane_lab.common.errors import LabError
from memlane_lab.host.session import exit_on_termination
from memlane_lab.topo.model import Topology, check
from memlane_lab.topo.net import Net
from memlane_lab.topo.service import Service

_STARTED = "ready"
"""Said on standard output once the socket accepts connections."""


def main() -> int:
    """Keeps one topology."""
    exit_on_termination()
    stated = json.load(sys.stdin)
    topology = check(stated["topology"], folder=stated["folder"])
    net = _Kept(topology, wait=stated["wait"])
    try:
        with net:
            net.keep()
    except LabError as error:
        if net.service is None:
            sys.stdout.write(f"{error}\n")
        return 1
    return 0


class _Kept(Net):
    """A topology that tells how it comes up, and stays until told otherwise."""

    def __init__(self, topology: Topology, *, wait: bool) -> None:
        super().__init__(topology, progress=self._tell)
        self._wait = wait

    def _serving(self) -> None:
        sys.stdout.write(f"{_STARTED}\n")
        sys.stdout.flush()
        threading.Thread(target=self._end_if_given_up, daemon=True).start()

    def _tell(self, what: str, done: int, of: int) -> None:
        self._service.tell(what=what, done=done, of=of)

    @property
    def _service(self) -> Service:
        assert self.service is not None
        return self.service

    def _end_if_given_up(self) -> None:
        self._service.starter_gone.wait()
        if not self.is_up:
            os.kill(os.getpid(), signal.SIGTERM)

    def _failed(self, error: BaseException) -> None:
        if self.service:
            self.service.tell(error=str(error) or type(error).__name__)

    def keep(self) -> None:
        """Waits until told to end it."""
        warning = ""
        try:
            if self._wait:
                self.wait_neighbours()
                self.wait_routes()
                self.wait_end_to_end()
        except LabError as error:
            warning = str(error)  # it can be looked at why
        self.is_up = True
        self._service.tell(up=True, seconds=vars(self.phases), warning=warning, complaints=self.complaints)
        self._service.asked_down.wait()


if __name__ == "__main__":
    sys.exit(main())
