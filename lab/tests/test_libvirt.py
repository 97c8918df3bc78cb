"""The output of `memlane libvirt` is valid in libvirt's own schema, in a domain as the output demands it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from memlane_lab.paths.memlane import program

_DOMAIN = """<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>guest</name><memory unit='MiB'>128</memory><os><type>hvm</type></os>{backing}
  <devices>{interface}</devices>{override}
</domain>"""

_PORTS: dict[str, dict[str, Any]] = {
    "plain": {"vhost-user": "/run/memlane/web.sock"},
    "connects": {"vhost-user": "/run/memlane/web.sock", "connect": True, "queues": 4},
    "large": {"vhost-user": "/run/memlane/web.sock", "mtu": 9000},
    "odd--name.1": {"vhost-user": "/run/<a> & 'b', \"c\"/web.sock", "mtu": 1400, "queues": 2},
}


pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", _PORTS)
def test_libvirts_schema_takes_it(tmp_path: Path, name: str) -> None:
    printed = _printed(tmp_path, name)
    domain = tmp_path / "domain.xml"
    domain.write_text(
        _DOMAIN.format(
            interface=printed,
            backing=_element(printed, "memoryBacking"),
            override=_element(printed, "qemu:override") if "<qemu:override" in printed else "",
        )
    )
    done = subprocess.run(["virt-xml-validate", domain, "domain"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{domain.read_text()}"


def test_what_a_port_needs_of_qemu_is_in_the_override(tmp_path: Path) -> None:
    assert "'host_mtu'" in _element(_printed(tmp_path, "large"), "qemu:override")


def test_there_is_no_mtu_that_keeps_the_domain_from_starting(tmp_path: Path) -> None:
    """The host would be asked to set it on an interface that it does not have."""
    assert "<mtu" not in _printed(tmp_path, "large")


def _printed(folder: Path, name: str) -> str:
    file = folder / "net.toml"
    file.write_text(tomli_w.dumps({"port": [{"name": name, **_PORTS[name]}]}))
    memlane = program()
    assert memlane is not None
    done = subprocess.run([memlane, "libvirt", file, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _element(text: str, name: str) -> str:
    """The element `name` that stands in the comment of `text`."""
    found = re.search(rf"<{name}>.*</{name}>", text, re.DOTALL)
    assert found, text
    return found[0]
