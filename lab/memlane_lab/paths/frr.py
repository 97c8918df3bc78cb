"""FRR on a host of the lab: announces this host's MAC addresses by BGP EVPN (RFC 7432, RFC 8365).

zebra and bgpd of Debian's package, configured by `memlane evpn`, on either kind of path.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths.memlane import program

_DAEMONS = Path("/usr/lib/frr")
_USER = "frr"


def missing() -> str | None:
    """Why there is no FRR here, with the remedy, or None."""
    if not all((_DAEMONS / name).exists() for name in ("zebra", "bgpd")):
        return "FRR is not installed: apt install frr"
    return None if program() else "no memlane to print FRR's configuration: run make build"


def start(session: Session, name: str, namespace: str, local: str, peers: Sequence[str]) -> list[HostProcess]:
    """Starts FRR in a host's namespace; logs are called after `name`.

    `local` is its address on the underlay, `peers` are the other hosts'.
    """
    binary = program()
    assert binary is not None
    # Its daemons run as a user of their own, without access to the session's folder.
    folder = Path(session.enter_context(TemporaryDirectory(prefix="memlane-lab-frr-")))
    command: list[str | Path] = [binary, "evpn", "--as", "65000", "--local", local, "--peers", ",".join(peers)]
    (folder / "frr.conf").write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for place in (folder, folder / "frr.conf"):
        shutil.chown(place, _USER, _USER)
    return [_daemon(session, namespace, f"{name}-{daemon}", daemon, folder) for daemon in ("zebra", "bgpd")]


def _daemon(session: Session, namespace: str, name: str, daemon: str, folder: Path) -> HostProcess:
    command: list[str | Path] = [_DAEMONS / daemon, "-f", folder / "frr.conf", "--log", "stdout"]
    places: list[str | Path] = ["-z", folder / "zserv", "-i", folder / f"{daemon}.pid", "--vty_socket", folder]
    return session.start(name, [*command, *places], namespace=namespace)
