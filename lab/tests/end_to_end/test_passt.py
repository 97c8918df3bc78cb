"""A way out for guests without root: passt behind a port gives a guest its address and leads it to the host."""

import functools
import http.server
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlane_lab.common.wait import until
from memlane_lab.guests.uml import UmlGuest
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind, Nic, Port, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.images import root, uml_kernel
from memlane_lab.images.uml_kernel import UmlKernel
from memlane_lab.paths import memlane

pytestmark = pytest.mark.real

_NOBODY = 65534
_AS_NOBODY = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs")
_PAGE = b"a page of the host\n" * 1000
_CONFIGURE = """#!/bin/sh
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
ip route add default via "$router" dev "$interface"
echo "$router" >/tmp/router
"""
"""The script of the guest's DHCP client."""


class _NobodysGuest(UmlGuest):
    """A guest with a kernel that is a process of the user nobody, from copies that the user nobody may read."""

    def _start(self, channel: socket.socket) -> HostProcess:
        self._folder.mkdir(exist_ok=True)
        kernel = uml_kernel.kernel()
        program = shutil.copy(kernel.program, self._folder / "linux")
        shutil.copytree(root.image().tree, self._folder / "root", symlinks=True)
        for path in (self._folder, *self._folder.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
        command = [*_AS_NOBODY, "setarch", "--addr-no-randomize", program, *self._arguments(kernel, channel)]
        return self.session.start(
            f"guest-{self.name}", command, environment={"TMPDIR": "/dev/shm"}, descriptors=[channel.fileno()]
        )

    def _arguments(self, kernel: UmlKernel, channel: socket.socket) -> list[str]:
        own = f"rootflags={self._folder / 'root'}"
        return [own if word.startswith("rootflags=") else word for word in super()._arguments(kernel, channel)]


class _Page(http.server.ThreadingHTTPServer):
    """A web server at the host's loopback address. Of `/slow` the second half waits until :attr:`may_end` is set."""

    def __init__(self) -> None:
        has_begun, may_end = threading.Event(), threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                half = len(_PAGE) // 2 if self.path == "/slow" else 0
                self.wfile.write(_PAGE[:half])
                if half:
                    has_begun.set()
                    may_end.wait(60)
                self.wfile.write(_PAGE[half:])

            log_message = functools.partialmethod(lambda *_: None)

        super().__init__(("127.0.0.1", 0), Handler)
        self.has_begun, self.may_end = has_begun, may_end


@pytest.fixture
def page() -> Iterator[_Page]:
    """A web server."""
    with _Page() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.may_end.set()
        server.shutdown()


def test_a_guest_fetches_a_page_without_root(session: Session, page: _Page) -> None:
    """memlane, passt and the guest run without root; the guest gets an address and a page, also over a takeover."""
    program = memlane.program()
    assert program is not None
    folder = session.folder / "out"
    folder.mkdir()
    binary = shutil.copy(program, folder / "memlane")
    file = folder / "net.toml"
    file.write_text(
        'control = "control.sock"\n'
        '[[port]]\nname = "guest"\nvhost-user = "guest.sock"\n'
        '[[port]]\nname = "out"\npasst = ["--address", "10.9.0.2", "--netmask", "24", "--gateway", "10.9.0.1"]\n'
    )
    _open_to_nobody(folder)
    switch = session.start("memlane", [*_AS_NOBODY, binary, "up", file])
    until((folder / "guest.sock").exists, timeout=20, what=f"the guest's port: {switch.tail()}")
    assert Path(f"/proc/{switch.pid}").stat().st_uid == _NOBODY
    guest = _NobodysGuest(
        session, "guest", [Nic(Port("guest", GuestKind.UML, ports.mac(1)), VhostUser(folder / "guest.sock"))]
    )
    guest.boot()
    guest.run(f"cat >/tmp/configure <<'END'\n{_CONFIGURE}END\nchmod +x /tmp/configure").check()
    guest.run("ip link set net0 up && udhcpc -i net0 -n -q -t 10 -s /tmp/configure", timeout=60).check()
    assert "10.9.0.2/24" in guest.run("ip address show net0").stdout
    site = f"http://$(cat /tmp/router):{page.server_port}"
    fetched = guest.run(f"wget -q -O - {site}/ | md5sum", timeout=60).stdout
    expected = guest.run(["sh", "-c", f"yes 'a page of the host' | head -n {_PAGE.count(10)} | md5sum"]).stdout
    assert fetched == expected, switch.tail()
    guest.run(f"wget -q -O /tmp/slow {site}/slow >/dev/null 2>&1 & echo $! >/tmp/wget").check()
    assert page.has_begun.wait(30), switch.tail()
    after = session.start("memlane-after", [*_AS_NOBODY, binary, "up", file, "--takeover"])
    assert switch.wait(30), after.tail()
    page.may_end.set()
    ended = "while kill -0 $(cat /tmp/wget) 2>/dev/null; do sleep 0.1; done; md5sum </tmp/slow"
    assert guest.run(ended, timeout=60).stdout == expected, after.tail()


def _open_to_nobody(folder: Path) -> None:
    """Lets the user nobody work in `folder`, and reach it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY)
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o111)
