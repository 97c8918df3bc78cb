"""A go-between that hides from a guest the features that a vhost-user back end offers but does not serve.

QEMU answers the control queue itself and hides the features that hang on it; User Mode Linux takes every feature that
is offered, and then waits for ever on a queue that no back end serves. DPDK's offer them. This stands between the
two sockets and edits two replies of the handshake; memory and notifications pass by it, so it costs no packet
anything. The back end may connect to it, or be connected to.
"""

import os
import socket
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

_HEADER = struct.Struct("<III")  # request, flags, payload size
_REPLY = 1 << 2
_GET_FEATURES, _GET_PROTOCOL_FEATURES = 1, 15
_MOST_DESCRIPTORS = 16


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


# virtio 1.3, 5.1.3: the control queue (17) and its dependants; 6: packed ring (34), in order (35)
HIDDEN_FEATURES = _bits([2, *range(17, 24), 34, 35, 50, 52, 53, 57, 60])
_HIDDEN_PROTOCOL_FEATURES = _bits([0])  # MQ


class FeatureMask:
    """Listens for the guest on one socket and joins it with the back end on another, again for each new guest."""

    def __init__(
        self, guest_side: Path, back_end: Path, *, back_end_connects: bool, hidden: int = HIDDEN_FEATURES
    ) -> None:
        """`hidden` are the virtio features that the guest is not offered."""
        self._hidden = hidden
        self._guests = _listener(guest_side)
        self._back_ends = _listener(back_end) if back_end_connects else None
        self._back_end = back_end
        threading.Thread(target=self._serve, name=f"mask-{guest_side.name}", daemon=True).start()

    def close(self) -> None:
        """Takes no further guests."""
        for listener in filter(None, (self._guests, self._back_ends)):
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _serve(self) -> None:
        while True:
            try:
                guest, _ = self._guests.accept()
                back_end = self._reach_back_end()
            except OSError:
                return
            threading.Thread(target=_pump, args=(guest, back_end, None), daemon=True).start()
            threading.Thread(target=_pump, args=(back_end, guest, self._hidden), daemon=True).start()

    def _reach_back_end(self) -> socket.socket:
        if self._back_ends:
            return self._back_ends.accept()[0]
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._back_end))
        return connection


def _listener(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def _pump(source: socket.socket, target: socket.socket, hidden: int | None) -> None:
    """Passes messages on, with their descriptors, until either side hangs up; then hangs up on both.

    `hidden` are the features to take from a back end's replies; None where the source is the guest.
    """
    try:
        while message := _receive(source):
            request, flags, payload, descriptors = message
            edited = _edit(request, payload, hidden) if hidden is not None and flags & _REPLY else payload
            socket.send_fds(target, [_HEADER.pack(request, flags, len(edited)) + edited], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
    source.close()


def _edit(request: int, payload: bytes, features: int) -> bytes:
    hidden = {_GET_FEATURES: features, _GET_PROTOCOL_FEATURES: _HIDDEN_PROTOCOL_FEATURES}.get(request)
    if hidden is None or len(payload) != 8:
        return payload
    return struct.pack("<Q", struct.unpack("<Q", payload)[0] & ~hidden)


def _receive(source: socket.socket) -> tuple[int, int, bytes, list[int]] | None:
    """The next message and the descriptors that came with it."""
    descriptors: list[int] = []
    header = _exactly(source, _HEADER.size, descriptors)
    if len(header) < _HEADER.size:
        return None
    request, flags, size = _HEADER.unpack(header)
    return request, flags, _exactly(source, size, descriptors), descriptors


def _exactly(source: socket.socket, length: int, descriptors: list[int]) -> bytes:
    data = b""
    while len(data) < length:
        piece, received, _, _ = socket.recv_fds(source, length - len(data), _MOST_DESCRIPTORS)
        descriptors += received
        if not piece:
            break
        data += piece
    return data
