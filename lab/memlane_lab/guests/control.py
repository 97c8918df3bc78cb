"""The lab's end of the control channel: commands, files and signals for one guest, over one byte stream.

A thread reads **frames** (`frames.py`) and hands each to the **request** whose handle it carries; callers wait on their
request.
"""

import codecs
import itertools
import re
import shlex
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import Timeout
from memlane_lab.guests import frames
from memlane_lab.guests.frames import FrameReader, Kind, NotFrames

_WINDOW = 2048
"""Bytes that may be under way unacknowledged: the serial line of UML stops for good if its buffer overflows."""
_OS_ERROR = re.compile(r" \(os error \d+\)$")
"""How Rust ends the words of an error of the system."""
_PIECE = 32000
"""File bytes in one frame; with the path it stays within the longest payload."""


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    command: str
    status: int
    """Its exit code, or minus the number of the signal that ended it."""
    stdout: str
    stderr: str

    def check(self) -> "Result":
        """Itself, if the command succeeded; raises with its output if not."""
        if self.status:
            said = self.stderr.strip() or self.stdout.strip()
            raise CommandFailed(f"`{self.command}` ended with status {self.status}: {said[-2000:]}")
        return self


class CommandFailed(LabError):
    """A command in a guest ended with a status other than zero, or could not be started."""


class GuestGone(LabError):
    """The control channel has closed: the guest has ended, or its agent has."""


class _Request:
    """A request to the guest, and its answers so far."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.merged = bytearray()
        """Both outputs in the order in which they came."""
        self.status: int | None = None
        self.error: LabError | None = None

    @property
    def ended(self) -> bool:
        return self.status is not None or self.error is not None

    def wait(self, ready: Callable[[], bool], timeout: float, what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: ready() or self.ended, timeout):
                raise Timeout(f"timeout: waited {timeout:g} s for {what}")
        if self.error and not ready():
            raise self.error

    def wait_for_more(self, length: int) -> bool:
        """Waits until more than `length` bytes have been said; tells whether that was all."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.merged) > length or self.ended)
            return self.ended

    def take(self, kind: Kind, payload: bytes) -> None:
        with self.changed:
            match kind:
                case Kind.STDOUT | Kind.DATA:
                    self.stdout += payload
                    self.merged += payload
                case Kind.STDERR:
                    self.stderr += payload
                    self.merged += payload
                case Kind.EXIT:
                    self.status = int.from_bytes(payload, "little", signed=True)
                case Kind.DONE:
                    self.status = 0
                case _:
                    self.error = CommandFailed(_OS_ERROR.sub("", payload.decode(errors="replace")))
            self.changed.notify_all()

    def fail(self, error: LabError) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()


class Running:
    """A command that runs in a guest."""

    def __init__(self, control: "Control", handle: int, request: _Request, command: str) -> None:
        self._control = control
        self._handle = handle
        self._request = request
        self.command = command

    @property
    def stdout(self) -> str:
        """Its standard output so far."""
        return self._request.stdout.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Its standard error so far."""
        return self._request.stderr.decode(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether it has ended and all its output is here."""
        return self._request.ended

    def wait(self, timeout: float = 60.0) -> Result:
        """Waits for its end (its output's too) up to `timeout` seconds; kills it if that is not enough."""
        try:
            self._request.wait(lambda: False, timeout, f"the end of `{self.command}`")
        except Timeout:
            self.kill()
            raise
        status = self._request.status
        assert status is not None
        return Result(self.command, status, self.stdout, self.stderr)

    def wait_for_output(self, pattern: str, timeout: float = 10.0) -> str:
        """Waits until `pattern` (a regular expression) is in its output or errors; returns the match."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.stdout) or re.search(pattern, self.stderr)

        self._request.wait(lambda: found() is not None, timeout, f"`{self.command}` to say {pattern!r}")
        match = found()
        if match is None:
            raise CommandFailed(f"`{self.command}` ended without saying {pattern!r}: {self.stdout}{self.stderr}")
        return match[0]

    def follow(self) -> Iterator[str]:
        """Yields its output and errors together, as they come, until its end."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        taken, ended = 0, False
        while not ended:
            ended = self._request.wait_for_more(taken)
            piece = bytes(self._request.merged[taken:])
            taken += len(piece)
            yield decoder.decode(piece, final=ended)

    def write(self, data: bytes) -> None:
        """Gives it bytes on its standard input."""
        for start in range(0, len(data), _PIECE):
            self._control.send(Kind.STDIN, self._handle, data[start : start + _PIECE])

    def close_input(self) -> None:
        """Ends its standard input."""
        self._control.send(Kind.STDIN, self._handle, b"")

    def signal(self, number: int) -> None:
        """Sends a signal to it and its children."""
        self._control.send(Kind.SIGNAL, self._handle, struct.pack("<i", number))

    def kill(self) -> None:
        """Ends it and its children at once."""
        self.signal(9)


class Control:
    """The channel to one guest's agent. Safe to use from several threads."""

    def __init__(self, name: str, channel: socket.socket, *, first_handle: int = 1, greeted: bool = False) -> None:
        """`channel` is our end of a stream socket pair; the guest was given the other.

        The agent of a guest that was restored has `greeted` before, and has requests of another channel: those of this
        one are numbered from `first_handle` on.
        """
        self._name = name
        self._channel = channel
        self._handles = itertools.count(first_handle)
        self._requests: dict[int, _Request] = {}
        self._hellos = int(greeted)
        self._reader = FrameReader()
        self._closed = False
        self._reason = ""
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._credit = _WINDOW if greeted else 0  # nothing is sent before the agent has greeted
        threading.Thread(target=self._receive, name=f"control-{name}", daemon=True).start()

    @property
    def hellos(self) -> int:
        """How many times an agent has greeted on this channel: once each boot."""
        return self._hellos

    def wait_hello(self, count: int, timeout: float, alive: Callable[[], None]) -> None:
        """Waits until an agent has greeted `count` times; `alive` is called now and then and may raise."""
        waited = 0.0
        with self._changed:
            while self._hellos < count:
                alive()
                if self._closed:
                    raise GuestGone(f"guest {self._name}, or its control agent, has ended before the agent greeted")
                if waited > timeout:
                    raise Timeout(f"timeout: waited {waited:.0f} s for the control agent of guest {self._name}")
                if not self._changed.wait(0.1):
                    waited += 0.1

    def spawn(self, command: str | Sequence[str | Path], *, stdin: bytes | None = b"") -> Running:
        """Starts a command: a list of arguments, or a line for the guest's shell.

        `stdin` is all that it gets as standard input; None leaves the input open for `Running.write`.
        """
        arguments = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        handle, request = self._open()
        text = command if isinstance(command, str) else shlex.join(arguments)
        self.send(Kind.SPAWN, handle, b"".join(word.encode() + b"\0" for word in arguments))
        running = Running(self, handle, request, text)
        if stdin is not None:
            running.write(stdin)
            running.close_input()
        return running

    def run(self, command: str | Sequence[str | Path], timeout: float = 60.0, *, stdin: bytes = b"") -> Result:
        """Runs a command to its end; raises when it takes longer than `timeout` seconds."""
        return self.spawn(command, stdin=stdin).wait(timeout)

    def get(self, path: str, timeout: float = 10.0) -> bytes:
        """The content of a file in the guest, without starting a process there."""
        (content,) = self.get_all([path], timeout)
        return content

    def get_all(self, paths: Sequence[str], timeout: float = 10.0) -> list[bytes]:
        """The contents of several files, asked for at once: a busy guest is waited for once, not for each."""
        asked = []
        for path in paths:
            handle, request = self._open()
            self.send(Kind.READ, handle, path.encode())
            asked.append(request)
        for path, request in zip(paths, asked, strict=True):
            request.wait(lambda: False, timeout, f"file {path} of guest {self._name}")
        return [bytes(request.stdout) for request in asked]

    def put(self, path: str, content: bytes, timeout: float = 30.0) -> None:
        """Writes a file in the guest."""
        for start in range(0, max(len(content), 1), _PIECE):
            handle, request = self._open()
            piece = content[start : start + _PIECE]
            self.send(Kind.WRITE, handle, struct.pack("<Q", start) + path.encode() + b"\0" + piece)
            request.wait(lambda: False, timeout, f"writing {path} in guest {self._name}")

    def expect_reboot(self) -> None:
        """Prepares for an agent that ends in mid-frame, and for its successor's greeting."""
        self._reader.expect_hello()

    def close(self) -> None:
        """Hangs up: the guest ends its programs, and powers off."""
        with suppress(OSError):  # the other end may have gone first
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()

    def send(self, kind: Kind, handle: int, payload: bytes) -> None:
        """Sends a frame, never more at a time than the guest has room for."""
        data = frames.pack(kind, handle, payload)
        with self._sending:
            while data:
                length = self._take_credit(len(data))
                try:
                    self._channel.sendall(data[:length])
                except OSError as error:
                    raise self._gone() from error
                data = data[length:]

    def _take_credit(self, wanted: int) -> int:
        with self._changed:
            if not self._changed.wait_for(lambda: self._credit > 0 or self._closed, timeout=30):
                raise Timeout(f"guest {self._name} no longer reads from its control channel")
            if self._closed:
                raise self._gone()
            length = min(wanted, self._credit)
            self._credit -= length
            return length

    def _open(self) -> tuple[int, _Request]:
        handle, request = next(self._handles), _Request()
        with self._changed:
            if self._closed:
                raise self._gone()
            self._requests[handle] = request
        return handle, request

    def _gone(self) -> GuestGone:
        return GuestGone(f"guest {self._name} has gone: {self._reason}")

    def _receive(self) -> None:
        """Runs in a thread of its own until the channel closes."""
        reason = "its control channel is closed"
        try:
            while piece := self._channel.recv(1 << 16):
                for kind, handle, payload in self._reader.feed(piece):
                    self._handle(kind, handle, payload)
        except OSError:
            pass
        except NotFrames as error:
            reason = f"its control channel carries no frames any more: {error}"
        with self._changed:
            self._reason = reason
            self._closed = True
            self._changed.notify_all()
            pending = list(self._requests.values())
        for request in pending:
            request.fail(self._gone())

    def _handle(self, kind: Kind, handle: int, payload: bytes) -> None:
        match kind:
            case Kind.HELLO:
                self._greeted()
            case Kind.TAKEN:
                with self._changed:
                    self._credit += int.from_bytes(payload, "little")
                    self._changed.notify_all()
            case _ if request := self._requests.get(handle):
                request.take(kind, payload)
                if request.ended:
                    self._requests.pop(handle, None)

    def _greeted(self) -> None:
        """A new agent: requests to the one before it will never be answered."""
        with self._changed:
            lost = list(self._requests.values()) if self._hellos else []
            if lost:
                self._requests.clear()
            self._credit = _WINDOW
            self._hellos += 1
            self._changed.notify_all()
        for request in lost:
            request.fail(GuestGone(f"guest {self._name} has rebooted"))
