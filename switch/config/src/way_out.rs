//! The way out of a segment with a subnet: its passt port is the router of all guests, whose addresses it translates.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use memlane_backends::stream::Passt;
use memlane_backends::stream::nat::{Forwarding, INSIDE, INSIDE_LENGTH, NatSettings, PASST};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::NamesConfig;

/// Protocol of a port forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardProtocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the host that passt forwards to a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(extend("examples" = [{ "port": 8080, "to": "web:80" }]))]
pub struct Forward {
    /// Port of the host, at all of its addresses.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The guest: the name of its port, which has a static IPv4 address by `addresses`, and its TCP or UDP port, as "web:80".
    pub to: String,
    /// "tcp" or "udp".
    #[serde(default, skip_serializing_if = "is_usual")]
    pub protocol: ForwardProtocol,
}

fn is_usual(protocol: &ForwardProtocol) -> bool {
    *protocol == ForwardProtocol::Tcp
}

impl Forward {
    /// The forwarding, if its guest has the addresses that `addresses_of` tells by the name of its port.
    pub(super) fn forwarding<'a>(&self, addresses_of: impl Fn(&str) -> Option<&'a [IpAddr]>) -> Option<Forwarding> {
        let (name, to) = self.target()?;
        let address = static_address(addresses_of(name)?)?;
        let is_udp = self.protocol == ForwardProtocol::Udp;
        Some(Forwarding { is_udp, port: self.port, to: SocketAddrV4::new(address, to) })
    }

    /// The name and the port of `to`.
    fn target(&self) -> Option<(&str, u16)> {
        let (name, port) = self.to.rsplit_once(':')?;
        Some((name, port.parse().ok().filter(|port| *port != 0)?))
    }
}

/// The router's address on the segment of `names`: of `addresses` if there is one, else the key `router`, else the last of a host.
pub(super) fn router(names: &NamesConfig, addresses: &[IpAddr]) -> Option<Ipv4Addr> {
    let (network, length) = names.subnet?;
    let last = Ipv4Addr::from((u32::from(network) | u32::MAX >> length) - 1);
    static_address(addresses).or(names.router).or(Some(last))
}

fn static_address(addresses: &[IpAddr]) -> Option<Ipv4Addr> {
    addresses.iter().find_map(|address| if let IpAddr::V4(address) = address { Some(*address) } else { None })
}

/// Arguments by which passt serves the translation, and no guest beside it.
fn arguments(nat: &NatSettings) -> Vec<String> {
    let mut arguments: Vec<String> = ["--ipv4-only", "--no-dhcp", "--no-map-gw"].map(String::from).into();
    for (key, value) in
        [("--address", INSIDE.to_string()), ("--netmask", INSIDE_LENGTH.to_string()), ("--gateway", PASST.to_string())]
    {
        arguments.extend([key.into(), value]);
    }
    for (key, is_udp) in [("--tcp-ports", false), ("--udp-ports", true)] {
        let ports: Vec<String> =
            nat.forwardings.iter().filter(|one| one.is_udp == is_udp).map(|one| one.port.to_string()).collect();
        if !ports.is_empty() {
            arguments.extend([key.into(), ports.join(",")]);
        }
    }
    arguments
}

/// passt with these arguments, for all guests of a segment by `nat`, or else for one.
pub fn passt(own: &[String], mtu: Option<u16>, nat: Option<NatSettings>) -> Passt {
    let first = nat.as_ref().map(arguments).unwrap_or_default();
    let passt = Passt::new(first.iter().chain(own).map(Into::into).collect(), mtu);
    match nat {
        Some(nat) => passt.for_many(nat),
        None => passt,
    }
}

/// Mistakes in port forwardings, given its segment's responder, and the static addresses of ports by their segments and names.
pub(super) fn mistakes<'a>(
    forwards: &[Forward],
    names: Option<&NamesConfig>,
    addresses_of: impl Fn(&str) -> Option<&'a [IpAddr]>,
) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut seen = Vec::new();
    if !forwards.is_empty() && names.is_none_or(|names| names.subnet.is_none()) {
        mistakes.push(
            "forward needs addresses of guests: add a subnet to the segment, as [[segment]] name = \"lan\" subnet = \"10.0.0.0/24\"".into(),
        );
        return mistakes;
    }
    for forward in forwards {
        let key = (forward.port, forward.protocol);
        if seen.contains(&key) {
            mistakes.push(format!("forward has port {} twice: remove one", forward.port));
        }
        seen.push(key);
        let Some((name, _)) = forward.target() else {
            mistakes.push(format!("forward leads to {:?}; it must be the name of a port and a number, as \"web:80\"", forward.to));
            continue;
        };
        match addresses_of(name).map(static_address) {
            None => mistakes.push(format!("forward leads to port '{name}', which is not on the segment: attach it by the file")),
            Some(None) => {
                mistakes.push(format!(
                    "forward leads to port '{name}', which has no static address: add one, as addresses = [\"10.0.0.5\"]"
                ));
            }
            Some(Some(_)) => {}
        }
    }
    mistakes
}
