//! Settings of a responder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memlane_dataplane::headers::link_local;
use memlane_dataplane::twin::Twin;
use memlane_virtq::frame::MacAddress;

/// Settings of a segment's responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Segment of the responder.
    pub segment: String,
    /// The responder's own MAC address.
    pub mac: MacAddress,
    /// Network address and prefix length of the IPv4 subnet, of 8 to 30 bits; its first address is the responder's.
    pub subnet: Option<(Ipv4Addr, u8)>,
    /// Network address of the IPv6 subnet, of 64 bits; its first address is the responder's.
    pub subnet6: Option<Ipv6Addr>,
    /// Domain of the names, as "lan".
    pub domain: String,
    /// IPv4 address of the router that guests are told of, if any.
    pub router: Option<Ipv4Addr>,
    /// DNS servers for names outside, of which guests are told behind the responder itself.
    pub dns: Vec<IpAddr>,
    /// DNS servers that the forwarder asks and guests may ask, too: they are told of these last, while no rule limits names. Where this host cannot
    /// reach one, guests perhaps can.
    pub asked: Vec<IpAddr>,
    /// Queries for names outside are for a forwarder.
    pub forwards: bool,
    /// Names that a port's rules refuse are told to be refused, not to be missing.
    pub tells_refusal: bool,
}

impl Settings {
    /// The responder's IPv4 address.
    pub fn own4(&self) -> Option<Ipv4Addr> {
        self.subnet.map(|(network, _)| Ipv4Addr::from(u32::from(network) + 1))
    }

    /// The responder's IPv6 address.
    pub fn own6(&self) -> Option<Ipv6Addr> {
        self.subnet6.map(|network| Ipv6Addr::from(u128::from(network) + 1))
    }

    /// The mask of the IPv4 subnet.
    pub fn mask(&self) -> Ipv4Addr {
        let length = self.subnet.map_or(32, |(_, length)| length);
        Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0))
    }

    /// The broadcast address of the IPv4 subnet.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        self.subnet.map(|(network, _)| Ipv4Addr::from(u32::from(network) | !u32::from(self.mask())))
    }

    /// Whether `address` is in one of the subnets.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                self.subnet.is_some_and(|(network, _)| u32::from(address) & u32::from(self.mask()) == u32::from(network))
            }
            IpAddr::V6(address) => self.subnet6.is_some_and(|network| u128::from(address) >> 64 == u128::from(network) >> 64),
        }
    }

    fn outside(&self) -> impl Iterator<Item = &IpAddr> {
        self.dns.iter().chain(&self.asked)
    }

    /// IPv4 addresses of the DNS servers that guests are told of, the responder first.
    pub(crate) fn dns4(&self) -> Vec<Ipv4Addr> {
        let outside = self.outside().filter_map(|address| if let IpAddr::V4(address) = address { Some(*address) } else { None });
        self.own4().into_iter().chain(outside).collect()
    }

    /// The same of IPv6.
    pub(crate) fn dns6(&self) -> Vec<Ipv6Addr> {
        let outside = self.outside().filter_map(|address| if let IpAddr::V6(address) = address { Some(*address) } else { None });
        self.own6().into_iter().chain(outside).collect()
    }

    /// Whether `address` may be leased or static: one of a subnet that is neither the responder's nor reserved.
    pub(crate) fn is_host(&self, address: IpAddr) -> bool {
        let is_reserved = match address {
            IpAddr::V4(address) => {
                Some(address) == self.own4()
                    || Some(address) == self.broadcast()
                    || self.subnet.is_some_and(|(network, _)| network == address)
            }
            // The first address of a subnet is the anycast address of its routers (RFC 4291, section 2.6.1).
            IpAddr::V6(address) => Some(address) == self.own6() || Some(address) == self.subnet6,
        };
        self.contains(address) && !is_reserved
    }

    /// Whether a port may have `address`: one of a host, or a link-local one that is not the responder's.
    pub(crate) fn may_have(&self, address: IpAddr) -> bool {
        let is_link_local = matches!(address, IpAddr::V6(address)
            if self.subnet6.is_some() && address.is_unicast_link_local() && address != link_local(self.mac));
        is_link_local || self.is_host(address)
    }

    /// Whether `address` is one of those that are leased dynamically.
    pub(crate) fn is_leasable(&self, address: IpAddr) -> bool {
        let number = match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        };
        self.pool(address.is_ipv4()).is_some_and(|(first, count)| number.checked_sub(first).is_some_and(|place| place < count))
    }

    /// First address and number of the addresses that are leased dynamically: of IPv4 all behind the responder's, of IPv6 65534.
    pub(crate) fn pool(&self, is_v4: bool) -> Option<(u128, u128)> {
        if is_v4 {
            let (network, length) = self.subnet?;
            // Without those of the network, the responder and broadcasts.
            Some((u128::from(u32::from(network)) + 2, (1_u128 << (32 - length)).saturating_sub(3)))
        } else {
            self.subnet6.map(|network| (u128::from(network) + 2, (1 << 16) - 2))
        }
    }
}

/// A port of the segment, as far as the responder knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAddresses {
    /// Static addresses (configuration key `addresses`).
    pub fixed: Vec<IpAddr>,
    /// MTU that its guest is offered.
    pub mtu: Option<u16>,
    /// Most leases (configuration key `leases`); by default half of the free addresses.
    pub leases: Option<u32>,
    /// Only the responder receives its probes: other ports are asked by the responder (`anti-spoof = "all"`).
    pub is_guarded: bool,
    /// The addresses that its guest has inside, if it is a twin: messages name these.
    pub twin: Option<Twin>,
}
