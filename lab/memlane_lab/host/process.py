"""A host process that the lab started: in a session of its own, recorded before it becomes the program.

The record is written by the process itself, under the pid that it keeps when it then turns into the program. So
there is no moment at which it runs unrecorded, even if the lab is killed.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.host import cgroup, procfs
from memlane_lab.host.cgroup import Group
from memlane_lab.host.procfs import CpuTime

_RECORD_THEN_EXEC = (
    'read -r line </proc/$$/stat; echo "$line" >"$0" && [ -e "$0" ] || exit 125; echo $$ >"$1"; shift; exec "$@"'
)
"""Without a record it exits: the session closes its ledger before it reads it, and ends all recorded processes."""


class HostProcess:
    """A running program, its children included: all processes in the session that it leads."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        record: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        stdin: int | None = None,
        group: Group | None = None,
    ) -> None:
        """Starts `command`; its output goes to `log`. `descriptors` stay open in it; `stdin` is its standard input.

        `group` is the control group that it runs in, with all that comes of it.
        """
        self.name = name
        self.group = group
        self.log = log
        self._record = record
        self._gone = False
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    _RECORD_THEN_EXEC,
                    record,
                    group.path / "cgroup.procs" if group else "/dev/null",
                    *command,
                ],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | (environment or {}),
                pass_fds=descriptors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Also the number of its session."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the program itself still runs."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the program ended (minus the signal's number), or None while it runs."""
        return self._child.poll()

    def cpu(self) -> CpuTime:
        """CPU time so far of the program and of all that came of it."""
        if self.group is None:
            raise LabError(f"the CPU time of {self.name} cannot be measured: {cgroup.lack()}")
        return self.group.cpu()

    def go_first(self) -> None:
        """Lets it go before others where processors are scarce, as an instrument must.

        The kernel shares processors among control groups where they have weights, else among sessions (autogroup).
        """
        self.weigh(-10)

    def weigh(self, niceness: int) -> bool:
        """Gives it a share of scarce processors, 1.25 times smaller for each step; false where the kernel has none."""
        given = self.group is not None and self.group.weigh(round(100 * 1.25**-niceness))
        try:
            Path(f"/proc/{self.pid}/autogroup").write_text(str(niceness))
        except OSError:  # a kernel without autogroups
            return given
        return True

    def check(self) -> None:
        """Raises, with the end of the log, if the program has ended."""
        if not self.alive:
            raise LabError(f"{self.name} has ended with exit code {self.exit_code}; the end of its log:\n{self.tail()}")

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds for the program's end; tells whether it has ended."""
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def signal(self, number: int) -> None:
        """Sends a signal to the program itself."""
        self._child.send_signal(number)

    def stop(self, grace: float = 5.0) -> None:
        """Asks the program to end, waits `grace` seconds, then kills it and its leftovers."""
        if self.alive:
            self._child.terminate()
            self.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Ends the program and its children at once."""
        if self._gone:
            return  # its pid may have gone to another process by now
        if self.may_have_left_something():
            kill_session(self.pid)
        self.forget()

    def may_have_left_something(self) -> bool:
        """Whether processes of its session may live: not if its number went to another process after its end."""
        return not self._gone and (self.exit_code is None or procfs.stat(self.pid) is None)

    def forget(self) -> None:
        """Takes its record away: nothing of it lives."""
        if self._gone:
            return
        self._child.wait()
        self._record.unlink(missing_ok=True)
        self._gone = True


def kill_together(processes: Sequence[HostProcess]) -> None:
    """Ends many programs and their children at once: one look at all processes of the host, not one for each."""
    left = [process for process in processes if process.may_have_left_something()]
    sessions = {process.pid for process in left}
    _kill_all(
        lambda: [found for found in procfs.processes() if found.session in sessions and found.alive],
        f"of {len(sessions)} sessions",
    )
    for process in processes:
        process.forget()


def members(session: int) -> list[procfs.Stat]:
    """The living processes of a session."""
    return [process for process in procfs.processes() if process.session == session and process.alive]


def kill_session(session: int) -> None:
    """Kills all processes of a session and waits until they are gone."""
    _kill_all(lambda: members(session), f"of session {session}")


def kill_marked(mark: str) -> None:
    """Kills all processes that have `mark`, as NAME=value, in their environment, and waits until they are gone."""
    _kill_all(
        lambda: [process for process in procfs.processes() if process.alive and _has(process.pid, mark)],
        f"with {mark}",
    )


def _kill_all(living: Callable[[], list[procfs.Stat]], which: str) -> None:
    def gone() -> bool:
        found = living()
        for process in found:
            _kill(process.pid)
        return not found

    until(gone, timeout=10, what=f"the end of the processes {which}")


def _has(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended meanwhile, or belongs to another user
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
