//! The ports that a guest asks for, by the sockets in its description.

use std::path::{Path, PathBuf};
use std::process::Command;

use roxmltree::{Document, Node};

use crate::control::client::name_in_path;

/// XML namespace of the element with keys of a port.
const NAMESPACE: &str = "urn:memlane";
/// Keys of a port that the element may give, as a rate limit (token bucket) of the transmit direction.
const KEYS: [&str; 5] = ["segment", "transmit", "receive", "weight", "mtu"];

/// A port that a guest asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) socket: PathBuf,
    pub(super) network: String,
    pub(super) name: String,
    /// Further keys, each as the text of an option.
    pub(super) keys: Vec<(&'static str, String)>,
}

/// The path of the port called `name` at a control socket.
pub(super) fn uri(name: &str) -> String {
    format!("/v1/ports/{}", name_in_path(name))
}

impl Wanted {
    /// The port that the socket at `path` asks for; none if it is no socket of memlane's.
    fn of_path(path: &str, sockets: &Path) -> Option<Self> {
        let socket = PathBuf::from(path);
        let stem = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
        let (network, name) = stem.split_once('.').filter(|_| socket.parent() == Some(sockets))?;
        let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        let (network, name) = (network.to_owned(), name.to_owned());
        (is_word(&network) && is_word(&name)).then_some(Self { socket, network, name, keys: Vec::new() })
    }

    pub(super) fn uri(&self) -> String {
        uri(&self.name)
    }
}

/// The ports of a libvirt domain, by its interfaces of type vhostuser.
///
/// # Errors
/// The description is no XML, and may name a socket of memlane's.
pub(super) fn of_domain(description: &str, sockets: &Path) -> Result<Vec<Wanted>, String> {
    let document = match Document::parse(description) {
        Ok(document) => document,
        Err(error) if description.contains(&*sockets.to_string_lossy()) => {
            return Err(format!("its description by libvirt is not XML: {error}"));
        }
        Err(_) => return Ok(Vec::new()),
    };
    let domain = document.root_element();
    let metadata: Vec<Node> = children(domain, "metadata").flat_map(|metadata| metadata.descendants()).collect();
    let asked = |name: &str| {
        let mut entries = metadata.iter().filter(|entry| entry.has_tag_name((NAMESPACE, "port")));
        entries.find(|entry| entry.attribute("name") == Some(name)).copied()
    };
    let interfaces = children(domain, "devices").flat_map(|devices| children(devices, "interface"));
    let ports = interfaces.filter(|interface| interface.attribute("type") == Some("vhostuser")).filter_map(|interface| {
        let of_child = |tag: &str, key: &str| children(interface, tag).find_map(|child| child.attribute(key)).map(str::to_owned);
        let mut port = Wanted::of_path(&of_child("source", "path")?, sockets)?;
        port.keys.extend(of_child("mac", "address").map(|mac| ("mac", mac)));
        // Pairs of a receive queue and a transmit queue.
        port.keys.extend(of_child("driver", "queues").map(|queues| ("queues", queues)));
        let entry = asked(&port.name);
        port.keys.extend(KEYS.into_iter().filter_map(|key| Some((key, entry?.attribute(key)?.to_owned()))));
        Some(port)
    });
    Ok(ports.collect())
}

fn children<'d>(parent: Node<'d, 'd>, tag: &str) -> impl Iterator<Item = Node<'d, 'd>> {
    let tag = tag.to_owned();
    parent.children().filter(move |child| child.has_tag_name(&*tag))
}

/// The ports of a virtual machine of Proxmox VE, by the sockets in its `args`.
///
/// # Errors
/// `qm config` fails.
pub(super) fn of_proxmox(machine: &str, sockets: &Path) -> Result<Vec<Wanted>, String> {
    let output = Command::new("qm").args(["config", machine]).output().map_err(|error| format!("cannot run qm config: {error}"))?;
    if !output.status.success() {
        return Err(format!("qm config {machine}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(of_arguments(&String::from_utf8_lossy(&output.stdout), sockets))
}

fn of_arguments(configuration: &str, sockets: &Path) -> Vec<Wanted> {
    let line = configuration.lines().find_map(|line| line.strip_prefix("args:")).unwrap_or_default();
    let paths = line.split("path=").skip(1).filter_map(|rest| rest.split(|c: char| ",'\"".contains(c) || c.is_whitespace()).next());
    paths.filter_map(|path| Wanted::of_path(path, sockets)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKETS: &str = "/run/memlane";

    fn wanted(port: &str, keys: &[(&'static str, &str)]) -> Wanted {
        let (network, name) = port.split_once('.').unwrap();
        let keys = keys.iter().map(|&(key, text)| (key, text.to_owned())).collect();
        Wanted { socket: format!("{SOCKETS}/{port}.sock").into(), network: network.into(), name: name.into(), keys }
    }

    fn of(description: &str) -> Result<Vec<Wanted>, String> {
        of_domain(description, Path::new(SOCKETS))
    }

    #[test]
    fn interfaces_with_a_socket_of_a_network_ask_for_a_port() {
        let text = "<domain><metadata><x><m:port xmlns:m='urn:memlane' name='web' segment='front' transmit='1Gbit' other='x'/></x></metadata>\
            <devices><interface type='vhostuser'><mac address='52:54:00:00:00:01'/><source type='unix' path='/run/memlane/lan.web.sock'/>\
            <driver queues='2'/></interface>\
            <interface type='vhostuser'><source path='/run/memlane/lan.a.b.sock'/></interface>\
            <interface type='vhostuser'><source path='/run/memlane/web.sock'/></interface>\
            <interface type='vhostuser'><source path='/run/memlane/x/lan.web.sock'/></interface>\
            <interface type='vhostuser'><source path='/run/memlane/lan.we&#10;b.sock'/></interface>\
            <interface type='bridge'><source path='/run/memlane/lan.db.sock'/></interface></devices></domain>";
        let keys = [("mac", "52:54:00:00:00:01"), ("queues", "2"), ("segment", "front"), ("transmit", "1Gbit")];
        assert_eq!(of(text), Ok(vec![wanted("lan.web", &keys), wanted("lan.a.b", &[])]));
    }

    #[test]
    fn garbage_asks_for_nothing_unless_it_names_a_socket() {
        for garbage in ["", "no XML", "<domain", "<domain/>", "\0", "<a><b></a>", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"] {
            assert_eq!(of(garbage), Ok(vec![]), "{garbage:?}");
        }
        let cut_off = "<domain><devices><interface type='vhostuser'><source path='/run/memlane/lan.web.sock'";
        assert!(of(cut_off).unwrap_err().contains("not XML"));
    }

    #[test]
    fn arguments_of_proxmox_name_sockets() {
        let text = "cores: 2\nargs: -chardev socket,id=char-web,path=/run/memlane/lan.web.sock,reconnect=1 -netdev x -chardev 'socket,path=/run/memlane/lan.db.sock'\n";
        assert_eq!(of_arguments(text, Path::new(SOCKETS)), vec![wanted("lan.web", &[]), wanted("lan.db", &[])]);
        assert_eq!(of_arguments("path=/run/memlane/lan.web.sock\n", Path::new(SOCKETS)), vec![]);
    }
}
