"""The socket at which a topology answers while it runs, and the requests of the command line.

A request is one message, answers are messages until the connection ends: JSON, framed by `multiprocessing.connection`.
The socket lies in a folder that only its owner may enter.
"""

import base64
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlane_lab.common.errors import LabError
from memlane_lab.guests.control import Running
from memlane_lab.host.session import runs_folder
from memlane_lab.topo import status

if TYPE_CHECKING:
    from memlane_lab.topo.net import Net

Message = dict[str, Any]


def address(name: str) -> Path:
    """Where the topology of that name answers."""
    return runs_folder() / f"topo-{name}.sock"


class Service:
    """Answers for a `Net` until it is closed; each connection has a thread."""

    def __init__(self, net: "Net", name: str) -> None:
        self._net = net
        self._path = address(name)
        self._path.unlink(missing_ok=True)  # its former owner has died
        self._listener = Listener(str(self._path), family="AF_UNIX")
        self.asked_down = threading.Event()
        self.starter_gone = threading.Event()
        self._news = threading.Condition()
        self._told: list[Message] = []
        self._followers = 0
        self._shells = itertools.count()
        threading.Thread(target=self._accept, name="service", daemon=True).start()

    def close(self) -> None:
        """Answers no more, once all followers have heard the last news."""
        with self._news:
            self._news.wait_for(lambda: not self._followers, timeout=5)
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._listener.close()

    def tell(self, **news: Any) -> None:  # noqa: ANN401
        """Tells all followers, which wait for the topology to come up."""
        with self._news:
            self._told.append(news)
            self._news.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: "Connection[Any, Any]") -> None:
        with suppress(OSError, EOFError), connection:
            request = json.loads(connection.recv_bytes())
            try:
                act = getattr(self, f"_do_{request.pop('do')}")
                for answer in act(connection, **request):
                    connection.send_bytes(json.dumps(answer).encode())
                # A hang-up alone is not heard as long as a thread of ours listens.
                connection.send_bytes(json.dumps({"end": True}).encode())
            except LabError as error:
                connection.send_bytes(json.dumps({"error": str(error)}).encode())
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                told = f"this topology does not understand the request ({error}): was it brought up by another version?"
                connection.send_bytes(json.dumps({"error": told}).encode())

    def _do_follow(self, connection: "Connection[Any, Any]") -> Iterator[Message]:
        """News of coming up, to its end. The starter of the topology hangs up to give it up."""

        def watch() -> None:
            with suppress(OSError, EOFError):
                connection.recv_bytes()
            self.starter_gone.set()

        threading.Thread(target=watch, daemon=True).start()
        with self._news:
            self._followers += 1
        try:
            yield from self._all_news()
        finally:
            with self._news:
                self._followers -= 1
                self._news.notify_all()

    def _all_news(self) -> Iterator[Message]:
        sent = 0
        while True:
            with self._news:
                while len(self._told) <= sent:
                    self._news.wait()
                news = self._told[sent:]
            for one in news:
                yield one
                if "up" in one or "error" in one:
                    return
            sent += len(news)

    def _do_state(self, _connection: "Connection[Any, Any]", *, memory: bool = True) -> Iterator[Message]:
        yield status.of(self._net, memory=memory)

    def _do_exec(
        self, _connection: "Connection[Any, Any]", nodes: list[str] | None, command: list[str], timeout: float
    ) -> Iterator[Message]:
        for name, result in self._net.exec_each(command, nodes, timeout):
            yield {"node": name, "status": result.status, "stdout": result.stdout, "stderr": result.stderr}

    def _do_shell(self, connection: "Connection[Any, Any]", node: str, rows: int, columns: int) -> Iterator[Message]:
        machine = self._net[node]
        terminal = f"/run/shell-{next(self._shells)}"
        line = f"tty >{terminal}; stty rows {rows} cols {columns}; exec sh -i"
        # `script` takes $SHELL, which names a program of this machine where a node has this machine's environment.
        shell = machine.spawn(
            ["env", "SHELL=/bin/sh", "script", "--quiet", "--return", "--command", line, "/dev/null"], stdin=None
        )

        def resize(rows: int, columns: int) -> None:
            machine.run(f"stty rows {rows} cols {columns} <$(cat {terminal})")

        threading.Thread(target=_feed, args=(connection, shell, resize), daemon=True).start()
        for text in shell.follow():
            yield {"text": text}
        yield {"status": shell.wait().status}

    def _do_put(self, _connection: "Connection[Any, Any]", node: str, path: str, content: str) -> Iterator[Message]:
        self._net[node].put(path, base64.b64decode(content))
        yield {}

    def _do_get(self, _connection: "Connection[Any, Any]", node: str, path: str) -> Iterator[Message]:
        yield {"content": base64.b64encode(self._net[node].get(path)).decode()}

    def _do_nodes(self, _connection: "Connection[Any, Any]", act: str, names: list[str]) -> Iterator[Message]:
        acts: dict[str, Callable[..., None]] = {
            "kill": self._net.kill,
            "stop": self._net.stop,
            "start": self._net.start,
        }
        acts[act](*names)
        yield {}

    def _do_link(
        self,
        _connection: "Connection[Any, Any]",
        first: str,
        second: str,
        up: bool | None,
        clear: bool,
        changes: Message,
    ) -> Iterator[Message]:
        link = self._net.link(first, second, up=up, clear=clear, **changes)
        yield {"name": link.name, "up": link.up, "impairment": str(link.impairment)}

    def _do_capture(
        self, _connection: "Connection[Any, Any]", where: str, write: str, what: str, count: int | None
    ) -> Iterator[Message]:
        fabric = self._net.switch
        yield {"command": fabric.capture(fabric.end(where), write, what, count)}

    def _do_down(self, connection: "Connection[Any, Any]") -> Iterator[Message]:
        self.asked_down.set()
        with suppress(OSError, EOFError):
            connection.recv_bytes()  # until the process ends
        yield {}


def _feed(connection: "Connection[Any, Any]", shell: Running, resize: Callable[[int, int], None]) -> None:
    """Passes on the other end's keys, and the sizes of its window, until its input ends."""
    with suppress(OSError, EOFError, LabError):
        while True:
            asked = json.loads(connection.recv_bytes())
            if "ended" in asked:
                shell.close_input()
                return
            if "keys" in asked:
                shell.write(base64.b64decode(asked["keys"]))
            else:
                resize(int(asked["rows"]), int(asked["columns"]))
    with suppress(LabError):
        shell.signal(1)


class Caller:
    """The other end: one request to a topology that runs."""

    def __init__(self, name: str, do: str, **request: Any) -> None:  # noqa: ANN401
        try:
            self._connection = Client(str(address(name)), family="AF_UNIX")
        except OSError as error:
            raise LabError(
                f"no topology called {name} answers ({error.strerror}): `memlane-lab topo list` shows those that do"
            ) from error
        self.send(do=do, **request)

    def send(self, **message: Any) -> None:  # noqa: ANN401
        """Says something more."""
        self._connection.send_bytes(json.dumps(message).encode())

    def hang_up(self) -> None:
        """Ends the conversation."""
        self._connection.close()

    def answers(self) -> Iterator[Message]:
        """Its answers, to the end; raises its refusal."""
        while True:
            try:
                answer: Message = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            if "error" in answer:
                raise LabError(answer["error"])
            if "end" in answer:
                return
            yield answer


def ask(name: str, do: str, **request: Any) -> Message:  # noqa: ANN401
    """One request, one answer."""
    for answer in Caller(name, do, **request).answers():
        return answer
    raise LabError(f"the topology {name} closed the connection, because it has ended or is ending")
