"""Debian packages without touching the machine's apt: own lists, own cache, own status, the machine's mirror.

The mirror is whatever the machine's apt uses for its own release; signatures are checked against Debian's keyring.
Works without root. Nothing is installed: packages are downloaded and unpacked.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.common.progress import say

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_EXTRA_SUITE = "trixie-backports"
"""Holds newer kernel sources than the machine's release does; used only for packages named by us."""


@dataclass(frozen=True)
class Source:
    """One line of a sources.list: a mirror and a suite of it."""

    uri: str
    suite: str

    def line(self) -> str:
        """The line as apt reads it."""
        return f"deb [signed-by={KEYRING}] {self.uri} {self.suite} main"


class Archive:
    """Debian's archive as our own apt sees it, its lists fetched anew on creation."""

    def __init__(self, suite: str | None = None) -> None:
        """The machine's own release with newer kernels, or one suite of Debian alone ("sid"), from the same mirror."""
        self._suite = suite
        self._name = "apt" if suite is None else f"apt-{suite}"
        self._home = cache.folder() / self._name
        self._packages = self._home / "archives"
        with cache.locked(self._name):
            self._prepare()
            say("fetching Debian's package lists")
            self._run(["apt-get", "update", "-q"], allow_failure=True)  # a mirror may lack an optional suite
        if not self.knows("busybox-static"):
            raise LabError("the machine's Debian mirror gave no package lists; check that `apt-get update` works")

    def knows(self, package: str) -> bool:
        """Whether the archive holds `package`."""
        return bool(self._run(["apt-cache", "madison", package]).strip())

    def names(self, prefix: str) -> list[str]:
        """All package names that start with `prefix`."""
        return self._run(["apt-cache", "pkgnames", prefix]).split()

    def version(self, package: str) -> str:
        """The version that `download` would fetch."""
        found = re.search(r"^Version: (\S+)$", self._show(package), re.MULTILINE)
        if not found:
            raise NotAvailable(f"Debian's archive, as this machine's mirror shows it, has no package {package}")
        return found[1]

    def dependency(self, package: str) -> str:
        """The one package that the metapackage `package` stands for today."""
        found = re.search(r"^Depends: (\S+)", self._show(package), re.MULTILINE)
        if not found:
            raise NotAvailable(f"Debian's archive, as this machine's mirror shows it, has no package {package}")
        return found[1]

    def download(self, package: str) -> Path:
        """Fetches one package and returns its file."""
        say(f"downloading Debian package {package}")
        with cache.locked(self._name):
            folder = self._packages / "single"
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                self._run(["apt-get", "download", "-q", package], cwd=Path(scratch))
                fetched = next(Path(scratch).glob(f"{package}_*.deb"))
                # In one step: another maker may be unpacking the file of that name.
                newest = fetched.rename(folder / fetched.name)
            for old in set(folder.glob(f"{package}_*.deb")) - {newest}:
                old.unlink()
            return newest

    def unpack_with_dependencies(self, packages: Sequence[str], folder: Path) -> None:
        """Fetches the packages and all that they need, as for an empty machine, and unpacks them under `folder`."""
        say(f"downloading Debian packages {', '.join(packages)} and what they need")
        with cache.locked(self._name):
            for old in self._packages.glob("*.deb"):
                old.unlink()
            command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "--download-only"]
            self._run([*command, "-o", f"Dir::State::status={self._home}/empty-status", *packages])
            for package in sorted(self._packages.glob("*.deb")):  # while no other maker takes them away
                unpack(package, folder)

    def _show(self, package: str) -> str:
        return self._run(["apt-cache", "show", "--no-all-versions", package], allow_failure=True)

    def _prepare(self) -> None:
        for part in ("lists/partial", "archives/partial"):
            (self._home / part).mkdir(parents=True, exist_ok=True)
        (self._home / "empty-status").touch()
        (self._home / "sources.list").write_text("".join(f"{source.line()}\n" for source in sources(self._suite)))

    def _run(self, command: list[str], *, allow_failure: bool = False, cwd: Path | None = None) -> str:
        home = self._home
        places = {
            "Dir::Etc::sourcelist": home / "sources.list",
            "Dir::Etc::sourceparts": home / "none",
            "Dir::Etc::preferences": home / "none",
            "Dir::Etc::preferencesparts": home / "none",
            "Dir::State": home,
            "Dir::State::lists": home / "lists",
            "Dir::Cache": home,
            "Dir::Cache::archives": home / "archives",
            "APT::Sandbox::User": "root",  # apt's own user may not enter our cache folder
        }
        options = [word for key, value in places.items() for word in ("-o", f"{key}={value}")]
        done = subprocess.run(
            [command[0], *options, *command[1:]],
            capture_output=True, text=True, cwd=cwd, check=False, env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
        if done.returncode and not allow_failure:
            raise LabError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()[-500:]}")
        return done.stdout


def sources(suite: str | None = None) -> tuple[Source, ...]:
    """The machine's own Debian sources, and the suites that hold newer kernels on the same mirror; or one `suite`."""
    if not KEYRING.exists():
        raise NotAvailable(f"{KEYRING} is missing: the lab needs a Debian machine, with package debian-archive-keyring")
    release = _os_release().get("VERSION_CODENAME", "")
    used = _machine_sources()
    own = [source for source in used if re.fullmatch(f"{release}(-updates|-security)?", source.suite)]
    mirrors = [source.uri for source in own if source.suite == release]
    if not mirrors:
        raise NotAvailable(
            f"apt has no source for Debian {release or '(unknown release)'}: see /etc/apt/sources.list.d"
        )
    if suite:
        return tuple(Source(uri, suite) for uri in mirrors)
    newer = dict.fromkeys((_EXTRA_SUITE, f"{release}-backports"))
    return (*own, *(Source(uri, suite) for uri in mirrors for suite in newer))


def _machine_sources() -> list[Source]:
    """What the machine's apt would fetch, seen without fetching it, even where it never has.

    Other people's repositories may be among them under Debian's own suite names: Debian's key does not fit them, so
    our apt passes them by.
    """
    with tempfile.TemporaryDirectory() as lists:
        command = ["apt-get", "-o", f"Dir::State::lists={lists}", "update", "--print-uris"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^'(\S+)/dists/(\S+)/main/binary-amd64/Packages", listed, re.MULTILINE)
    return list(dict.fromkeys(Source(uri, suite) for uri, suite in found))


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def unpack(package: Path, folder: Path) -> None:
    """Unpacks a package's files under `folder`; nothing is installed or run."""
    done = subprocess.run(["dpkg-deb", "--extract", package, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"cannot unpack {package}: {done.stderr.strip()}")
