"""Public clients get addresses and names from the switch, the same as from dnsmasq but for the list of addresses.md.

udhcpc, dhcpcd, systemd-networkd with systemd-resolved, dig and iPXE, each at a port of its own; those that are Linux
programs run in a network namespace behind a TAP.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.common.wait import until
from memlane_lab.host import network
from memlane_lab.host.session import Session
from memlane_lab.images import debian
from memlane_lab.paths.memlane import program

pytestmark = pytest.mark.real

_MAC = "02:00:00:00:00:01"
_SEGMENT = """
[[segment]]
name = "lan"
subnet = "10.0.0.0/24"
subnet6 = "fd00::/64"
router = "10.0.0.254"
dns = []
"""
_DNSMASQ = (
    *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-", "--user=root"),
    *("--no-resolv", "--no-hosts", "--bind-interfaces", "--interface=net0", "--dhcp-authoritative"),
    *("--dhcp-range=10.0.0.2,10.0.0.250,255.255.255.0,1h", "--dhcp-range=fd00::2,fd00::fff0,64,1h", "--enable-ra"),
    *("--domain=lan", "--local=/lan/", "--dhcp-option=option:router,10.0.0.254", "--dhcp-fqdn"),
)
_APART = (
    "mount --bind FOLDER /mnt; mount -t tmpfs none /run; mount -t tmpfs none /var/lib; mount -o remount,ro,bind /sys; "
)
"""State of its own; without udev's leave for each device, which networkd waits for where /sys may be written to."""
_TELL = '#!/bin/sh\nenv | grep -E "^(new_|ip=|[a-z0-9]+=)"\n'
"""Called by a DHCP client with the lease in its environment."""
_NETWORK = """[Match]
Name=net0
[Network]
DHCP=yes
IPv6AcceptRA=yes
LinkLocalAddressing=ipv6
[DHCPv4]
UseDomains=yes
Hostname=client
"""
_RESOLVED = r"""
mkdir -p /run/systemd/network /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/resolved.conf.d /run/udev
(cat /etc/passwd; echo systemd-network:x:998:998::/:/bin/false; echo systemd-resolve:x:997:997::/:/bin/false) |
    sort -u -t: -k1,1 >/run/passwd
(cat /etc/group; echo systemd-network:x:998:; echo systemd-resolve:x:997:) | sort -u -t: -k1,1 >/run/group
mount --bind /run/passwd /etc/passwd; mount --bind /run/group /etc/group
: >/run/empty; mount --bind /run/empty /etc/resolv.conf
chown -R systemd-network:systemd-network /run/systemd/netif
cp /mnt/net0.network /run/systemd/network/
printf '[Resolve]\nDNSSEC=no\nLLMNR=no\nFallbackDNS=\n' >/run/systemd/resolved.conf.d/lab.conf
/lib/systemd/systemd-networkd & networkd=$!
/mnt/resolved/lib/systemd/systemd-resolved & resolved=$!
tries=0
until dig +short +time=2 +tries=1 @127.0.0.53 client.lan | grep -q '^[0-9]' &&
    grep -q '^DNS=.*fd00::1' /run/systemd/netif/links/* || [ $tries -gt 40 ]; do
    tries=$((tries+1)); sleep 0.5
done
echo "names=$(dig +short +time=5 @127.0.0.53 client.lan | head -n 1)"
for address in $(dig +short +time=5 @127.0.0.53 client.lan | head -n 1); do
    echo "reverse=$(dig +short +time=5 @127.0.0.53 -x $address | head -n 1)"
done
echo "gone=$(dig +time=5 @127.0.0.53 gone.lan | grep -o 'status: [A-Z]*')"
cat /run/systemd/netif/leases/* | grep -v '^#'
grep -h -E '^(DNS|DOMAINS|OPER_STATE)=' /run/systemd/netif/links/*
kill $networkd $resolved
"""
_CLIENTS = {
    "udhcpc": "busybox udhcpc -i net0 -n -q -t 10 -T 2 -O search -x hostname:client -s /mnt/tell",
    "dhcpcd": "mkdir -p /var/lib/dhcpcd /run/dhcpcd; dhcpcd -1 -B -4 -t 30 -h client --noipv4ll -c /mnt/tell net0",
    "dhcpcd-6": "mkdir -p /var/lib/dhcpcd /run/dhcpcd; timeout 15 dhcpcd -B -6 -c /mnt/tell net0",
    "networkd": _RESOLVED,
}
_WANTED = {
    "udhcpc": r"ip|mask|router|dns|domain|serverid|lease|broadcast|hostname|opt58|opt59",
    "dhcpcd": r"new_(ip_address|subnet_mask|subnet_cidr|routers|domain_name|domain_name_servers|dhcp_server_identifier|"
    r"dhcp_lease_time|dhcp_renewal_time|dhcp_rebinding_time|broadcast_address|network_number|host_name)",
    "dhcpcd-6": r"new_(dhcp6_name_servers|dhcp6_domain_search|dhcp6_ia_na1_t1|dhcp6_ia_na1_t2|"
    r"dhcp6_ia_na1_ia_addr1_pltime|dhcp6_ia_na1_ia_addr1_vltime)",
    "networkd": r"NETMASK|ROUTER|SERVER_ADDRESS|BROADCAST|T1|T2|LIFETIME|DNS|DOMAINNAME|OPER_STATE|names|reverse|gone",
}
"""Facts that a client is told, by their names: all but those of which each server has its own."""
_DIFFERENT = {
    "udhcpc": {"ip"},
    "dhcpcd": {"new_ip_address"},
    "dhcpcd-6": {"new_dhcp6_ia_na1_t2", "new_dhcp6_domain_search"},
    "networkd": {"names", "DNS"},
}
"""Facts that differ, as the page says: the address is a hash of another kind, T2 is that of RFC 8415, and no router is
advertised that forwards nothing."""


class _Bench:
    """A client's namespace on a segment with a server."""

    def __init__(self, session: Session, name: str, segment: str) -> None:
        binary = program()
        assert binary is not None
        self._binary = binary
        self.folder = session.folder / name
        self.folder.mkdir()
        (self.folder / "tell").write_text(_TELL)
        (self.folder / "tell").chmod(0o755)
        (self.folder / "net0.network").write_text(_NETWORK)
        self.session = session
        self.client, self.server = session.namespace(f"{name}-client"), session.namespace(f"{name}-server")
        self.file = self.folder / "net.toml"
        ports = "".join(
            f'[[port]]\nname = "{port}"\ntap = "net0"\nnetns = "{namespace}"\n'
            for port, namespace in (("client", self.client), ("server", self.server))
        )
        pxe = '[[port]]\nname = "pxe"\nvhost-user = "pxe.sock"\n'
        self.file.write_text(f'control = "control.sock"\n{segment}{ports}{pxe}')
        self.switch = session.start(f"memlane-{name}", [binary, "up", self.file])
        for namespace in (self.client, self.server):
            there = partial(network.exists, "net0", namespace=namespace)
            until(there, timeout=30, what=f"the device: {self.switch.tail()}")
            network.change(namespace, "link set dev lo up")
        network.change(self.client, f"link set dev net0 address {_MAC}", "link set dev net0 up")

    def run(self, what: str, commands: str) -> str:
        """Output of the commands, in the client's namespace, with state of their own."""
        text = _APART.replace("FOLDER", str(self.folder)) + commands
        command = [*network.enter(self.client), "unshare", "--mount", "sh", "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        (self.session.logs / f"{self.folder.name}-{what}.log").write_text(done.stdout + done.stderr)
        network.change(self.client, "address flush dev net0", "link set dev net0 down", "link set dev net0 up")
        return done.stdout

    def facts(self, client: str) -> dict[str, str]:
        """Facts that the client was told, by its name for each."""
        said = [line.partition("=") for line in self.run(client, _CLIENTS[client]).splitlines() if "=" in line]
        return {name: value for name, _, value in said if re.fullmatch(_WANTED[client], name)}

    def leases(self) -> list[dict[str, Any]]:
        """Leases of memlane's own server."""
        command: list[str | Path] = [self._binary, "leases", self.file, "--json"]
        [names] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        leases: list[dict[str, Any]] = names["leases"]
        return leases


@pytest.fixture
def own(session: Session) -> _Bench:
    """The server of memlane itself."""
    return _Bench(session, "own", _SEGMENT)


@pytest.fixture
def rival(session: Session) -> _Bench:
    """dnsmasq, with the same settings, at another port."""
    bench = _Bench(session, "rival", "")
    network.change(bench.server, "address add 10.0.0.1/24 dev net0", "address add fd00::1/64 dev net0")
    network.change(bench.server, "link set dev net0 up")
    started = bench.session.start(
        "dnsmasq", [*_DNSMASQ, f"--dhcp-leasefile={bench.folder}/leases"], namespace=bench.server
    )
    until(lambda: "started" in started.tail(), timeout=20, what=f"dnsmasq: {started.tail()}")
    return bench


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[_Bench], None]:
    """Puts systemd-resolved where a bench finds it; the package, once installed, would take over the host's names."""
    folder = tmp_path_factory.mktemp("resolved")
    debian.unpack(debian.Archive().download("systemd-resolved"), folder)
    return lambda bench: bench.folder.joinpath("resolved").symlink_to(folder)


@pytest.mark.parametrize("client", ["udhcpc", "dhcpcd", "dhcpcd-6", "networkd"])
def test_a_client_is_told_what_dnsmasq_tells_it(
    own: _Bench, rival: _Bench, client: str, resolved: Callable[[_Bench], None]
) -> None:
    """The same client, with the same requests."""
    for bench in (own, rival):
        resolved(bench)
    ours, theirs = own.facts(client), rival.facts(client)
    assert ours
    assert theirs
    differ = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs if ours.get(name) != theirs.get(name)}
    assert set(differ) <= _DIFFERENT[client], differ
    assert any(lease["port"] == "client" for lease in own.leases())
    if client == "networkd":
        # The client's own name and its address, by systemd-resolved.
        assert ours["names"].startswith("10.0.0.")
        assert ours["reverse"] == "client.lan."
        assert ours["DNS"] == "10.0.0.1 fd00::1"
        assert ours["gone"] == "status: NXDOMAIN"


_QUESTIONS = [
    "client.lan A",
    "CLIENT.LaN A",
    "client.lan A +tcp",
    "client.lan A +noedns",
    "gone.lan A",
    "gone.lan AAAA +tcp",
    "client.lan TYPE1000",
    "client.lan A +ednsopt=100",
    "client.lan A +ednsflags=0x40",
    "client.lan A +cd +ad",
    "example.org A",
]


def test_dig_gets_the_codes_of_dnsmasq(own: _Bench, rival: _Bench) -> None:
    """For names of the domain and others, by UDP and TCP, with EDNS and without."""
    for bench in (own, rival):
        bench.facts("udhcpc")
    told = "grep -o -E 'status: [A-Z]*|ANSWER: [0-9]*' | tr '\\n' ' '; echo"
    asked = "; ".join(f"dig +time=5 +tries=1 @10.0.0.1 {question} | {told}" for question in _QUESTIONS)
    asks = f"ip address add 10.0.0.99/24 dev net0; {asked}"
    ours, theirs = (bench.run("dig", asks).splitlines() for bench in (own, rival))
    assert all("status: " in line for line in ours), ours
    assert dict(zip(_QUESTIONS, ours, strict=True)) == dict(zip(_QUESTIONS, theirs, strict=True))


def test_ipxe_gets_an_address(own: _Bench) -> None:
    """The ROM of QEMU's virtio-net device asks for an address before it looks for something to boot."""
    qemu = shutil.which("qemu-system-x86_64")
    assert qemu is not None
    socket = own.folder / "pxe.sock"
    until(socket.exists, timeout=20, what="the port's socket")
    command: list[str | Path] = [
        *(qemu, "-machine", "pc,accel=tcg", "-m", "64", "-nodefaults", "-display", "none", "-serial", "stdio"),
        *("-object", "memory-backend-memfd,id=m,size=64M,share=on", "-numa", "node,memdev=m"),
        *("-chardev", f"socket,id=c,path={socket}", "-netdev", "vhost-user,id=n,chardev=c"),
        *("-device", "virtio-net-pci,netdev=n,mac=02:00:00:00:00:99,bootindex=1"),
    ]
    machine = own.session.start("ipxe", command)
    until(
        lambda: any(lease["port"] == "pxe" and lease["source"] == "dhcp" for lease in own.leases()),
        timeout=120,
        what=f"iPXE's lease: {machine.tail()}",
    )
