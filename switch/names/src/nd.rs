//! Neighbour discovery (RFC 4861): router advertisements with the prefix and the DNS server, the responder's own MAC address, and
//! addresses that guests claim by duplicate address detection.
//!
//! Advertisements are sent on solicitation only, with unlimited lifetimes (RFC 4861, section 4.6.2), so that no timer is needed. Their
//! router lifetime is 0: the responder forwards nothing.

use std::net::{IpAddr, Ipv6Addr};

use memlane_dataplane::headers::{ICMPV6, Nd, NdKind, SOURCE_LINK, TARGET_LINK, link_local};
use memlane_virtq::frame::MacAddress;

use crate::dns;
use crate::exchange::{Answer, Client, Refused, Service};
use crate::leases::Leases;
use crate::settings::Settings;
use crate::wire::{self, Datagram, ND_HOPS, Way};

/// All nodes of the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Other addresses and other configuration come by DHCPv6 (RFC 4861, section 4.2).
const MANAGED_AND_OTHER: u8 = 0xc0;
/// The prefix is on the link, and makes addresses (RFC 4861, section 4.6.2).
const ON_LINK_AND_AUTONOMOUS: u8 = 0xc0;
/// Flags of a neighbour advertisement: solicited, override (RFC 4861, section 4.4).
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// The answer to a solicitation.
pub(crate) fn answer(settings: &Settings, leases: &mut Leases, client: Client<'_>, packet: &Datagram<'_>) -> Answer {
    let bytes = packet.payload;
    // RFC 4861, section 6.1.1 and 7.1.1.
    if packet.hops != ND_HOPS || bytes.len() < 8 || bytes[1] != 0 {
        return Err(Refused::Malformed);
    }
    let message = NdKind::of(bytes[0]).and_then(|kind| Nd::parse(kind, bytes)).ok_or(Refused::Malformed)?;
    let links: Result<Vec<_>, _> = message.links().take(4).collect();
    let links = links.map_err(|_| Refused::Malformed)?;
    let has_link = links.iter().any(|(kind, _)| *kind == SOURCE_LINK);
    if packet.source.is_unspecified() && has_link {
        return Err(Refused::Malformed);
    }
    match message.kind {
        NdKind::RouterSolicitation => advertise(settings, leases, client, packet),
        NdKind::NeighbourSolicitation => neighbour(settings, leases, client, packet, message.target),
        NdKind::NeighbourAdvertisement => {
            let lost =
                leases.defend(settings, client.port, message.target.into(), client.mac, client.now).ok_or(Refused::NotAsked)?;
            // The probe of a guarded port did not reach the owner: the responder tells the prober.
            let is_told = leases.is_guarded(&lost.port);
            let told = || Ok((Service::Neighbour, defence(settings, message.target, client.mac, lost.mac)));
            if is_told { told() } else { Err(Refused::NotAsked) }
        }
        _ => Err(Refused::NotAsked),
    }
}

/// The address that a guest makes of the prefix and its MAC address (RFC 4291, appendix A).
fn expected(prefix: Ipv6Addr, mac: MacAddress) -> Ipv6Addr {
    let low = u128::from(link_local(mac)) & u128::from(u64::MAX);
    Ipv6Addr::from(u128::from(prefix) | low)
}

fn advertise(settings: &Settings, leases: &mut Leases, client: Client<'_>, packet: &Datagram<'_>) -> Answer {
    let prefix = settings.subnet6.ok_or(Refused::NotAsked)?;
    let its = expected(prefix, client.mac);
    leases.expect(settings, client.port, its.into(), client.mac, client.now);
    let mut message = vec![134, 0, 0, 0, 64, MANAGED_AND_OTHER, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    put_link(&mut message, SOURCE_LINK, settings.mac);
    if let Some(mtu) = leases.mtu(client.port).filter(|mtu| *mtu >= 1280) {
        message.extend([5, 1, 0, 0]);
        message.extend(u32::from(mtu).to_be_bytes());
    }
    message.extend([3, 4, 64, ON_LINK_AND_AUTONOMOUS]);
    message.extend([0xff; 8]);
    message.extend([0; 4]);
    message.extend(prefix.octets());
    // RFC 8106, section 5.1 and 5.2.
    let servers = settings.dns6();
    message.extend([25, 1 + 2 * servers.len() as u8, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    message.extend(servers.iter().flat_map(Ipv6Addr::octets));
    if let Some(mut domain) = dns::encoded(&settings.domain) {
        domain.resize(domain.len().next_multiple_of(8), 0);
        message.extend([31, (1 + domain.len() / 8) as u8, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        message.extend(domain);
    }
    let to = if packet.source.is_unspecified() { IpAddr::V6(ALL_NODES) } else { packet.source };
    let way = Way { link: (settings.mac, client.mac), ip: (link_local(settings.mac).into(), to) };
    Ok((Service::Router, wire::icmp_frame(way, ICMPV6, ND_HOPS, &message)))
}

fn neighbour(settings: &Settings, leases: &mut Leases, client: Client<'_>, packet: &Datagram<'_>, target: Ipv6Addr) -> Answer {
    let is_probe = packet.source.is_unspecified();
    let is_own = Some(target) == settings.own6() || target == link_local(settings.mac);
    if !is_own {
        // A probe goes to the solicited-node address of its target (RFC 4861, section 7.1.1).
        if !is_probe || packet.destination != IpAddr::V6(wire::solicited_node(target)) {
            return Err(Refused::NotAsked);
        }
        return probe(settings, leases, client, target);
    }
    let flags = if is_probe { OVERRIDE } else { SOLICITED | OVERRIDE };
    // An address that is probed for is defended towards all nodes (RFC 4861, section 7.2.4).
    let to = if is_probe { IpAddr::V6(ALL_NODES) } else { packet.source };
    let way = Way { link: (settings.mac, client.mac), ip: (target.into(), to) };
    Ok((Service::Neighbour, advertisement(way, flags, target, settings.mac)))
}

/// A guest probes for an address that is not the responder's. Probes of a guarded port reach no other port: the responder asks there in
/// its own name, which disturbs no machine that probes itself (RFC 4862, section 5.4.3), and defends addresses of other ports.
fn probe(settings: &Settings, leases: &mut Leases, client: Client<'_>, target: Ipv6Addr) -> Answer {
    let is_guarded = leases.is_guarded(client.port);
    if target.is_unicast_link_local() && !is_guarded {
        // A link-local address has no name, and needs no leave.
        return Err(Refused::NotAsked);
    }
    match leases.probe(settings, client.port, target.into(), client.mac, client.now) {
        Ok(()) if is_guarded => Ok((Service::Neighbour, question(settings, target))),
        Ok(()) => Err(Refused::NotAsked),
        Err(Refused::NotOwner) if is_guarded => {
            let owner = leases.holder_of(target.into()).unwrap_or(settings.mac);
            Ok((Service::Neighbour, defence(settings, target, owner, client.mac)))
        }
        Err(refused) => Err(refused),
    }
}

/// Asks all for the MAC address of `target` (RFC 4861, section 7.2.2).
fn question(settings: &Settings, target: Ipv6Addr) -> Vec<u8> {
    let group = wire::solicited_node(target);
    let [.., a, b, c, d] = group.octets();
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    put_link(&mut message, SOURCE_LINK, settings.mac);
    // RFC 2464, section 7.
    let link = (settings.mac, MacAddress::new([0x33, 0x33, a, b, c, d]));
    let way = Way { link, ip: (link_local(settings.mac).into(), group.into()) };
    wire::icmp_frame(way, ICMPV6, ND_HOPS, &message)
}

/// Tells the machine `to` that `target` belongs to `owner`, as the owner would.
fn defence(settings: &Settings, target: Ipv6Addr, owner: MacAddress, to: MacAddress) -> Vec<u8> {
    let way = Way { link: (settings.mac, to), ip: (target.into(), ALL_NODES.into()) };
    advertisement(way, OVERRIDE, target, owner)
}

fn advertisement(way: Way, flags: u8, target: Ipv6Addr, mac: MacAddress) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    put_link(&mut message, TARGET_LINK, mac);
    wire::icmp_frame(way, ICMPV6, ND_HOPS, &message)
}

fn put_link(message: &mut Vec<u8>, kind: u8, mac: MacAddress) {
    message.extend([kind, 1]);
    message.extend(mac.bytes());
}
