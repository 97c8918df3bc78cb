//! `memlane libvirt-stats`: the counters of a libvirt domain's ports.
//!
//! libvirt reads counters of interfaces from the host's network devices, and those of vhost-user interfaces from Open vSwitch alone
//! (`virDomainInterfaceStats`), so `virsh domifstat` has none of memlane's. The lines here are those of domifstat.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use roxmltree::Document;

use super::{Failure, output};
use crate::config::claim::place;
use crate::control::running;
use crate::control::{Client, PortReport};
use crate::stats::{DropReason, PortTotals};

/// Arguments of `memlane libvirt-stats`.
#[derive(Debug, Args)]
pub struct LibvirtStats {
    /// The domain: its name, number or UUID.
    domain: String,
    /// Connection of virsh, as qemu:///session; virsh's own by default.
    #[arg(long, value_name = "URI")]
    connect: Option<String>,
}

impl LibvirtStats {
    /// Prints the counters.
    ///
    /// # Errors
    /// virsh does not know the domain, or no running network has one of its sockets.
    pub fn run(&self) -> Result<(), Failure> {
        let sockets = sockets(&self.description()?).map_err(Failure::Running)?;
        if sockets.is_empty() {
            return Err(Failure::Running(format!("domain {} has no interface of type vhostuser", self.domain)));
        }
        let ports = ports();
        let named = |socket: &PathBuf| ports.get(&place(socket));
        let lines: String = sockets.iter().filter_map(named).map(|(network, port)| lines(network, port)).collect();
        output::print(&lines)?;
        match sockets.iter().find(|socket| named(socket).is_none()) {
            None => Ok(()),
            Some(socket) => Err(Failure::Running(format!(
                "no running network has a port at {}: `memlane list` shows networks, for root those of all users",
                socket.display()
            ))),
        }
    }

    /// The domain's XML, from virsh.
    fn description(&self) -> Result<String, Failure> {
        let mut virsh = Command::new("virsh");
        virsh.args(self.connect.iter().flat_map(|uri| ["--connect", uri]));
        let output = virsh.args(["dumpxml", "--domain", &self.domain]).output();
        let output = output.map_err(|error| Failure::Running(format!("cannot run virsh: {error}. Install libvirt-clients")))?;
        if !output.status.success() {
            return Err(Failure::Running(format!("virsh dumpxml: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        String::from_utf8(output.stdout).map_err(Failure::running)
    }
}

/// Sockets of the vhost-user interfaces in the XML of a domain.
fn sockets(description: &str) -> Result<Vec<PathBuf>, String> {
    let document = Document::parse(description).map_err(|error| format!("virsh dumpxml printed no XML: {error}"))?;
    let elements = document.descendants();
    let interfaces = elements.filter(|element| element.has_tag_name("interface") && element.attribute("type") == Some("vhostuser"));
    let source = |interface: roxmltree::Node<'_, '_>| {
        let source = interface.children().find(|child| child.has_tag_name("source"))?;
        source.attribute("path").map(PathBuf::from)
    };
    Ok(interfaces.filter_map(source).collect())
}

/// Vhost-user ports of all running networks by the paths of their sockets, each with the name of its network.
fn ports() -> HashMap<PathBuf, (String, PortReport)> {
    let of_network = |running: running::Running| {
        // A network that ends meanwhile has no ports.
        let ports: Vec<PortReport> = Client::new(&running.control).get("/v1/ports").unwrap_or_default();
        ports.into_iter().map(move |port| (running.identity.name.clone(), port))
    };
    let ports = running::all().into_iter().flat_map(of_network).filter(|(_, port)| port.kind == "vhost-user");
    ports.map(|(network, port)| (place(Path::new(&port.place)), (network, port))).collect()
}

/// The counters of a port, one a line. Received are the frames for the guest, as in domifstat.
fn lines(network: &str, port: &PortReport) -> String {
    let PortTotals { receive_bytes, receive_frames, transmit_bytes, transmit_frames, .. } = port.totals;
    let drops = |of_sender: bool| -> u64 {
        let counted = DropReason::ALL.iter().filter(|reason| reason.is_of_sender() == of_sender);
        counted.filter_map(|reason| port.totals.drops.get(reason.name())).sum()
    };
    let counters = [
        ("rx_bytes", receive_bytes),
        ("rx_packets", receive_frames),
        ("rx_drop", drops(false)),
        ("tx_bytes", transmit_bytes),
        ("tx_packets", transmit_frames),
        ("tx_drop", drops(true)),
    ];
    counters.iter().map(|(name, value)| format!("{network}.{} {name} {value}\n", port.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interfaces_of_type_vhostuser_have_sockets() {
        let text = "<domain><devices>\
            <interface type='bridge'><source bridge='br0'/></interface>\
            <interface type='vhostuser'><mac address='52:54:00:00:00:01'/><source type='unix' path='/run/a &amp; b.sock'/></interface>\
            <interface type='vhostuser'><model type='virtio'/></interface>\
            <disk type='vhostuser'><source type='unix' path='/run/disk.sock'/></disk></devices></domain>";
        assert_eq!(sockets(text), Ok(vec![PathBuf::from("/run/a & b.sock")]));
        assert!(sockets("error: no domain").is_err_and(|text| text.contains("no XML")));
    }
}
