//! Settings of a segment's responder, which gives its guests addresses and names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memlane_model::addresses::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resolver::Resolver;
use super::twin;
use crate::policy::{AntiSpoof, PortLimits};

/// Domain of names by default.
pub const DOMAIN: &str = "lan";
/// Least and largest length of an IPv4 subnet: of the largest networks (RFC 1918), and one with two addresses for guests.
const LENGTHS: std::ops::RangeInclusive<u8> = 8..=29;
/// Length of an IPv6 subnet in which guests make their addresses (RFC 4862, RFC 4291 section 2.5.1).
const LENGTH6: u8 = 64;

/// A checked responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamesConfig {
    /// Name of its segment.
    pub segment: String,
    /// Network address of the IPv4 subnet, and its length.
    pub subnet: Option<(Ipv4Addr, u8)>,
    /// Network address of the IPv6 subnet.
    pub subnet6: Option<Ipv6Addr>,
    /// Domain of names.
    pub domain: String,
    /// Router of IPv4 that guests are told.
    pub router: Option<Ipv4Addr>,
    /// DNS servers for names outside that guests are told of, if configured.
    pub dns: Option<Vec<IpAddr>>,
    /// Resolvers to which names outside are forwarded; none if they are not.
    pub resolvers: Vec<Resolver>,
    /// How guests are told that a name is refused.
    pub refused_names: RefusedNames,
}

/// Value of the key `refused-names`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RefusedNames {
    /// As names that do not exist (NXDOMAIN).
    #[default]
    Missing,
    /// As names that the server refuses (REFUSED): clients then ask their next server.
    Refused,
}

impl NamesConfig {
    /// Why no guest can have `address`, if so.
    fn refused(&self, address: IpAddr) -> Option<&'static str> {
        let (place, mask, is_v4) = match address {
            IpAddr::V4(address) => {
                let (network, length) = self.subnet?;
                (u128::from(u32::from(address).wrapping_sub(u32::from(network))), u128::from(u32::MAX >> length), true)
            }
            IpAddr::V6(address) if address.is_unicast_link_local() => return None,
            IpAddr::V6(address) => (u128::from(address).wrapping_sub(u128::from(self.subnet6?)), u128::from(u64::MAX), false),
        };
        match place {
            _ if place > mask => {
                Some("which is outside the subnet: use an address of it, or allowed for machines behind the guest")
            }
            0 if is_v4 => Some("the address of the subnet itself: use another"),
            // RFC 4291, section 2.6.1.
            0 => Some("the anycast address of the subnet's routers: use another"),
            1 => Some("the first address of the subnet, which is memlane's own: use another"),
            _ if is_v4 && place == mask => Some("the broadcast address of the subnet: use another"),
            _ => None,
        }
    }
}

/// Mistakes in the addresses of a port with these `limits`, on a segment with the responder `names` or without one, each with its key.
pub fn mistakes(limits: &PortLimits, names: Option<&NamesConfig>) -> Vec<(&'static str, String)> {
    let refused = |address: &IpAddr| Some(format!("addresses contains \"{address}\", {}", names?.refused(*address)?));
    let mut mistakes: Vec<_> = limits.addresses.iter().filter_map(refused).map(|text| ("addresses", text)).collect();
    let has_address = !limits.addresses.is_empty() || limits.allowed.iter().any(|pair| pair.ip.is_some());
    if limits.anti_spoof == AntiSpoof::All && !has_address && names.is_none() {
        let text = "anti-spoof = \"all\" needs the guest's IP addresses, and the port has none: add them, as addresses = [\"10.0.0.5\", \"fd00::5\"], \
                    or have memlane lease them, by subnet of the segment";
        mistakes.push(("anti-spoof", text.into()));
    }
    mistakes.extend(twin::mistakes(limits));
    mistakes
}

/// The IPv4 subnet `prefix`.
///
/// # Errors
/// The prefix is no subnet, as a sentence says.
pub fn subnet4(prefix: Prefix) -> Result<(Ipv4Addr, u8), String> {
    let (IpAddr::V4(address), length) = (prefix.address(), prefix.length()) else {
        return Err(format!("subnet is \"{prefix}\", which is not IPv4: use subnet6 for IPv6"));
    };
    if !LENGTHS.contains(&length) {
        return Err(format!(
            "subnet is \"{prefix}\"; its length must be {} to {}, as \"10.0.0.0/24\"",
            LENGTHS.start(),
            LENGTHS.end()
        ));
    }
    let network = Ipv4Addr::from(u32::from(address) & (u32::MAX << (32 - length)));
    match network == address {
        true => Ok((network, length)),
        false => Err(format!("subnet is \"{prefix}\", the address of a host in it: write \"{network}/{length}\"")),
    }
}

/// The IPv6 subnet `prefix`.
///
/// # Errors
/// The prefix is no subnet, as a sentence says.
pub fn subnet6(prefix: Prefix) -> Result<Ipv6Addr, String> {
    let IpAddr::V6(address) = prefix.address() else {
        return Err(format!("subnet6 is \"{prefix}\", which is not IPv6: use subnet for IPv4"));
    };
    if prefix.length() != LENGTH6 {
        return Err(format!("subnet6 is \"{prefix}\"; its length must be {LENGTH6}, as \"fd00::/64\""));
    }
    let network = Ipv6Addr::from(u128::from(address) & (u128::MAX << 64));
    match network == address {
        true => Ok(network),
        false => Err(format!("subnet6 is \"{prefix}\", the address of a host in it: write \"{network}/{LENGTH6}\"")),
    }
}

/// Whether `domain` is a domain name: labels of letters, digits and hyphens (RFC 1123, section 2.1).
pub fn is_domain(domain: &str) -> bool {
    let is_label = |label: &str| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len()) && label.chars().all(is_good) && !label.starts_with('-') && !label.ends_with('-')
    };
    // A port's name stands before it.
    domain.len() <= 120 && domain.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_are_networks() {
        let four = |text: &str| subnet4(text.parse().unwrap());
        assert_eq!(four("10.0.0.0/24"), Ok(([10, 0, 0, 0].into(), 24)));
        assert!(four("10.0.0.1/24").unwrap_err().ends_with("write \"10.0.0.0/24\""));
        assert!(
            four("10.0.0.0/30").is_err() && four("10.0.0.0").is_err() && four("0.0.0.0/0").is_err() && four("fd00::/64").is_err()
        );
        let six = |text: &str| subnet6(text.parse().unwrap());
        assert_eq!(six("fd00::/64"), Ok("fd00::".parse().unwrap()));
        assert!(six("fd00::1/64").unwrap_err().ends_with("write \"fd00::/64\""));
        assert!(six("fd00::/48").is_err() && six("10.0.0.0/24").is_err());
    }

    #[test]
    fn addresses_that_no_guest_can_have_are_mistakes() {
        let names = NamesConfig {
            segment: "lan".into(),
            subnet: Some(([10, 0, 0, 0].into(), 24)),
            subnet6: "fd00::".parse().ok(),
            domain: "lan".into(),
            router: None,
            dns: None,
            resolvers: Vec::new(),
            refused_names: RefusedNames::Missing,
        };
        for (address, told) in [
            ("10.0.0.0", Some("subnet itself")),
            ("10.0.0.1", Some("memlane's own")),
            ("10.0.0.2", None),
            ("10.0.0.254", None),
            ("10.0.0.255", Some("broadcast")),
            ("10.0.1.0", Some("outside")),
            ("9.255.255.255", Some("outside")),
            ("fd00::", Some("routers")),
            ("fd00::1", Some("memlane's own")),
            ("fd00::ffff:ffff:ffff:ffff", None),
            ("fd00:0:0:1::5", Some("outside")),
            ("fcff::5", Some("outside")),
            ("fe80::5", None),
        ] {
            let limits = PortLimits { addresses: vec![address.parse().unwrap()], ..PortLimits::default() };
            let found = mistakes(&limits, Some(&names));
            assert_eq!(found.len(), usize::from(told.is_some()), "{address}");
            assert!(found.iter().all(|(key, text)| *key == "addresses" && text.contains(told.unwrap())), "{found:?}");
            assert!(mistakes(&limits, None).is_empty());
            let (four, six) = (NamesConfig { subnet6: None, ..names.clone() }, NamesConfig { subnet: None, ..names.clone() });
            let other = if address.contains('.') { &six } else { &four };
            assert!(mistakes(&limits, Some(other)).is_empty(), "{address}");
        }
        let guarded = PortLimits { anti_spoof: AntiSpoof::All, ..PortLimits::default() };
        assert!(mistakes(&guarded, Some(&names)).is_empty() && mistakes(&guarded, None)[0].0 == "anti-spoof");
    }

    #[test]
    fn domains_are_names_of_hosts() {
        assert!(is_domain("lan") && is_domain("a.example") && is_domain("x-1"));
        assert!(!is_domain("") && !is_domain("a..b") && !is_domain("-a") && !is_domain("a_b") && !is_domain(&"a".repeat(64)));
    }
}
