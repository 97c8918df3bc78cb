//! A lease: an address, its client, and its end.

use std::net::IpAddr;

use memlane_dataplane::port::short_hash;
use memlane_virtq::frame::MacAddress;

/// Origin of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Offered by DHCP or DHCPv6.
    Offered,
    /// A client found it in use elsewhere.
    Declined,
    /// The address that a guest can form of the IPv6 prefix and its MAC address (SLAAC, RFC 4862).
    Expected,
    /// A guest has probed for it lately: another machine may still defend it (RFC 4862, section 5.4.3).
    Probed,
    /// Leased by DHCP or DHCPv6.
    Leased,
    /// A guest has claimed it: its duplicate address detection went unanswered (RFC 4862, section 5.4).
    Claimed,
}

impl LeaseKind {
    /// Whether a server gives it, in place of the guest.
    pub(crate) fn is_given(self) -> bool {
        matches!(self, Self::Offered | Self::Declined | Self::Leased)
    }
}

/// The client of a lease: two machines with one client identifier, as clones, are two clients, and so are two with one MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// MAC address of the client.
    pub mac: MacAddress,
    /// A hash of its client identifier or DHCP unique identifier; 0 without one.
    pub id: u64,
}

impl Holder {
    /// The client with this MAC address and this identifier.
    pub(crate) fn new(mac: MacAddress, id: &[u8]) -> Self {
        Self { mac, id: if id.is_empty() { 0 } else { short_hash(id.iter().copied()) } }
    }

    /// Bytes of which the address of a new lease is a hash.
    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> {
        self.mac.bytes().into_iter().chain((self.id != 0).then(|| self.id.to_be_bytes()).into_iter().flatten())
    }
}

impl From<MacAddress> for Holder {
    /// A machine that is known by its MAC address alone.
    fn from(mac: MacAddress) -> Self {
        Self { mac, id: 0 }
    }
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Client of the lease.
    pub holder: Holder,
    /// Origin of the lease.
    pub kind: LeaseKind,
    /// The second in which it was confirmed last.
    pub since: u64,
    /// The second in which it ends; of one that does not end, the largest.
    pub until: u64,
    /// Another machine behind the port that probed for the address, and the second.
    pub(crate) rival: Option<(MacAddress, u64)>,
}

impl Lease {
    /// Whether its guest may use it in second `now`.
    pub fn is_active(&self, now: u64) -> bool {
        self.kind >= LeaseKind::Expected && now < self.until
    }

    /// Whether it is in use in second `now`, as far as is known.
    pub(crate) fn is_in_use(&self, now: u64) -> bool {
        let is_link_local = matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local());
        self.kind >= LeaseKind::Leased && now < self.until && !is_link_local
    }

    /// Whether a DHCP server gave it, of this IP version, and it runs in second `now`.
    pub(crate) fn is_given(&self, is_v4: bool, now: u64) -> bool {
        self.kind.is_given() && self.address.is_ipv4() == is_v4 && now < self.until
    }
}
