//! `memlane evpn`: FRR's configuration for a host or a route reflector, so that hosts exchange their MAC addresses by BGP EVPN.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use clap::Args;

use super::{Failure, output, usage};
use crate::quantity::counted;

/// Most BGP peers of one host: beyond that, two route reflectors are less to configure.
const MOST_PEERS: usize = 256;

/// Arguments of `memlane evpn`.
#[derive(Debug, Args)]
pub(super) struct Evpn {
    /// Number of the autonomous system of all hosts; 64512 to 65534 and 4200000000 to 4294967294 are for private use.
    #[arg(long = "as", value_name = "NUMBER", value_parser = usage::number)]
    system: u32,
    /// Underlay addresses of the BGP peers: all other hosts, or the route reflectors; on a route reflector, its clients.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', required = true, value_parser = usage::address)]
    peers: Vec<Ipv4Addr>,
    /// Underlay address of this host, the `local` of its VXLAN devices; by default FRR chooses one.
    #[arg(long, value_name = "ADDRESS", value_parser = usage::address)]
    local: Option<Ipv4Addr>,
    /// Configure a route reflector: it passes each host the routes of the others, and has no guests itself.
    #[arg(long)]
    reflector: bool,
}

impl Evpn {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if let Some(mistake) = self.mistake() {
            return Err(Failure::Configuration(mistake));
        }
        output::print(&self.text())
    }

    fn mistake(&self) -> Option<String> {
        let mut seen = HashSet::new();
        let is_host = |address: &Ipv4Addr| !(address.is_unspecified() || address.is_multicast() || address.is_broadcast());
        if let Some(address) = self.peers.iter().chain(&self.local).find(|address| !is_host(address)) {
            return Some(format!("{address} is not a unicast address"));
        }
        if let Some(twice) = self.peers.iter().find(|peer| !seen.insert(**peer)) {
            return Some(format!("--peers names {twice} twice"));
        }
        if let Some(own) = self.local.filter(|local| self.peers.contains(local)) {
            return Some(format!("--peers names {own}, which is this host's own address (--local): leave it out"));
        }
        let count = self.peers.len();
        (count > MOST_PEERS).then(|| {
            format!("{} are more than the limit of {MOST_PEERS}: use two route reflectors, see --reflector", counted(count, "peer"))
        })
    }

    /// Text of `/etc/frr/frr.conf` for FRR 8 and newer.
    fn text(&self) -> String {
        let who = if self.reflector { "a route reflector" } else { "a host" };
        let mut lines = vec![
            format!("! /etc/frr/frr.conf of {who}, by `memlane evpn`. /etc/frr/daemons needs bgpd=yes."),
            // Datacenter defaults: a lost peer is detected after 9 s, and updates are sent at once.
            "frr defaults datacenter".into(),
            "!".into(),
            format!("router bgp {}", self.system),
        ];
        lines.extend(self.local.map(|local| format!(" bgp router-id {local}")));
        lines.push(" no bgp default ipv4-unicast".into());
        lines.push(" neighbor hosts peer-group".into());
        lines.push(" neighbor hosts remote-as internal".into());
        lines.push(" neighbor hosts timers connect 2".into());
        lines.extend(self.local.map(|local| format!(" neighbor hosts update-source {local}")));
        lines.extend(self.peers.iter().map(|peer| format!(" neighbor {peer} peer-group hosts")));
        lines.push(" !".into());
        lines.push(" address-family l2vpn evpn".into());
        lines.push("  neighbor hosts activate".into());
        lines.push(if self.reflector { "  neighbor hosts route-reflector-client" } else { "  advertise-all-vni" }.into());
        lines.push(" exit-address-family".into());
        lines.push("exit".into());
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evpn(peers: &[[u8; 4]], local: Option<[u8; 4]>) -> Evpn {
        let peers = peers.iter().copied().map(Ipv4Addr::from).collect();
        Evpn { system: 65000, peers, local: local.map(Ipv4Addr::from), reflector: false }
    }

    #[test]
    fn a_host_tells_its_peers_of_all_its_segments() {
        let wanted = "\
! /etc/frr/frr.conf of a host, by `memlane evpn`. /etc/frr/daemons needs bgpd=yes.
frr defaults datacenter
!
router bgp 65000
 bgp router-id 10.0.0.1
 no bgp default ipv4-unicast
 neighbor hosts peer-group
 neighbor hosts remote-as internal
 neighbor hosts timers connect 2
 neighbor hosts update-source 10.0.0.1
 neighbor 10.0.0.2 peer-group hosts
 neighbor 10.0.0.3 peer-group hosts
 !
 address-family l2vpn evpn
  neighbor hosts activate
  advertise-all-vni
 exit-address-family
exit
";
        assert_eq!(evpn(&[[10, 0, 0, 2], [10, 0, 0, 3]], Some([10, 0, 0, 1])).text(), wanted);
    }

    #[test]
    fn a_reflector_has_no_segments_and_reflects() {
        let text = Evpn { reflector: true, ..evpn(&[[10, 0, 0, 2]], None) }.text();
        assert!(text.contains("of a route reflector") && text.contains("  neighbor hosts route-reflector-client\n"), "{text}");
        assert!(!text.contains("advertise-all-vni") && !text.contains("router-id") && !text.contains("update-source"), "{text}");
    }

    #[test]
    fn peers_are_other_hosts_each_named_once() {
        let mistake = |peers: &[[u8; 4]], local| evpn(peers, local).mistake();
        assert_eq!(mistake(&[[10, 0, 0, 2], [10, 0, 0, 3]], Some([10, 0, 0, 1])), None);
        assert!(mistake(&[[10, 0, 0, 2], [10, 0, 0, 2]], None).unwrap().contains("twice"));
        assert!(mistake(&[[10, 0, 0, 2]], Some([10, 0, 0, 2])).unwrap().contains("own address"));
        assert!(mistake(&[[0, 0, 0, 0]], None).unwrap().contains("is not a unicast address"));
        assert!(mistake(&vec![[10, 0, 0, 2]; MOST_PEERS + 1], None).is_some());
        let many: Vec<_> = (0..=255).flat_map(|a| [[10, 0, 1, a], [10, 0, 2, a]]).collect();
        assert!(mistake(&many, None).unwrap().contains("reflectors"));
    }
}
