//! DNS servers of this host, as its guests can use them (resolv.conf(5)).

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Files with servers, the first that has one of use counts: systemd-resolved and NetworkManager put a stub at a loopback address into
/// the first one, and their servers into the others.
const FILES: [&str; 3] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf"];
/// Most servers that guests are told of behind memlane's own: the C library uses three (resolv.conf(5), MAXNS).
pub const MOST: usize = 2;
/// Most servers that this host's own are taken to be (resolv.conf(5), MAXNS).
const MOST_LOCAL: usize = 3;
/// Longest file that is read.
const LONGEST: usize = 64 << 10;

/// The servers of this host.
pub fn of_host() -> Vec<IpAddr> {
    of_files(FILES.map(Path::new).iter())
}

fn of_files<'p>(files: impl Iterator<Item = &'p &'p Path>) -> Vec<IpAddr> {
    let read = |path: &&Path| std::fs::read(path).unwrap_or_default();
    let servers = |bytes: Vec<u8>| servers(&String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]));
    files.map(read).map(servers).find(|servers| !servers.is_empty()).unwrap_or_default()
}

/// The servers that this host itself asks, also a stub at a loopback address; that of the C library if none is named (resolv.conf(5)).
pub fn local() -> Vec<IpAddr> {
    let bytes = std::fs::read(FILES[0]).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]);
    let named: Vec<IpAddr> =
        named(&text).filter(|address| !address.is_multicast() && !is_of_link(address)).take(MOST_LOCAL).collect();
    if named.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { named }
}

/// Whether an address needs the name of a link beside it.
fn is_of_link(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The servers in the file `text`.
fn named(text: &str) -> impl Iterator<Item = IpAddr> {
    let words = text.lines().map(str::split_ascii_whitespace);
    let named = words.filter_map(|mut words| words.next().filter(|word| *word == "nameserver").and(words.next()));
    named.filter_map(|word| word.parse().ok())
}

/// The servers in the file `text` that another machine can reach.
fn servers(text: &str) -> Vec<IpAddr> {
    named(text).filter(is_usable).take(MOST).collect()
}

/// Whether a guest can use a server at `address`.
pub fn is_usable(address: &IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_guests_can_reach_are_taken_from_the_first_file_that_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let stub = write("stub", "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch example.org\n");
        let real = write(
            "real",
            "search a\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver 2001:db8::1\nnameserver 192.0.2.2\n",
        );
        let missing = folder.path().join("missing");
        let of = |paths: &[&Path]| of_files(paths.iter());
        let wanted: [IpAddr; MOST] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(of(&[&missing, &stub, &real]), wanted);
        assert!(of(&[&stub, &missing]).is_empty());
        assert!(!is_usable(&"::1".parse().unwrap()) && !is_usable(&"0.0.0.0".parse().unwrap()));
    }
}
