"""Memory as the host's kernel shares it out."""

from pathlib import Path


def proportional(pid: int, *kinds: str) -> int:
    """Bytes of a process, what it shares with others divided among them (Pss, proc_pid_smaps(5)); 0 if it has ended.

    `kinds` are those of its parts that count: "Anon", "File", "Shmem"; none: all.
    """
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    wanted = tuple(f"Pss_{kind}:" for kind in kinds) or ("Pss:",)
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith(wanted))
