"""Processes are found by their number or their executable file: several programs of one name run beside each other."""

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from memlane_lab.xen import memory

_TOP = Path(__file__).resolve().parents[2]
_BY_NAME = re.compile(r"\b(pidof|pgrep|pkill|killall)\b|\bps -C\b")
_XEN = Path(memory.__file__).parent


def test_no_program_looks_a_process_up_by_its_name() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_TOP, capture_output=True, text=True, check=True)
    files = [_TOP / name for name in listed.stdout.split("\0") if name]
    own = [file for file in files if file.is_file() and file != Path(__file__).resolve()]
    lines = ((file, line) for file in own for line in file.read_text(errors="ignore").splitlines())
    assert not [f"{file.relative_to(_TOP)}: {line.strip()}" for file, line in lines if _BY_NAME.search(line)]


def _private_kib(pid: int) -> int:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith(("Pss_Anon", "Pss_Shmem")))


def test_the_memory_of_the_switch_is_that_of_all_its_processes(tmp_path: Path) -> None:
    """A helper runs beside the switch; a program of the same name elsewhere is none of its processes."""
    program, elsewhere = tmp_path / "memlane", tmp_path / "elsewhere" / "memlane"
    elsewhere.parent.mkdir()
    for copy in (program, elsewhere):
        shutil.copy(Path("/bin/sleep").resolve(), copy)
    with ExitStack() as ended:
        started = [subprocess.Popen([path, "60"], stdout=subprocess.PIPE) for path in (program, program, elsewhere)]
        for process in started:
            ended.enter_context(process)
            ended.callback(process.kill)
        script = (_XEN / "memory_free").read_text() + f"held_by {program}"
        told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        wanted = sum(_private_kib(process.pid) for process in started[:2])
    assert int(told.stdout) == wanted > 0
    assert not told.stderr


def test_every_selection_of_tests_is_run_by_test_or_by_prove() -> None:
    """A gate that is in neither is run by none, and fails in silence."""
    makefile = (_TOP / "Makefile").read_text()
    selections = set(re.findall(r"pytest\S* .*-m (?:'[^']+'|\w+)", makefile))
    assert len(selections) >= 5
    dry = ["make", "--dry-run", "--always-make", "test", "prove"]
    run = subprocess.run(dry, cwd=_TOP, capture_output=True, text=True, check=True).stdout
    marks = {selection.partition("-m ")[2] for selection in selections}
    assert not [mark for mark in marks if f"-m {mark}" not in run]
