"""Processes of other users that can connect to the control socket do not take a network over."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from memlane_lab.common.wait import until
from memlane_lab.host.session import Session
from memlane_lab.paths import memlane

pytestmark = pytest.mark.real

_NOBODY = 65534
_ASKS = ("POST /v1/takeover HTTP/1.1", "host: memlane", "connection: upgrade", "upgrade: memlane-takeover", "", "")


def test_another_user_takes_no_network_over(session: Session) -> None:
    """Neither by `memlane up --takeover`, nor by a program that asks without looking."""
    program = memlane.program()
    assert program is not None
    folder = session.folder / "others"
    folder.mkdir()
    binary = Path(shutil.copy(program, folder / "memlane"))
    file = folder / "net.toml"
    file.write_text('control = "control.sock"\n[[port]]\nname = "web"\nvhost-user = "web.sock"\n')
    control = folder / "control.sock"
    switch = session.start("memlane", [binary, "up", file])
    until(lambda: " is up" in switch.log.read_text(), timeout=20, what="the network")
    # An operator may have opened them; by default, only the network's user gets this far.
    control.chmod(0o666)
    for parent in (folder, *folder.parents[:-1]):
        parent.chmod(parent.stat().st_mode | 0o111)
    command: list[str | Path] = [binary, "up", file, "--takeover"]
    taken = subprocess.run(
        command, user=_NOBODY, group=_NOBODY, capture_output=True, text=True, timeout=60, check=False
    )
    assert taken.returncode == 1, taken.stderr
    named = re.search(r"only if it can read the key in (\S+): start", taken.stderr)
    assert named is not None, taken.stderr
    assert b" 403 " in _asked_by_nobody(control, "").split(b"\r\n")[0]
    # Nor with the key, as if the operator had opened that, too.
    refusal = f"of user {_NOBODY} asked for a takeover: only a process of this network's user may take it over"
    assert refusal in _asked_by_nobody(control, Path(named[1]).read_text()).decode(errors="replace")
    switch.check()
    assert refusal in switch.log.read_text()


def _asked_by_nobody(control: Path, key: str) -> bytes:
    """The answer to a process of user 65534 that asks for the network and shows this key."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(30)
        os.seteuid(_NOBODY)  # the kernel keeps the user that connects
        try:
            stream.connect(str(control))
        finally:
            os.seteuid(0)
        stream.sendall("\r\n".join([*_ASKS[:-2], f"memlane-takeover-key: {key}", *_ASKS[-2:]]).encode())
        answer = b""
        while b" 403 " not in answer and (part := stream.recv(4096)):
            answer += part
        return answer
