"""The management console of a User Mode Linux kernel (arch/um/drivers/mconsole.h): one datagram each way."""

import socket
import struct
import tempfile
from pathlib import Path

from memlane_lab.common.errors import LabError

_MAGIC = 0xCAFEBABE
_VERSION = 2
_MAX_DATA = 512
_REPLY = struct.Struct("<III")  # error, more to come, length


def ask(console: Path, command: str, timeout: float = 10.0) -> str:
    """Sends a command to the kernel whose console socket is given; returns its answer or raises its refusal."""
    request = struct.pack("<III", _MAGIC, _VERSION, len(command)) + command.encode().ljust(_MAX_DATA, b"\0")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.settimeout(timeout)
        ours.bind(f"{folder}/console")
        try:
            ours.sendto(request, str(console))
            return _answer(ours, command)
        except OSError as error:
            raise LabError(f"the UML management console {console} does not answer `{command}`: {error}") from error


def _answer(ours: socket.socket, command: str) -> str:
    answer = b""
    while True:
        reply = ours.recv(4096)
        failed, more, length = _REPLY.unpack_from(reply)
        answer += reply[_REPLY.size : _REPLY.size + length].rstrip(b"\0")
        if failed:
            raise LabError(f"the UML kernel refuses `{command}`: {answer.decode(errors='replace')}")
        if not more:
            return answer.decode(errors="replace")
