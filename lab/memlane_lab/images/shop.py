"""The root tree of a shop's guests: the common one, and with it the three tiers, their data and the browsers.

    /srv/shop/static      what the web server hands out: style, pictures of books
    /srv/shop/web         its configuration
    /srv/shop/database    the database's, and data.tar, which a guest unpacks into its memory
    /srv/shop/load        the browsers' script
    /srv/shop/init, tier  what starts a tier without the lab, for the example

Web server and database come from Debian, the application from `lab/shop/application`, the load generator from the Go
module proxy. The database is made once for each number of books and customers, by its own programs in the tree itself.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache as remembered
from pathlib import Path

from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.images import cpio, debian, load_generator, pictures, root, static_program
from memlane_lab.images.root import Harvest, RootImage

SOURCE = Path(__file__).parents[2] / "shop"
PLACE = "srv/shop"
DATABASE_USER, WEB_USER = 999, 33
"""As which the database and the web server's worker run."""

SMALL = (1000, 5000)
"""Books and customers of the shop that tests and the example use."""

_HERE = Path(__file__).parent
_RECIPE = ("shop.py", "static_program.py", "load_generator.py", "pictures.py")
_PROGRAMS = {"coreutils": ["nice"], "nginx": ["nginx"], "util-linux": ["setpriv"]}
_POSTGRES_PROGRAMS = ("initdb", "pg_ctl", "postgres", "psql", "pg_isready")
_HEAVY = "llvmjit"
"""Modules of the database that are left out: compiling queries, which brings a compiler of 100 MB."""


def image(items: int, customers: int) -> RootImage:
    """The root image of a shop of that size, built now if this recipe has not been built before."""
    return _image(items, customers)


@remembered
def _image(items: int, customers: int) -> RootImage:
    recipe = _recipe()
    software = cache.product(f"shop-{recipe}", _make_software)
    sized = cache.product(
        f"shop-{recipe}-{items}-{customers}", lambda folder: _make(folder, software, items, customers)
    )
    return RootImage(sized / "tree", sized / "root.cpio")


def sources() -> list[Path]:
    """The files of the shop itself."""
    found = (path for path in SOURCE.rglob("*") if path.is_file() and "target" not in path.parts)
    return sorted(path for path in found if path.suffix != ".md")


def _recipe() -> str:
    """A name for all that decides what is in the image."""
    common = root.image().tree.parent.name
    files = [*(_HERE / name for name in _RECIPE), *sources()]
    return hashlib.sha256(common.encode() + b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _make_software(folder: Path) -> None:
    """Everything but the data, which depends on the shop's size."""
    tree = folder / "tree"
    _link(root.image().tree, tree)
    archive = debian.Archive()
    database = archive.dependency("postgresql")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        packages = Path(scratch)
        archive.unpack_with_dependencies([*_PROGRAMS, database], packages)
        _take_programs(packages, tree, database.rpartition("-")[2])
    for program in static_program.build(SOURCE / "application", ("memlane-shop",), "the shop's application"):
        root.install(program, tree / "bin" / program.name)
    root.install(load_generator.program(), tree / "bin/k6")
    _copy_files(tree)


def _link(tree: Path, copy: Path) -> None:
    """A copy of a tree whose files are shared; they are only ever replaced, never written."""
    shutil.copytree(tree, copy, symlinks=True, copy_function=os.link)


def _take_programs(packages: Path, tree: Path, version: str) -> None:
    harvest = Harvest(packages, tree)
    harvest.take(_PROGRAMS)
    place = f"usr/lib/postgresql/{version}"
    home = tree / "lib" / "postgresql" / version
    (home / "bin").mkdir(parents=True)
    (home.parent / "bin").symlink_to(f"{version}/bin")
    (tree / "usr/share/zoneinfo").mkdir(parents=True)  # empty: the shop lives in GMT
    (tree / "share").symlink_to("usr/share")  # where its programs look, because they find themselves in /lib
    shutil.copytree(
        packages / place / "lib",
        home / "lib",
        ignore=lambda _, names: [n for n in names if n.startswith((_HEAVY, "bitcode"))],
    )
    shutil.copytree(
        packages / f"usr/share/postgresql/{version}", tree / f"usr/share/postgresql/{version}", symlinks=True
    )
    for program in _POSTGRES_PROGRAMS:
        root.install(packages / place / "bin" / program, home / "bin" / program)
    for loaded in [*(home / "bin").iterdir(), *(home / "lib").glob("*.so")]:
        harvest.take_libraries(loaded)


def _copy_files(tree: Path) -> None:
    shop = tree / PLACE
    for part in ("web", "database", "load"):
        shutil.copytree(SOURCE / part, shop / part)
    for script in ("init", "tier"):
        root.install(SOURCE / script, shop / script)
    (shop / "web" / "static").rename(shop / "static")
    pictures.draw(shop / "static")
    users = {"postgres": DATABASE_USER, "www-data": WEB_USER}
    _append(
        tree / "etc" / "passwd", "".join(f"{name}:x:{number}:{number}::/:/bin/sh\n" for name, number in users.items())
    )
    _append(tree / "etc" / "group", "".join(f"{name}:x:{number}:\n" for name, number in users.items()))


def _append(file: Path, text: str) -> None:
    """Adds to a file that is shared with the common tree, without adding to that one."""
    common = file.read_text()
    file.unlink()
    file.write_text(common + text)


def _make(folder: Path, software: Path, items: int, customers: int) -> None:
    tree = folder / "tree"
    _link(software / "tree", tree)
    say(f"making the shop's database: {items} books, {customers} customers")
    # As the database's own user, which it insists on: the maker of the image in a namespace that calls him so.
    inner = f'exec unshare --user --map-user={DATABASE_USER} --map-group={DATABASE_USER} --root="$0" /bin/sh "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'mount --rbind /dev "$0/dev" && {inner}']
    script = f"/{PLACE}/database/make"
    done = subprocess.run(
        [*command, tree, script, str(items), str(customers)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"making the shop's database failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    cpio.write(tree, folder / "root.cpio", leave_out={"bin/k6"})  # browsers are never in such a guest
