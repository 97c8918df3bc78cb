//! Addresses that a port may use, and services that it may offer, as configured.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use memlane_virtq::frame::MacAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An IP address, or all addresses with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String", extend("format" = "prefix"))]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Address of the prefix; bits behind the prefix may be set.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Whether it contains `address`.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let bits = u32::from(own) ^ u32::from(other);
                bits.checked_shr(32 - u32::from(self.length)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let bits = u128::from(own) ^ u128::from(other);
                bits.checked_shr(128 - u32::from(self.length)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Whether it contains all addresses of `other`.
    pub fn covers(self, other: Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    fn full(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self { address, length: Self::full(address) }
    }
}

impl FromStr for Prefix {
    type Err = String;

    /// Reads "10.0.0.5", "10.1.0.0/16", "fd00::/64".
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not an IP address as \"10.0.0.5\", or a prefix as \"10.1.0.0/16\"");
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let is_plain = |length: &str| length.bytes().all(|byte| byte.is_ascii_digit());
        let length = match length {
            Some(length) => length.parse().ok().filter(|_| is_plain(length)).ok_or_else(wrong)?,
            None => Self::full(address),
        };
        (length <= Self::full(address)).then_some(Self { address, length }).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == Self::full(self.address) {
            return self.address.fmt(f);
        }
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// A pair of addresses that a port may use beside its own: a VRRP router's, or the prefix of machines behind a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(extend("examples" = [{ "mac": "00:00:5e:00:01:07", "ip": "10.0.0.100" }]))]
pub struct AllowedPair {
    /// MAC address; by default each one of the port.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "mac_text")]
    #[schemars(with = "Option<String>", extend("format" = "mac"))]
    pub mac: Option<MacAddress>,
    /// IP address or prefix; by default the port's `addresses`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ip: Option<Prefix>,
}

/// The addresses of a guest that has others inside than its port has outside: a twin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(extend("examples" = [{ "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.5"] }]))]
pub struct Inside {
    /// MAC address of the guest; by default the port's.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "mac_text")]
    #[schemars(with = "Option<String>", extend("format" = "mac"))]
    pub mac: Option<MacAddress>,
    /// IP addresses of the guest: of each IP version as many as `addresses` of the port has, and each stands for the one in the same place.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addresses: Vec<IpAddr>,
}

mod mac_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use memlane_virtq::frame::MacAddress;

    pub(super) fn serialize<S: Serializer>(mac: &Option<MacAddress>, serializer: S) -> Result<S::Ok, S::Error> {
        match mac {
            Some(mac) => serializer.collect_str(mac),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MacAddress>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A service of a segment that a guest must not offer without permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// DHCP and DHCPv6.
    Dhcp,
    /// Router advertisements and redirects of IPv6.
    Ra,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_their_addresses() {
        for (prefix, inside, outside) in [
            ("10.0.0.5", "10.0.0.5", "10.0.0.4"),
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("fd00::/64", "fd00::ffff:0:0:1", "fd00:0:0:1::"),
            ("::/0", "fd00::1", "0.0.0.0"),
            ("fd00::5", "fd00::5", "fd00::6"),
        ] {
            let read: Prefix = prefix.parse().unwrap();
            assert_eq!(read.to_string(), prefix);
            assert!(read.contains(inside.parse().unwrap()) && !read.contains(outside.parse().unwrap()), "{prefix}");
        }
        for wrong in ["", "10.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "a"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
