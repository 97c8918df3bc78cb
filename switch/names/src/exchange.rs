//! The parts of an exchange: the client, the service that answers, the reason for no answer.

use memlane_virtq::frame::MacAddress;

/// A service of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The responder's own MAC address, by ARP or neighbour discovery.
    Neighbour,
    /// Echo of ICMP and ICMPv6.
    Echo,
    /// DHCP.
    Dhcp,
    /// DHCPv6.
    Dhcpv6,
    /// Router advertisements.
    Router,
    /// DNS.
    Dns,
    /// DNS of names outside.
    DnsOutside,
}

impl Service {
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Neighbour, "neighbour"),
        (Self::Echo, "echo"),
        (Self::Dhcp, "dhcp"),
        (Self::Dhcpv6, "dhcpv6"),
        (Self::Router, "router-advertisement"),
        (Self::Dns, "dns"),
        (Self::DnsOutside, "dns-outside"),
    ];
}

/// Why a frame gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The message is for others, or needs no answer.
    NotAsked,
    /// The message does not follow its standard.
    Malformed,
    /// The message asks for an address or a name that belongs to another port.
    NotOwner,
    /// No address is free.
    NoAddress,
    /// The port sends too many.
    Rate,
    /// The request waits for the answer of a resolver.
    Forwarded,
}

impl Refused {
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::NotAsked, "not-asked"),
        (Self::Malformed, "malformed"),
        (Self::NotOwner, "not-owner"),
        (Self::NoAddress, "no-address"),
        (Self::Rate, "rate"),
        (Self::Forwarded, "forwarded"),
    ];
}

/// An answer, and the service that gives it.
pub(crate) type Answer = Result<(Service, Vec<u8>), Refused>;

/// The sender of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'p> {
    /// Port of the client.
    pub port: &'p str,
    /// MAC address.
    pub mac: MacAddress,
    /// The second in which it came.
    pub now: u64,
}
