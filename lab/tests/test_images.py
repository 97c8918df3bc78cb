"""Images: made once, whole or not at all, from the machine's own mirror."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.images import cpio, debian, root, uml_kernel
from memlane_lab.images.debian import Source


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "memlane"


def test_a_product_is_made_once_by_two_makers_at_a_time(own_cache: Path) -> None:
    made: list[str] = []
    together = threading.Barrier(2)

    def make(folder: Path) -> None:
        made.append(folder.name)
        (folder / "part").write_text("whole")

    def ask() -> None:
        together.wait()
        assert cache.product("thing", make) == own_cache / "thing"

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (own_cache / "thing" / "part").read_text() == "whole"


def test_a_product_whose_maker_fails_is_not_there(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise LabError("no space left")

    with pytest.raises(LabError, match="no space left"):
        cache.product("thing", fail)
    assert [path.name for path in own_cache.iterdir()] == ["thing.lock"]


@pytest.mark.usefixtures("own_cache")
def test_what_a_killed_maker_left_is_removed() -> None:
    script = """
import os
from memlane_lab.common import cache
def make(folder):
    (folder / "part").write_text("half")
    os.kill(os.getpid(), 9)
cache.product("thing", make)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    assert len([path for path in cache.folder().iterdir() if path.is_dir()]) == 1
    cache.product("thing", lambda folder: (folder / "part").touch())
    assert [path.name for path in cache.folder().iterdir() if path.is_dir()] == ["thing"]


def test_an_initramfs_holds_what_the_folder_holds(tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / "deep" / "er").mkdir(parents=True)
    out.mkdir()
    (tree / "deep" / "er" / "file").write_bytes(bytes(range(256)) * 7)
    (tree / "empty").touch()
    (tree / "link").symlink_to("deep/er")
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    cpio.write(tree, tmp_path / "archive")
    busybox = root.image().tree / "bin" / "busybox"
    with (tmp_path / "archive").open("rb") as archive:
        subprocess.run([busybox, "cpio", "-idm"], stdin=archive, cwd=out, check=True, capture_output=True)
    assert (out / "deep/er/file").read_bytes() == bytes(range(256)) * 7
    assert (out / "empty").read_bytes() == b""
    assert os.readlink(out / "link") == "deep/er"  # noqa: PTH115
    assert os.access(out / "run", os.X_OK)


def test_the_same_folder_gives_the_same_initramfs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("content")
        cpio.write(tmp_path / name, tmp_path / f"{name}.cpio")
    assert (tmp_path / "one.cpio").read_bytes() == (tmp_path / "two.cpio").read_bytes()


def test_the_mirror_is_the_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_apt(
        tmp_path,
        monkeypatch,
        "'http://mirror.example/debian/dists/bookworm/InRelease' a 0",
        "'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' b 0",
        "'http://mirror.example/debian/dists/bookworm-updates/main/binary-amd64/Packages.xz' c 0",
        "'https://other.example/apt/dists/nodistro/main/binary-amd64/Packages.gz' d 0",
    )
    mirror = "http://mirror.example/debian"
    suites = ["bookworm", "bookworm-updates", "trixie-backports", "bookworm-backports"]
    assert list(debian.sources()) == [Source(mirror, suite) for suite in suites]
    assert "signed-by" in debian.sources()[0].line()


def test_a_machine_without_a_mirror_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_apt(tmp_path, monkeypatch)
    with pytest.raises(NotAvailable, match="no source for Debian bookworm"):
        debian.sources()


def _fake_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    program = folder / "apt-get"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(debian, "_os_release", lambda: {"VERSION_CODENAME": "bookworm"})


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["linux-source-6.1", "linux-source-6.12", "linux-source-7.2", "linux-source-7.3"], "linux-source-7.2"),
        (["linux-source-6.1", "linux-source-6.12", "linux-source-6.4"], "linux-source-6.12"),
        (["linux-source", "linux-source-7.3"], "linux-source-7.3"),
    ],
)
def test_the_kernel_source_is_the_tried_one_or_the_newest(names: list[str], chosen: str) -> None:
    assert uml_kernel.choose_source(names) == chosen


def test_a_mirror_with_old_kernels_only_is_not_enough() -> None:
    with pytest.raises(NotAvailable, match=r"no linux-source >= 6\.4"):
        uml_kernel.choose_source(["linux-source-6.1"])
