"""The control channel, with the real agent run as a process of the host."""

import os
import random
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlane_lab.common.wait import Timeout, until
from memlane_lab.guests.control import CommandFailed, Control, GuestGone
from memlane_lab.guests.frames import Kind
from memlane_lab.host import procfs
from memlane_lab.images import agent


@pytest.fixture(scope="session")
def program() -> Path:
    return agent.build()[0]


@pytest.fixture
def control(program: Path) -> Iterator[Control]:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen([str(program), "-"], stdin=theirs.fileno())
    channel = Control("test", ours)
    channel.wait_hello(1, 60, lambda: None)
    yield channel
    channel.close()
    assert child.wait(60) == 0


def test_a_command_tells_status_output_and_errors_apart(control: Control) -> None:
    result = control.run("echo out; echo err >&2; exit 3")
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    with pytest.raises(CommandFailed, match="status 3: err"):
        result.check()


def test_a_command_ended_by_a_signal_says_which(control: Control) -> None:
    running = control.spawn(["sleep", "1000"])
    running.signal(signal.SIGTERM)
    assert running.wait(60).status == -signal.SIGTERM


def test_a_command_that_does_not_exist_fails_with_its_name(control: Control) -> None:
    with pytest.raises(CommandFailed, match="no-such-program"):
        control.run(["no-such-program"])


def test_arguments_arrive_as_they_are(control: Control) -> None:
    words = ["a b", "", "'\"", "$HOME", "ü", "-n"]
    assert control.run(["printf", "%s|", *words]).stdout == "".join(f"{word}|" for word in words)


def test_output_that_looks_like_frames_is_output(control: Control, tmp_path: Path) -> None:
    fake = struct.pack("<4sIII", b"MLAB", Kind.EXIT, 1, 4) + struct.pack("<i", 0)
    control.put(str(tmp_path / "fake"), fake * 100)
    running = control.spawn(f"cat {tmp_path}/fake; exit 5")
    result = running.wait()
    assert result.status == 5
    assert result.stdout == (fake * 100).decode(errors="replace")


def test_much_output_arrives_whole(control: Control) -> None:
    result = control.run("seq 1 300000", timeout=60)
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 300001))


def test_standard_input_arrives_whole(control: Control, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(300_000)
    assert control.run("sha256sum", stdin=data).stdout == control.run("sha256sum", stdin=data).stdout
    control.put(str(tmp_path / "in"), data)
    assert control.run(f"cat - | cmp - {tmp_path}/in", stdin=data).status == 0


def test_files_go_there_and_back(control: Control, tmp_path: Path) -> None:
    data = random.Random(2).randbytes(100_000)
    target = tmp_path / "file"
    control.put(str(target), data)
    assert target.read_bytes() == data
    assert control.get(str(target)) == data
    control.put(str(target), b"")
    assert control.get(str(target)) == b""
    with pytest.raises(CommandFailed, match="no-such-file"):
        control.get("/no-such-file")


def test_commands_run_side_by_side(control: Control) -> None:
    first, second = control.spawn("read line; echo got $line", stdin=None), control.spawn("echo second")
    assert second.wait(60).stdout == "second\n"
    first.write(b"word\n")
    assert first.wait(60).stdout == "got word\n"


def test_many_threads_share_a_channel(control: Control) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        said = control.run(f"echo {number}; seq 1 2000 >&2").stdout
        if said != f"{number}\n":
            wrong.append(said)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_output_can_be_waited_for(control: Control) -> None:
    running = control.spawn("echo listening on port 77; read line", stdin=None)
    assert running.wait_for_output(r"port \d+", timeout=60) == "port 77"
    with pytest.raises(Timeout, match="never said"):
        running.wait_for_output("never said", timeout=0.2)
    running.close_input()
    running.wait(60)
    with pytest.raises(CommandFailed, match="without saying"):
        running.wait_for_output("never said")


def test_output_can_be_followed(control: Control) -> None:
    running = control.spawn("echo first; read line; echo second >&2", stdin=None)
    pieces = running.follow()
    assert next(pieces) == "first\n"
    running.write(b"go\n")
    assert "".join(pieces) == "second\n"


def test_a_command_that_takes_too_long_is_killed(control: Control) -> None:
    running = control.spawn("sleep 1000 & echo $!; wait")
    pid = int(running.wait_for_output(r"\d+\n", timeout=60))
    with pytest.raises(Timeout, match="sleep 1000"):
        running.wait(0.1)
    with pytest.raises(Timeout, match="sleep 999"):
        control.run("sleep 999", timeout=0.1)
    until(lambda: _ended(pid), timeout=60, what="the end of what the command had started")


def test_hanging_up_ends_what_runs(program: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen([str(program), "-"], stdin=theirs.fileno())
    control = Control("test", ours)
    running = control.spawn("echo $$; sleep 1000")
    pid = int(running.wait_for_output(r"\d+", timeout=60))
    control.close()
    assert child.wait(60) == 0
    until(lambda: _ended(pid), timeout=60, what="the end of what ran")
    with pytest.raises(GuestGone):
        running.wait(60)
    with pytest.raises(GuestGone):
        control.run("true")


def test_a_broken_frame_before_a_reboot_does_no_harm() -> None:
    ours, theirs = socket.socketpair()
    control = Control("test", ours)
    theirs.sendall(_frame(Kind.HELLO, 0, b"1"))
    control.wait_hello(1, 60, lambda: None)
    lost = control.spawn("true")
    control.expect_reboot()
    theirs.sendall(_frame(Kind.STDOUT, 1, b"x" * 100)[:10])  # the agent dies in mid-frame
    hello = _frame(Kind.HELLO, 0, b"1")
    for at in range(len(hello)):  # byte by byte: it may arrive in pieces
        theirs.sendall(hello[at : at + 1])
    control.wait_hello(2, 60, lambda: None)
    with pytest.raises(GuestGone, match="rebooted"):
        lost.wait(60)
    control.close()


def test_noise_on_the_channel_is_said_to_be_noise() -> None:
    ours, theirs = socket.socketpair()
    control = Control("test", ours)
    theirs.sendall(_frame(Kind.HELLO, 0, b"1") + b"Kernel panic - not syncing")
    control.wait_hello(1, 60, lambda: None)
    with pytest.raises(GuestGone, match=r"no frames.*Kernel panic"):
        control.run("true", timeout=60)
    control.close()


def test_the_lab_never_sends_more_than_the_guest_has_room_for() -> None:
    ours, theirs = socket.socketpair()
    control = Control("test", ours)
    theirs.sendall(_frame(Kind.HELLO, 0, b"1"))
    sender = threading.Thread(target=control.send, args=(Kind.STDIN, 1, bytes(10_000)), daemon=True)
    sender.start()
    theirs.settimeout(60)
    received = 0
    while received < 10_016:
        arrived = len(theirs.recv(100_000))
        assert arrived <= 2048
        received += arrived
        theirs.sendall(_frame(Kind.TAKEN, 0, struct.pack("<I", arrived)))
    sender.join(60)
    assert not sender.is_alive()
    control.close()


def _frame(kind: Kind, handle: int, payload: bytes) -> bytes:
    return struct.pack("<4sIII", b"MLAB", kind, handle, len(payload)) + payload


def _ended(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is None or not found.alive or os.getpid() == pid
