"""The files of the package memlane are valid (units, pages, completions, profiles), and packages are made of them."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memlane_lab.paths.memlane import program

pytestmark = pytest.mark.real

_TOP = Path(__file__).resolve().parents[2]
_UNITS = "usr/lib/systemd/system"
# Exposure levels, in tenths, of `systemd-analyze security`; 100 is the worst.
_EXPOSURE = {"memlane@.service": 10, "memlane-net@.service": 22, "memlane-nic@.service": 28}
_NETWORKS = ("memlane@.service", "memlane-net@.service")


def _stage(folder: Path) -> Path:
    memlane = program()
    assert memlane is not None
    _succeeds(_TOP / "contrib/package/stage", folder, memlane)
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _stage(tmp_path_factory.mktemp("package") / "tree")


def _succeeds(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def root(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's tree with the targets of systemd itself, which its units name."""
    root = tmp_path_factory.mktemp("package") / "root"
    shutil.copytree(tree, root, symlinks=True)
    for target in Path("/usr/lib/systemd/system").glob("*.target"):
        shutil.copy(target, root / _UNITS)
    return root


@pytest.mark.parametrize(
    "unit",
    [
        f"memlane{kind}"
        for kind in ("@lan.service", "-net@lan.service", "-nic@lan.service", "-nic@lan.socket", "-metrics@lan.socket")
    ],
)
def test_units_are_valid(root: Path, unit: str) -> None:
    assert _succeeds("systemd-analyze", "verify", "--man=no", f"--root={root}", root / _UNITS / unit) == ""


def test_the_unit_of_a_user_is_valid(tree: Path, tmp_path: Path) -> None:
    unit = tmp_path / "memlane@lan.service"
    text = (tree / "usr/lib/systemd/user/memlane@.service").read_text()
    # Units of users are not looked for below another root, so the program is named where it is.
    unit.write_text(text.replace("/usr/bin/memlane", str(tree / "usr/bin/memlane")))
    command = ("systemd-analyze", "--user", "verify", "--man=no", unit)
    assert "memlane@" not in _succeeds(*command, XDG_RUNTIME_DIR=str(tmp_path))


@pytest.mark.parametrize("unit", _EXPOSURE)
def test_services_are_confined(tree: Path, unit: str) -> None:
    _succeeds("systemd-analyze", "security", f"--root={tree}", "--offline=true", f"--threshold={_EXPOSURE[unit]}", unit)


def test_units_for_taps_differ_only_in_what_taps_need(tree: Path) -> None:
    plain, net = ((tree / _UNITS / unit).read_text().splitlines() for unit in _NETWORKS)
    more = {re.split(r"=", line)[0] for line in net if line not in plain and not line.startswith("#")}
    allowed = {
        "AmbientCapabilities",
        "CapabilityBoundingSet",
        "Conflicts",
        "Description",
        "DeviceAllow",
        "DevicePolicy",
    }
    assert more == allowed | {"RestrictAddressFamilies", "SystemCallFilter"}


def test_every_command_has_a_manual_page_that_renders(tree: Path) -> None:
    pages = sorted((tree / "usr/share/man/man1").glob("*.1.gz"))
    names = {page.name.removesuffix(".1.gz") for page in pages}
    shown = _succeeds(tree / "usr/bin/memlane", "--help")
    commands = re.findall(r"^  ([a-z]+)  ", shown.partition("Commands:")[2].partition("\n\n")[0], re.MULTILINE)
    assert len(commands) > 20
    assert {f"memlane-{name}" for name in commands if name != "help"} | {"memlane"} <= names
    for page in pages:
        rendered = _succeeds("man", "--warnings", "--local-file", "-E", "UTF-8", page, MANPAGER="cat", LC_ALL="C.UTF-8")
        assert "NAME" in rendered
        assert "warning" not in rendered.splitlines()[0], rendered[:200]


def test_programs_that_look_for_back_ends_find_memlane(tree: Path) -> None:
    """By the rules of QEMU's docs/interop/vhost-user.json."""
    found = json.loads((tree / "usr/share/qemu/vhost-user/50-memlane.json").read_text())
    assert found["type"] == "net"
    told = _succeeds(tree / found["binary"].lstrip("/"), "--print-capabilities")
    assert json.loads(told) == {"type": "net"}


def test_completions_are_those_of_the_shell(tree: Path) -> None:
    share = tree / "usr/share"
    _succeeds("bash", "-n", share / "bash-completion/completions/memlane")
    assert (share / "zsh/vendor-completions/_memlane").read_text().startswith("#compdef memlane")
    assert "complete -c memlane" in (share / "fish/vendor_completions.d/memlane.fish").read_text()


def test_the_apparmor_profile_compiles(tree: Path) -> None:
    _succeeds("apparmor_parser", "--skip-kernel-load", "--skip-cache", tree / "etc/apparmor.d/memlane")


def test_wireshark_finds_the_program(tree: Path) -> None:
    [link] = tree.glob("usr/lib/*/wireshark/extcap/memlane-extcap")
    assert link.resolve() == tree / "usr/bin/memlane"
    assert "extcap {version=" in _succeeds(link, "--extcap-interfaces")


def test_container_runtimes_find_the_plugin(tree: Path) -> None:
    assert (tree / "usr/lib/cni/memlane-cni").resolve() == tree / "usr/bin/memlane"


@pytest.mark.prove
def test_the_same_files_give_the_same_packages_and_lintian_has_nothing_to_say(tree: Path, tmp_path: Path) -> None:
    packages = [tmp_path / "first", tmp_path / "second"]
    for folder, staged in zip(packages, [tree, _stage(tmp_path / "again")], strict=True):
        _succeeds(_TOP / "contrib/package/make", staged, folder)
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in packages)
    assert sorted(name.rpartition(".")[2] for name in first) == ["deb", "rpm"]
    assert first == second
    [deb] = packages[0].glob("*.deb")
    assert not re.search("^[EW]:", _succeeds("lintian", "--fail-on", "warning", deb), re.MULTILINE)


def _built(top: Path) -> dict[str, bytes]:
    """The packages of these sources, in a folder of another name, from the compiler on; by their names."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_TOP, capture_output=True, text=True, check=True)
    for file in filter(None, listed.stdout.split("\0")):
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_TOP / file, top / file, follow_symlinks=False)
    # As that of a commit; the time of a copy is that of its file.
    _succeeds(top / "contrib/package/build", top / "target", MEMLANE_REVISION="0")
    text = (top / "target/release/memlane").read_bytes()
    for path in (top, _TOP, Path.home() / ".cargo", Path.home() / ".rustup"):
        assert bytes(path) not in text, path
    _succeeds(top / "contrib/package/stage", top / "tree", top / "target/release/memlane", SOURCE_DATE_EPOCH="1")
    _succeeds(top / "contrib/package/make", top / "tree", top / "packages")
    return {file.name: file.read_bytes() for file in (top / "packages").iterdir()}


@pytest.mark.prove
@pytest.mark.timeout(7200)
def test_two_whole_builds_are_equal_byte_by_byte(tmp_path: Path) -> None:
    """From the sources to the packages, in folders of different names, neither of which is named in the program."""
    first, second = (_built(tmp_path / name) for name in ("one", "the/other"))
    assert sorted(name.rpartition(".")[2] for name in first) == ["deb", "rpm"]
    assert first == second


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the lab."""
    folder = tmp_path_factory.mktemp("lab")
    _succeeds(_TOP / "contrib/package/lab", folder, PYTHON=sys.executable)
    [deb] = folder.iterdir()
    return deb


def test_the_lab_of_the_package_finds_its_data(lab: Path, tmp_path: Path) -> None:
    """Started as users do, with the Python packages of this test, as if they had been fetched."""
    _succeeds("dpkg-deb", "--extract", lab, tmp_path)
    share = tmp_path / "usr/share/memlane-lab/lab"
    for data in (
        "experiments/promises.toml",
        "demo.toml",
        "agent/Cargo.lock",
        "shop/application/Cargo.lock",
        "plugin/counted.c",
    ):
        assert (share / data).read_bytes() == (_TOP / "lab" / data).read_bytes()
    [version] = re.findall("_([^_]*)-1_all.deb$", lab.name)
    python = tmp_path / f"cache/memlane-lab/python-{version}"
    (python / "bin").mkdir(parents=True)
    (python / "installed").touch()
    (python / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (python / "bin/python").chmod(0o755)
    told = _succeeds(tmp_path / "usr/bin/memlane-lab", "list", XDG_CACHE_HOME=str(tmp_path / "cache"))
    for experiment in (_TOP / "lab/experiments").glob("*.toml"):
        assert f" {experiment.stem} " in f" {told} ".replace("\n", " ")
    assert not list(share.rglob("__pycache__"))


def test_the_lab_of_the_package_fetches_all_that_it_imports_and_no_more(lab: Path, tmp_path: Path) -> None:
    _succeeds("dpkg-deb", "--extract", lab, tmp_path)
    text = (tmp_path / "usr/share/memlane-lab/lab/requirements.txt").read_text()
    names = set(re.findall("^([a-z0-9-]+)==", text, re.MULTILINE))
    project = tomllib.loads((_TOP / "lab/pyproject.toml").read_text())["project"]
    assert {*project["dependencies"], "markupsafe", "pydantic-core", "pygments"} <= names
    assert not names & {"pytest", "mypy", "ruff", "matplotlib", "pandas"}
    assert text.count("--hash=sha256:") >= len(names)


@pytest.mark.prove
def test_the_lab_gives_the_same_package_twice_and_lintian_has_nothing_to_say(lab: Path, tmp_path: Path) -> None:
    _succeeds(_TOP / "contrib/package/lab", tmp_path, PYTHON=sys.executable)
    [again] = tmp_path.iterdir()
    assert again.read_bytes() == lab.read_bytes()
    assert not re.search("^[EW]:", _succeeds("lintian", "--fail-on", "warning", lab), re.MULTILINE)


@pytest.mark.prove
def test_the_selinux_module_compiles(tree: Path, tmp_path: Path) -> None:
    """With a policy of only the types and classes that the module asks for: those of a distribution are not at hand."""
    base = """
    (mls true) (sensitivity s0) (sensitivityorder (s0)) (category c0) (categoryorder (c0)) (sensitivitycategory s0 (c0))
    (handleunknown allow) (policycap open_perms) (sid kernel) (sidorder (kernel))
    (class dir (getattr search open)) (class sock_file (getattr write open)) (class unix_stream_socket (connectto))
    (classorder (dir sock_file unix_stream_socket))
    (user system_u) (role object_r) (role system_r) (userrole system_u object_r) (userrole system_u system_r)
    (userlevel system_u (s0)) (userrange system_u ((s0) (s0 (c0))))
    (typeattribute virt_domain) (typeattribute cil_gen_require) (type svirt_t) (typeattributeset virt_domain (svirt_t))
    (type qemu_var_run_t) (type unconfined_service_t) (roletype object_r qemu_var_run_t) (roletype system_r svirt_t)
    (sidcontext kernel (system_u system_r svirt_t ((s0) (s0)))) (allow svirt_t svirt_t (dir (search)))
    """
    (tmp_path / "base.cil").write_text(base)
    module = tree / "usr/share/selinux/packages/memlane.cil"
    _succeeds("secilc", "-o", tmp_path / "policy", "-f", tmp_path / "contexts", tmp_path / "base.cil", module)
    assert "/run/memlane(/.*)?" in (tmp_path / "contexts").read_text()


def test_the_changelog_is_compressed_without_a_time(tree: Path) -> None:
    page = (tree / "usr/share/doc/memlane/changelog.gz").read_bytes()
    assert page[4:8] == bytes(4)
    assert gzip.decompress(page).startswith(b"# Changelog")


_NIXOS = """
let
  # As much of nixpkgs as module and flake ask for.
  lib = {
    mkOption = x: x;
    mkIf = condition: x: if condition then x else { };
    getExe = package: "${package}/bin/memlane";
    mapAttrs' = f: set: builtins.listToAttrs (map (name: f name set.${name}) (builtins.attrNames set));
    types = { package = "package"; bool = "bool"; attrsOf = type: type; submodule = module: module; };
  };
  pkgs.formats.toml = _: { type = "toml"; generate = name: value: builtins.toFile name (builtins.toJSON value); };
  pkgs.rustPlatform.buildRustPackage = described: "/${described.pname}-${described.version}";
  flake = (import FLAKE).outputs { self = flake; nixpkgs.legacyPackages.x86_64-linux = pkgs; };
  imported = flake.nixosModules.default { };
  module = import (builtins.head imported.imports) {
    inherit lib pkgs;
    config.services.memlane = imported.services.memlane // {
      networks.lan = { devices = false; settings.port = [{ name = "web"; vhost-user = "/run/memlane/web.sock"; }]; };
      networks.wan = { devices = true; settings = { }; };
    };
  };
in
builtins.toJSON {
  units = builtins.mapAttrs (_: unit: unit.serviceConfig) module.config.systemd.services;
  files = builtins.attrNames module.config.environment.etc;
}
"""
# Directives that differ on purpose: the program is elsewhere, and so is its environment; systemd is newer.
_OF_NIXOS = {"ConfigurationDirectory", "Environment", "ExecReload", "ExecStart", "Type"}


def _directives(unit: Path) -> dict[str, str]:
    """Those of a service; values of a key that stands more than once are joined."""
    found: dict[str, str] = {}
    for line in unit.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key] = f"{found[key]} {value}" if key in found else value
    return {key: value for key, value in found.items() if key not in _OF_NIXOS}


def _of_nix(value: object) -> str:
    """A value as NixOS writes it into a unit."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "yes" if value is True else str(value)


@pytest.mark.prove
def test_nixos_has_services_with_the_directives_of_the_package(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "networks.nix").write_text(_NIXOS.replace("FLAKE", str(_TOP / "contrib/nixos/flake.nix")))
    mine = {name: str(tmp_path / name) for name in ("NIX_STATE_DIR", "NIX_STORE_DIR", "NIX_LOG_DIR")}
    evaluated = ("nix-instantiate", "--eval", "--strict", "--readonly-mode", tmp_path / "networks.nix")
    done = subprocess.run(evaluated, capture_output=True, text=True, check=False, env={**os.environ, **mine})
    assert done.returncode == 0, done.stderr
    found = json.loads(json.loads(done.stdout))
    assert found["files"] == ["memlane/lan.toml", "memlane/wan.toml"]
    assert set(found["units"]) == {"memlane-lan", "memlane-wan"}
    version = tomllib.loads((_TOP / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    for name, unit in (("lan", "memlane@.service"), ("wan", "memlane-net@.service")):
        service = found["units"][f"memlane-{name}"]
        assert service["ExecStart"].startswith(f"/memlane-{version}/bin/memlane up /etc/memlane/{name}.toml ")
        set_here = {key: _of_nix(value) for key, value in service.items() if key not in _OF_NIXOS}
        assert set_here == _directives(tree / _UNITS / unit)
