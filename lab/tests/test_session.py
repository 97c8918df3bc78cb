"""Sessions: all that they start ends with them, and after them when they die."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.host import network, procfs
from memlane_lab.host import session as sessions
from memlane_lab.host.process import members
from memlane_lab.host.session import Session

pytestmark = pytest.mark.usefixtures("own_runs")


def test_a_process_ends_with_its_session(session: Session) -> None:
    with Session() as inner:
        process = inner.start("sleeper", ["sh", "-c", "sleep 1000 & sleep 1000"])
        until(lambda: len(members(process.pid)) == 3, timeout=60, what="three processes")
    assert members(process.pid) == []
    assert not inner.folder.exists()
    assert session.folder.exists()


def test_what_somebody_puts_into_the_folder_meanwhile_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rmdir, late = os.rmdir, ["lock", "socket"]

    def disturbed(path: str | Path, *where: Any, **how: Any) -> None:
        if path == inner.folder and late:
            (inner.folder / late.pop()).touch()
        rmdir(path, *where, **how)

    with Session() as inner:
        monkeypatch.setattr(os, "rmdir", disturbed)
    assert not inner.folder.exists()
    assert not late


def test_a_process_records_itself(session: Session) -> None:
    process = session.start("sleeper", ["sleep", "1000"])
    until(lambda: _name(process.pid) == "sleep", timeout=60, what="sh to become sleep")
    (record,) = (session.folder / "ledger").iterdir()
    recorded, now = procfs.parse_stat(record.read_text()), procfs.stat(process.pid)
    assert now is not None
    assert (recorded.pid, recorded.started) == (now.pid, now.started)
    process.kill()
    assert not record.exists()


def test_a_process_that_cannot_record_itself_becomes_nothing(session: Session) -> None:
    (session.folder / "ledger").rename(session.folder / "closed-ledger")  # as at the session's end
    process = session.start("sleeper", ["sleep", "1000"])
    assert process.wait(60)
    assert process.exit_code == 125


def test_a_process_that_begins_while_its_session_ends_ends_too() -> None:
    for number in range(20):
        inner = Session()
        process = inner.start("sleeper", ["sh", "-c", "exec sh -c 'exec sleep 1000'"])
        inner.pop_all()  # as where a signal comes before the session knows of the process
        inner.close()
        # A process that is being executed has no mark yet: it finds the ledger closed, and exits.
        until(lambda at=process.pid: members(at) == [], timeout=60, what=f"the end of process {number}")  # type: ignore[misc]


def test_a_process_that_ends_early_shows_its_log(session: Session) -> None:
    process = session.start("failing", ["sh", "-c", "echo no such thing >&2; exit 4"])
    assert process.wait(60)
    with pytest.raises(LabError, match=r"failing has ended with exit code 4.*\n.*no such thing"):
        process.check()


def test_the_next_session_removes_what_a_dead_one_left() -> None:
    dead = _die_with(
        "process = session.start('sleeper', ['sleep', '1000']);"
        "session.namespace('net');"
        "network.add_bridge(session.link_name('left'), namespace=session.name + '-net', mtu=1500);"
        "print(session.folder, process.pid)"
    )
    folder, pid = Path(dead.split()[0]), int(dead.split()[1])
    assert len(members(pid)) == 1
    assert _namespaces() & {f"{folder.name}-net"}
    with Session():
        assert members(pid) == []
        assert not folder.exists()
        assert not _namespaces() & {f"{folder.name}-net"}


def test_a_link_in_the_hosts_namespace_is_removed_too() -> None:
    dead = _die_with(
        "import subprocess; name = session.link_name('tap');"
        "subprocess.run(['ip', 'tuntap', 'add', 'dev', name, 'mode', 'tap'], check=True); print(name)"
    )
    assert network.exists(dead.strip(), namespace=None)
    with Session():
        assert not network.exists(dead.strip(), namespace=None)


def test_a_process_is_killed_once_only(session: Session) -> None:
    process = session.start("sleeper", ["sleep", "1000"])
    process.kill()
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        process._child.pid = stranger.pid  # as if the number had been given out again
        process.kill()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_living_session_is_left_alone(session: Session) -> None:
    process = session.start("sleeper", ["sleep", "1000"])
    with Session():
        assert process.alive
        assert session.folder.exists()
    assert process.alive


def test_a_pid_that_has_gone_to_somebody_else_is_left_alone() -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    line = Path(f"/proc/{stranger.pid}/stat").read_text()
    fields = line.split()
    fields[21] = str(int(fields[21]) - 1)  # recorded under the same pid, started at another time
    try:
        folder = Path(_die_with("print(session.folder)").strip())
        (folder / "ledger" / "process-1-sleeper").write_text(" ".join(fields))
        with Session():
            assert not folder.exists()
            assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_is_closed_twice_or_fails_to_close_does_not_keep_the_rest() -> None:
    def fail() -> None:
        raise RuntimeError("cannot close")

    opened = Session()
    process = opened.start("sleeper", ["sleep", "1000"])
    opened.callback(fail)
    with pytest.raises(RuntimeError, match="cannot close"), opened:
        assert process.alive
    assert members(process.pid) == []
    assert not opened.folder.exists()


@pytest.mark.parametrize("step", ["_try_hold", "_end_all", "_entries", "_remove"])
def test_a_folder_that_vanishes_during_a_sweep_ends_it_not(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab of another version removes its own folder just before the step."""
    folder, whole = tmp_path / "mlgone", getattr(sessions, step)
    (folder / "ledger").mkdir(parents=True)
    (folder / "ledger" / "process-1-sleeper").write_text("")

    def vanish(place: Path, *more: Any) -> Any:
        if place != tmp_path:
            shutil.rmtree(folder, ignore_errors=True)
        return whole(place, *more)

    monkeypatch.setattr(sessions, step, vanish)
    sessions.sweep(tmp_path)
    assert not folder.exists()


def test_two_labs_begin_and_end_sessions_beside_each_other(own_runs: Path) -> None:
    script = "from memlane_lab.host.session import Session\nfor _ in range(60):\n    with Session(): pass"
    labs = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [lab.communicate(timeout=120)[1] for lab in labs]
    assert said == ["", "", "", ""], "none fails, and none takes another one's session for a dead one's"
    assert [path.name for path in own_runs.iterdir()] == ["lock"]


def _name(pid: int) -> str | None:
    found = procfs.stat(pid)
    return found.name if found else None


def _die_with(code: str) -> str:
    """Opens a session in another Python, runs `code` there, and dies without any clean-up; returns its output."""
    script = (
        "import os; from memlane_lab.host import network; from memlane_lab.host.session import Session;"
        f"session = Session(); {code}; os.sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    return done.stdout


def _namespaces() -> set[str]:
    folder = Path("/run/netns")
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


def test_runs_of_ordinary_users_have_a_place_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMLANE_LAB_RUNS")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1234")
    assert sessions.runs_folder() == Path("/run/user/1234/memlane-lab")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert "1234" in sessions.runs_folder().name
