//! Elements of the key `dns` of a segment.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Port of DNS servers.
const DNS: u16 = 53;

/// A DNS server: those of this host, or one by its address, and its port if that is not 53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String", extend("format" = "resolver"))]
pub enum Resolver {
    /// The servers of this host.
    Host,
    /// The server at this address.
    At(SocketAddr),
}

impl Resolver {
    /// Whether this host can ask it: its address is one of a machine.
    pub fn is_possible(self) -> bool {
        let Self::At(address) = self else { return true };
        let is_of_link = matches!(address.ip(), IpAddr::V6(address) if address.is_unicast_link_local());
        let is_broadcast = matches!(address.ip(), IpAddr::V4(address) if address.is_broadcast());
        let ip = address.ip();
        address.port() > 0 && !ip.is_unspecified() && !ip.is_multicast() && !is_of_link && !is_broadcast
    }

    /// Address of the server, if it is at the usual port.
    pub fn usual(self) -> Option<IpAddr> {
        if let Self::At(address) = self { (address.port() == DNS).then_some(address.ip()) } else { None }
    }
}

impl FromStr for Resolver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = |address| Self::At(SocketAddr::new(address, DNS));
        let address = || text.parse().map(at).ok().or_else(|| text.parse().map(Self::At).ok());
        let resolver = if text == "host" { Some(Self::Host) } else { address() };
        resolver.ok_or_else(|| format!("\"{text}\" is no DNS server, as \"host\", \"192.0.2.53\" or \"[fd00::53]:5353\""))
    }
}

impl TryFrom<String> for Resolver {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Resolver> for String {
    fn from(resolver: Resolver) -> Self {
        resolver.to_string()
    }
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::At(address) if address.port() == DNS => address.ip().fmt(f),
            Self::At(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_they_are_shown() {
        for (text, shown) in [
            ("host", Some("host")),
            ("192.0.2.53", Some("192.0.2.53")),
            ("192.0.2.53:53", Some("192.0.2.53")),
            ("192.0.2.53:5353", Some("192.0.2.53:5353")),
            ("fd00::53", Some("fd00::53")),
            ("[fd00::53]:5353", Some("[fd00::53]:5353")),
            ("hosts", None),
            ("192.0.2", None),
            ("192.0.2.53:99999", None),
            ("dns.example.org", None),
        ] {
            assert_eq!(text.parse::<Resolver>().ok().map(|resolver| resolver.to_string()).as_deref(), shown, "{text}");
        }
        assert_eq!("192.0.2.53".parse::<Resolver>().unwrap().usual(), "192.0.2.53".parse().ok());
        assert_eq!("192.0.2.53:1".parse::<Resolver>().unwrap().usual(), None);
    }
}
