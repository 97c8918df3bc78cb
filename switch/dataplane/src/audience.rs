//! The ports that get a flooded frame, where these are not all: the members of a [multicast](crate::multicast) group, or the servers that a
//! client asks.
//!
//! In a segment with a responder (configuration keys `subnet`, `subnet6`) the **requests** of clients to all servers go to the responder and
//! to other ports with `may-serve`, and to no guest: DHCP (RFC 2131), DHCPv6 (RFC 8415), and router solicitations (RFC 4861). Requests behind
//! a VLAN tag are flooded, because the responder does not answer there.

use crate::frame::{ETHERNET, MacAddress, TYPE_IPV4, TYPE_IPV6, UDP};
use crate::headers::{Fragment, ICMPV6, Ipv4, Ipv6, NdKind, Upper, number_at};
use crate::multicast::GroupMembers;
use crate::policy::rules::Service;
use crate::segment::{Responds, Segment};

/// All DHCPv6 servers and relay agents, ff02::1:2, and all routers, ff02::2.
const DHCPV6_SERVERS: [u8; 6] = [0x33, 0x33, 0, 1, 0, 2];
const ROUTERS: [u8; 6] = [0x33, 0x33, 0, 0, 0, 2];
/// Ports of servers.
const DHCP: u16 = 67;
const DHCPV6: u16 = 547;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Audience {
    /// The members of a multicast group.
    Members(GroupMembers),
    /// The ports that may give this service.
    Servers(Service),
}

impl Audience {
    /// The audience of the frame that begins with `start` in `segment`; `None` for all ports.
    #[inline]
    pub(crate) fn of(segment: &Segment, start: &[u8]) -> Option<Self> {
        if segment.has_responder()
            && let Some(service) = request(start, segment.responds())
        {
            return Some(Self::Servers(service));
        }
        GroupMembers::of(&segment.snooping, start).map(Self::Members)
    }
}

/// The service for which a client asks all servers by the frame that begins with `start`, of those that the responder gives.
fn request(start: &[u8], responds: Responds) -> Option<Service> {
    let destination = MacAddress::new(*start.first_chunk()?);
    if !destination.is_group() {
        return None;
    }
    let bytes = start.get(ETHERNET..)?;
    match number_at(start, ETHERNET - 2)? {
        TYPE_IPV4 if responds.v4 && destination == MacAddress::BROADCAST => {
            let packet = Ipv4::parse(bytes).filter(|packet| packet.protocol == UDP && packet.fragment == Fragment::Whole)?;
            (number_at(bytes, packet.length + 2)? == DHCP).then_some(Service::Dhcp)
        }
        TYPE_IPV6 if responds.v6 && [DHCPV6_SERVERS, ROUTERS].contains(&destination.bytes()) => {
            match Ipv6::parse(bytes)?.upper(bytes) {
                Upper::Header { protocol: UDP, at, fragment: Fragment::Whole } => {
                    (number_at(bytes, at + 2)? == DHCPV6).then_some(Service::Dhcp)
                }
                Upper::Header { protocol: ICMPV6, at, fragment: Fragment::Whole } => {
                    (NdKind::of(*bytes.get(at)?)? == NdKind::RouterSolicitation).then_some(Service::Ra)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Responds = Responds { v4: true, v6: true };

    fn ipv4(to: [u8; 6], protocol: u8, fragment: u8, port: u16) -> Vec<u8> {
        let head = [&to[..], &[2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 1, 44, 0, 0, fragment, 0, 64, protocol, 0, 0], &[0; 4], &[255; 4]]
            .concat();
        [&head[..], &[0, 68], &port.to_be_bytes(), &[0; 60]].concat()
    }

    fn ipv6(to: [u8; 6], next: u8, upper: &[u8]) -> Vec<u8> {
        let head = [&to[..], &[2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, next, 255], &[0xfe; 16], &[0xff; 16]].concat();
        [&head[..], upper, &[0; 40]].concat()
    }

    #[test]
    fn requests_of_clients_to_all_servers_are_told_from_other_frames() {
        let (all, servers, routers) = ([255; 6], DHCPV6_SERVERS, ROUTERS);
        let of = |frame: &[u8]| request(frame, BOTH);
        assert_eq!(of(&ipv4(all, UDP, 0, DHCP)), Some(Service::Dhcp));
        assert_eq!(of(&ipv4([2, 0, 0, 0, 0, 9], UDP, 0, DHCP)), None, "to one machine");
        assert_eq!(of(&ipv4(all, 6, 0, DHCP)), None, "TCP");
        assert_eq!(of(&ipv4(all, UDP, 0x20, DHCP)), None, "a fragment");
        assert_eq!(of(&ipv4(all, UDP, 0, 69)), None, "another service");
        let solicit = [&[2, 34][..], &DHCPV6.to_be_bytes()].concat();
        assert_eq!(of(&ipv6(servers, UDP, &solicit)), Some(Service::Dhcp));
        assert_eq!(of(&ipv6(routers, ICMPV6, &[133, 0])), Some(Service::Ra));
        // Behind a hop-by-hop option with a router alert.
        assert_eq!(of(&ipv6(routers, 0, &[ICMPV6, 0, 5, 2, 0, 0, 1, 0, 133, 0])), Some(Service::Ra));
        assert_eq!(of(&ipv6(routers, ICMPV6, &[135, 0])), None, "a neighbour solicitation");
        let frame = ipv4(all, UDP, 0, DHCP);
        assert_eq!(of(&[&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat()), None, "behind a VLAN tag");
        assert_eq!(request(&frame, Responds { v4: false, v6: true }), None);
        assert_eq!(request(&ipv6(routers, ICMPV6, &[133, 0]), Responds { v4: true, v6: false }), None);
        bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|(is_v6, bytes)| {
            let whole = if *is_v6 { ipv6(servers, 0, bytes) } else { [&frame[..20], bytes].concat() };
            let _ = (of(bytes), of(&whole));
        });
    }
}
