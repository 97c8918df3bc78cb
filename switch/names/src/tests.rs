//! Whole frames in, whole frames out, with values of the standards.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use memlane_dataplane::headers::{ICMPV6, TYPE_ARP, link_local};
use memlane_dataplane::policy::PortLimits;
use memlane_dataplane::policy::rules::Inside;
use memlane_dataplane::twin::Twin;
use memlane_virtq::frame::MacAddress;
use memlane_virtq::offload::checksum::Sum;

use super::*;
use crate::wire::{self, Way};

mod outside;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
const NOW: u64 = 1000;

fn mac(n: u8) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, n])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn settings() -> Settings {
    Settings {
        segment: "lan".into(),
        mac: MacAddress::new(OWN),
        subnet: Some(([10, 0, 0, 0].into(), 24)),
        subnet6: Some("fd00::".parse().unwrap()),
        domain: "lan".into(),
        router: None,
        dns: Vec::new(),
        asked: Vec::new(),
        forwards: false,
        tells_refusal: false,
    }
}

/// A responder with the ports web, db, and cache, which has static addresses.
fn responder() -> Responder {
    let mut responder = Responder::new(settings());
    responder.set_port("web", PortAddresses { mtu: Some(1400), ..PortAddresses::default() }, NOW);
    responder.set_port("db", PortAddresses::default(), NOW);
    responder.set_port("cache", PortAddresses { fixed: vec![ip("10.0.0.77"), ip("fd00::77")], ..PortAddresses::default() }, NOW);
    responder
}

fn udp(from: (MacAddress, IpAddr, u16), to: (MacAddress, IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    wire::udp_frame(Way { link: (from.0, to.0), ip: (from.1, to.1) }, (from.2, to.2), payload)
}

/// A DHCP message in a frame (RFC 2131, section 2).
fn dhcp(n: u8, ciaddr: [u8; 4], options: &[u8]) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0];
    message.extend(ciaddr);
    message.extend([0; 12]);
    message.extend(mac(n).bytes());
    message.extend([0; 10 + 64 + 128]);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message.push(255);
    udp((mac(n), ip("0.0.0.0"), 68), (MacAddress::BROADCAST, ip("255.255.255.255"), 67), &message)
}

/// The DHCP message in the frame `answer`, and its options by their codes.
fn dhcp_reply(answer: &[u8]) -> (Vec<u8>, std::collections::BTreeMap<u8, Vec<u8>>) {
    let message = answer[42..].to_vec();
    let (mut options, mut at) = (std::collections::BTreeMap::new(), 240);
    while message[at] != 255 {
        let length = usize::from(message[at + 1]);
        options.insert(message[at], message[at + 2..at + 2 + length].to_vec());
        at += 2 + length;
    }
    (message, options)
}

fn offered(responder: &mut Responder, port: &str, n: u8) -> [u8; 4] {
    let answer = responder.answer(&dhcp(n, [0; 4], &[53, 1, 1]), port, NOW).unwrap();
    dhcp_reply(&answer).0[16..20].try_into().unwrap()
}

fn request(responder: &mut Responder, port: &str, n: u8, [a, b, c, d]: [u8; 4]) -> u8 {
    let frame = dhcp(n, [0; 4], &[53, 1, 3, 50, 4, a, b, c, d, 54, 4, 10, 0, 0, 1]);
    dhcp_reply(&responder.answer(&frame, port, NOW).unwrap()).1[&53][0]
}

fn leased(responder: &mut Responder, port: &str, n: u8) -> [u8; 4] {
    let address = offered(responder, port, n);
    assert_eq!(request(responder, port, n, address), 5, "DHCPACK");
    address
}

/// The sum of pseudo-header and payload, which is all ones with a complete checksum (RFC 1071).
fn has_complete_checksum(frame: &[u8]) -> bool {
    let (datagram, protocol) = match frame[12..14] {
        [8, 0] => (wire::ipv4(&frame[14..]).unwrap(), frame[23]),
        _ => (wire::ipv6(&frame[14..]).unwrap(), frame[20]),
    };
    let mut sum = Sum::default();
    if protocol != 1 {
        for address in [datagram.source, datagram.destination] {
            match address {
                IpAddr::V4(address) => sum.add(&address.octets()),
                IpAddr::V6(address) => sum.add(&address.octets()),
            }
        }
        sum.add(&(datagram.payload.len() as u32).to_be_bytes());
        sum.add(&[0, 0, 0, protocol]);
    }
    sum.add(datagram.payload);
    sum.partial() == [0xff; 2]
}

#[test]
fn a_client_is_offered_an_address_and_acknowledged() {
    let mut responder = responder();
    let answer = responder.answer(&dhcp(1, [0; 4], &[53, 1, 1]), "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer));
    assert_eq!((&answer[..6], &answer[6..12]), (&mac(1).bytes()[..], &OWN[..]), "to the client only");
    let (offer, options) = dhcp_reply(&answer);
    // RFC 2131, table 3.
    assert_eq!((&offer[..4], &offer[4..8], &offer[12..16]), (&[2, 1, 6, 0][..], &[0xde, 0xad, 0xbe, 0xef][..], &[0; 4][..]));
    assert_eq!((&offer[28..34], &offer[34..44]), (&mac(1).bytes()[..], &[0; 10][..]));
    assert!(offer.len() >= 300, "RFC 1542, section 2.1");
    let own = [10, 0, 0, 1];
    // RFC 2132, sections 9.6, 9.7, 3.3, 3.8, 3.17, 9.2, 9.11, 9.12, 3.14 and 5.1.
    for (code, value) in [
        (53, &[2][..]),
        (54, &own),
        (1, &[255, 255, 255, 0]),
        (6, &own),
        (15, b"lan"),
        (51, &[0, 0, 0x0e, 0x10]),
        (58, &[0, 0, 0x07, 0x08]),
        (59, &[0, 0, 0x0c, 0x4e]),
        (12, b"web"),
        (26, &[5, 0x78]),
    ] {
        assert_eq!(options[&code], value, "option {code}");
    }
    assert!(!options.contains_key(&3), "the responder routes nothing");
    let address: [u8; 4] = offer[16..20].try_into().unwrap();
    assert!(address[..3] == [10, 0, 0] && !matches!(address[3], 0 | 1 | 77 | 255));
    assert!(responder.leases(NOW).is_empty(), "it is only offered");
    assert_eq!(request(&mut responder, "web", 1, address), 5);
    assert_eq!(responder.leases(NOW)[0].1.address, IpAddr::from(address));
    assert_eq!(responder.take_changed(), ["web".into()]);
    assert_eq!(responder.allowed("web", NOW), [IpAddr::from(address)]);
    assert_eq!(offered(&mut responder, "web", 1), address, "the same again");
    // A client that renews has its address in ciaddr (RFC 2131, section 4.3.2).
    let renewed = responder.answer(&dhcp(1, address, &[53, 1, 3]), "web", NOW + 1800).unwrap();
    assert_eq!((dhcp_reply(&renewed).1[&53].as_slice(), &renewed[30..34]), (&[5][..], &address[..]));
    assert!(!responder.leases(NOW + 5399).is_empty() && responder.leases(NOW + 5400).is_empty());
}

#[test]
fn checksums_that_the_sender_left_undone_are_no_obstacle() {
    let mut frame = dhcp(1, [0; 4], &[53, 1, 1]);
    frame[40..42].copy_from_slice(&[0xab, 0xcd]);
    assert!(responder().answer(&frame, "web", NOW).is_some());
}

#[test]
fn no_port_gets_the_address_of_another() {
    let mut responder = responder();
    let of_web = leased(&mut responder, "web", 1);
    assert_eq!(request(&mut responder, "db", 2, of_web), 6, "DHCPNAK");
    assert_eq!(request(&mut responder, "db", 1, of_web), 6, "nor by the other's MAC address");
    assert_eq!(request(&mut responder, "db", 2, [10, 0, 0, 77]), 6, "a static one");
    assert_eq!(request(&mut responder, "db", 2, [10, 0, 0, 1]), 6, "the responder's");
    assert_eq!(request(&mut responder, "db", 2, [10, 0, 1, 5]), 6, "of another subnet");
    assert_ne!(leased(&mut responder, "db", 1), of_web);
    // A frame cannot ask for another MAC address.
    let mut forged = dhcp(2, [0; 4], &[53, 1, 1]);
    forged[6..12].copy_from_slice(&mac(9).bytes());
    assert!(responder.answer(&forged, "db", NOW).is_none());
    assert!(responder.answer(&dhcp(2, [0; 4], &[53, 1, 1]), "unknown", NOW).is_none());
}

#[test]
fn static_addresses_are_leased_to_their_port_only() {
    let mut responder = responder();
    assert_eq!(leased(&mut responder, "cache", 3), [10, 0, 0, 77]);
    offered(&mut responder, "cache", 4);
    assert_eq!(responder.leases(NOW)[0].1.holder.mac, mac(3), "an offer to another machine ends no lease");
    assert_eq!(leased(&mut responder, "cache", 4), [10, 0, 0, 77], "also with another MAC address");
    let of_web = leased(&mut responder, "web", 1);
    responder.set_port("db", PortAddresses { fixed: vec![of_web.into()], ..PortAddresses::default() }, NOW);
    assert_eq!(request(&mut responder, "web", 1, of_web), 6, "it is the operator's to give");
    assert_eq!(leased(&mut responder, "db", 2), of_web);
    responder.remove_port("db", NOW);
    assert!(responder.leases(NOW).iter().all(|(port, _)| *port != "db"));
}

/// The message type of the answer to a request for any address, and the address; `None` without an answer.
fn any_lease(responder: &mut Responder, port: &str, n: u8, now: u64) -> Option<[u8; 4]> {
    let answer = responder.answer(&dhcp(n, [0; 4], &[53, 1, 1]), port, now)?;
    let [a, b, c, d] = *dhcp_reply(&answer).0[16..].first_chunk().unwrap();
    let frame = dhcp(n, [0; 4], &[53, 1, 3, 50, 4, a, b, c, d, 54, 4, 10, 0, 0, 1]);
    let (message, options) = dhcp_reply(&responder.answer(&frame, port, now).unwrap());
    assert_eq!((&options[&53][..], &message[16..20]), (&[5][..], &[a, b, c, d][..]));
    Some([a, b, c, d])
}

/// RFC 2131, sections 1.6 and 2.2: no address is in use by two clients, and none is given to another within its lease.
#[test]
fn a_port_cannot_exhaust_the_subnet_and_no_running_lease_is_ended_for_another() {
    let mut responder = responder();
    let of_web = leased(&mut responder, "web", 200);
    let given: Vec<[u8; 4]> = (1..150).filter_map(|n| any_lease(&mut responder, "db", n, NOW)).collect();
    // Half of the free addresses: 253 without those of web and cache.
    assert_eq!(given.len(), 125);
    assert!(given.iter().collect::<std::collections::BTreeSet<_>>().len() == 125 && !given.contains(&of_web));
    let listed: Vec<IpAddr> = responder.leases(NOW).into_iter().map(|(_, lease)| lease.address).collect();
    assert!(given.iter().all(|address| listed.contains(&IpAddr::from(*address))), "all that were given are known");
    assert!(responder.report(NOW).refused["no-address"] == 24 && responder.shortage("db", NOW) == Some(125));
    assert_eq!(responder.shortage("web", NOW), None);
    for (n, address) in (1..).zip(&given) {
        assert_eq!(request(&mut responder, "db", n, *address), 5, "each is renewed");
    }
    assert_eq!(leased(&mut responder, "web", 200), of_web);
    let others: Vec<[u8; 4]> = (1..100).filter_map(|n| any_lease(&mut responder, "web", n, NOW)).collect();
    assert!(!others.is_empty() && others.iter().all(|address| !given.contains(address)));
    // When their time is over, others get them.
    assert!(any_lease(&mut responder, "db", 240, NOW + 3601).is_some());
}

#[test]
fn the_key_leases_bounds_a_port_and_one_address_is_kept_for_each_other() {
    let with = |leases| PortAddresses { leases: Some(leases), ..PortAddresses::default() };
    let mut responder = responder();
    responder.set_port("web", with(250), NOW);
    assert_eq!((1..=253).filter(|n| any_lease(&mut responder, "web", *n, NOW).is_some()).count(), 250);
    // Another has none yet; cache has a static one.
    assert!(any_lease(&mut responder, "db", 1, NOW).is_some());
    responder.set_port("web", with(3), NOW);
    let mut small = Responder::new(Settings { subnet: Some(([10, 0, 0, 0].into(), 29)), ..settings() });
    for (port, leases) in [("web", 1024), ("db", 1024), ("cache", 1)] {
        small.set_port(port, with(leases), NOW);
    }
    // Five addresses.
    assert_eq!((1..20).filter(|n| any_lease(&mut small, "db", *n, NOW).is_some()).count(), 3);
    assert_eq!((30..40).filter(|n| any_lease(&mut small, "cache", *n, NOW).is_some()).count(), 1);
    assert_eq!((50..60).filter(|n| any_lease(&mut small, "web", *n, NOW).is_some()).count(), 1);
}

/// A DHCP server knows no ports: an allocation lasts until its lease ends (RFC 2131, section 2.2).
#[test]
fn a_port_that_comes_back_within_the_lease_has_its_address() {
    let mut responder = responder();
    let of_web = leased(&mut responder, "web", 1);
    responder.remove_port("web", NOW + 10);
    assert!(responder.leases(NOW + 10).is_empty() && responder.allowed("web", NOW + 10).is_empty());
    let kept: Vec<_> = responder.departed(NOW + 10).iter().map(|(port, lease)| ((*port).to_owned(), lease.address)).collect();
    assert_eq!(kept, [("web".to_owned(), of_web.into())]);
    let wants_it = dhcp(2, [0; 4], &[53, 1, 1, 50, 4, of_web[0], of_web[1], of_web[2], of_web[3]]);
    let other = dhcp_reply(&responder.answer(&wants_it, "db", NOW + 10).unwrap()).0[16..20].to_vec();
    assert_ne!(other, of_web, "another client does not get it while others are free");
    responder.set_port("web", PortAddresses::default(), NOW + 20);
    assert_eq!(responder.allowed("web", NOW + 20), [IpAddr::from(of_web)], "a guest that was saved asks for nothing");
    assert!(responder.take_changed().contains(&"web".into()) && responder.departed(NOW + 20).is_empty());
    assert!(responder.answer(&dhcp(2, [0; 4], &[53, 1, 1]), "db", NOW + 20).is_some());
    // After its end it is anyone's.
    responder.remove_port("web", NOW + 30);
    responder.set_port("web", PortAddresses::default(), NOW + 3601);
    assert!(responder.allowed("web", NOW + 3601).is_empty());
}

/// Hundreds of guests that come and go in an hour find a free address all the same; the lease that ends first gives way.
#[test]
fn leases_of_ports_that_have_left_keep_no_port_without_an_address() {
    let mut small = Responder::new(Settings { subnet: Some(([10, 0, 0, 0].into(), 29)), ..settings() });
    let mut given = Vec::new();
    for n in 1..=40_u8 {
        let (name, now) = (format!("guest{n}"), NOW + u64::from(n));
        small.set_port(&name, PortAddresses::default(), now);
        given.push(any_lease(&mut small, &name, n, now).expect("an address"));
        small.remove_port(&name, now);
    }
    // Five addresses: each goes round.
    assert_eq!(small.departed(NOW + 40).len(), 5);
    assert_eq!(given[35..].iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
    // The newest five come back with theirs.
    for (n, address) in (36..=40).zip(&given[35..]) {
        small.set_port(&format!("guest{n}"), PortAddresses::default(), NOW + 41);
        assert_eq!(small.allowed(&format!("guest{n}"), NOW + 41), [IpAddr::from(*address)]);
    }
}

/// A lease that was stored is kept for a port that is attached later, as by a hook of libvirt after a restart.
#[test]
fn a_stored_lease_waits_for_its_port() {
    let mut responder = responder();
    let address = ip("10.0.0.99");
    assert!(responder.restore("vm7", address, mac(7).into(), LeaseKind::Leased, NOW));
    assert!(!responder.restore("vm7", ip("10.0.0.77"), mac(7).into(), LeaseKind::Leased, NOW), "it is the port cache's");
    assert!(!responder.restore("vm7", ip("192.0.2.1"), mac(7).into(), LeaseKind::Leased, NOW), "it is outside of the subnet");
    responder.set_port("vm7", PortAddresses::default(), NOW + 5);
    assert_eq!(responder.allowed("vm7", NOW + 5), [address]);
}

/// An offer need not be kept (RFC 2131, section 3.1): one for which no request comes does not keep others out.
#[test]
fn an_offer_takes_no_address_from_a_client_that_asks_later() {
    let mut small = Responder::new(Settings { subnet: Some(([10, 0, 0, 0].into(), 30)), ..settings() });
    small.set_port("web", PortAddresses::default(), NOW);
    assert_eq!(offered(&mut small, "web", 1), [10, 0, 0, 2]);
    assert_eq!(leased(&mut small, "web", 2), [10, 0, 0, 2]);
    assert!(small.answer(&dhcp(1, [0; 4], &[53, 1, 1]), "web", NOW).is_none());
}

/// RFC 2131, section 4.3.1: the client's own choice, if it is free. A client keeps its address where leases were lost.
#[test]
fn a_client_gets_the_free_address_that_it_names() {
    let mut responder = responder();
    assert_eq!(request(&mut responder, "web", 1, [10, 0, 0, 50]), 5);
    let wants_50 = dhcp(2, [0; 4], &[53, 1, 1, 50, 4, 10, 0, 0, 50]);
    let other: [u8; 4] = *dhcp_reply(&responder.answer(&wants_50, "db", NOW).unwrap()).0[16..].first_chunk().unwrap();
    assert!(other != [10, 0, 0, 50] && other != [0; 4]);
}

/// RFC 6842, section 3, and RFC 2131, section 4.2: machines with one MAC address, or one identifier as clones have, are two clients.
#[test]
fn a_lease_belongs_to_mac_address_and_client_identifier_together() {
    let mut responder = responder();
    let mut ask = |n: u8, identifier: &[u8]| {
        let option = [&[61, identifier.len() as u8][..], identifier].concat();
        let options = if identifier.is_empty() { vec![53, 1, 1] } else { [&[53, 1, 1][..], &option].concat() };
        let (message, answered) = dhcp_reply(&responder.answer(&dhcp(n, [0; 4], &options), "web", NOW).unwrap());
        assert_eq!(answered.get(&61).map_or(&[][..], |value| value), identifier, "it is echoed");
        message[16..20].to_vec()
    };
    let plain = ask(1, &[]);
    assert_eq!(ask(1, &[&[1][..], &mac(1).bytes()].concat()), plain, "RFC 2132, section 9.14: it says the same");
    let named = ask(1, &[255, 0, 0, 0, 1, 0, 2, 0, 0, 0xab, 0x11]);
    assert!(named != plain && ask(2, &[255, 0, 0, 0, 1, 0, 2, 0, 0, 0xab, 0x11]) != named);
    assert_eq!(ask(1, &[255, 0, 0, 0, 1, 0, 2, 0, 0, 0xab, 0x11]), named);
    // A refusal echoes it, too.
    let refused = dhcp(3, [0; 4], &[53, 1, 3, 50, 4, 192, 168, 0, 1, 61, 2, 0, 9]);
    let (_, options) = dhcp_reply(&responder.answer(&refused, "web", NOW).unwrap());
    assert_eq!((&options[&53][..], &options[&61][..]), (&[6][..], &[0, 9][..]));
}

/// RFC 2131, section 4.1: option overload.
#[test]
fn options_in_the_fields_of_file_and_server_name_are_read() {
    let mut responder = responder();
    for (overload, at) in [(1, 108), (2, 44), (3, 108)] {
        let mut frame = dhcp(1, [0; 4], &[52, 1, overload]);
        frame[42 + at..42 + at + 10].copy_from_slice(&[53, 1, 3, 50, 4, 10, 0, 0, 60, 255]);
        let (_, options) = dhcp_reply(&responder.answer(&frame, "web", NOW).unwrap());
        assert_eq!(options[&53], [5], "overload {overload}");
    }
    let mut cut_off = dhcp(1, [0; 4], &[52, 1, 2, 53, 1, 1]);
    cut_off[42 + 44 + 63] = 12;
    cut_off[42 + 44..42 + 44 + 63].fill(0);
    assert!(responder.answer(&cut_off, "web", NOW).is_none());
}

/// RFC 2132, section 3.8; RFC 8106, section 5.1; RFC 3646.
#[test]
fn guests_are_told_of_servers_for_names_outside_behind_its_own() {
    let dns = vec![ip("192.0.2.53"), ip("2001:db8::53"), ip("192.0.2.54")];
    let mut responder = Responder::new(Settings { dns, ..settings() });
    responder.set_port("web", PortAddresses::default(), NOW);
    let (_, options) = dhcp_reply(&responder.answer(&dhcp(1, [0; 4], &[53, 1, 1]), "web", NOW).unwrap());
    assert_eq!(options[&6], [10, 0, 0, 1, 192, 0, 2, 53, 192, 0, 2, 54]);
    let servers = ["fd00::1", "2001:db8::53"].map(|text| text.parse::<Ipv6Addr>().unwrap().octets()).concat();
    let (_, options) = dhcpv6_reply(&responder.answer(&dhcpv6(1, &[11, 9, 9, 9]), "web", NOW).unwrap());
    assert_eq!(options[&23], servers);
    let solicitation = neighbour_discovery(1, "::", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]);
    let answer = responder.answer(&solicitation, "web", NOW).unwrap();
    let wanted = [&[25, 5, 0, 0, 0xff, 0xff, 0xff, 0xff][..], &servers].concat();
    assert!(answer.windows(wanted.len()).any(|window| window == wanted));
}

#[test]
fn an_address_that_was_given_up_is_used_when_no_other_is_free() {
    let mut responder = Responder::new(Settings { subnet: Some(([10, 0, 0, 0].into(), 30)), ..settings() });
    responder.set_port("web", PortAddresses::default(), NOW);
    responder.set_port("db", PortAddresses::default(), NOW);
    assert_eq!(leased(&mut responder, "web", 1), [10, 0, 0, 2]);
    let none = responder.answer(&dhcp(2, [0; 4], &[53, 1, 1]), "db", NOW);
    assert!(none.is_none() && responder.report(NOW).refused["no-address"] == 1);
    // RFC 2131, section 4.4.6.
    responder.answer(&dhcp(1, [10, 0, 0, 2], &[53, 1, 7, 54, 4, 10, 0, 0, 1]), "web", NOW);
    assert_eq!(leased(&mut responder, "db", 2), [10, 0, 0, 2]);
    responder.take_changed();
    assert!(responder.allowed("web", NOW).is_empty() && !responder.allowed("db", NOW).is_empty());
}

#[test]
fn an_address_that_is_declined_is_not_offered_again_at_once() {
    let mut responder = responder();
    let [a, b, c, d] = leased(&mut responder, "web", 1);
    let decline = [53, 1, 4, 50, 4, a, b, c, d, 54, 4, 10, 0, 0, 1];
    assert!(responder.answer(&dhcp(2, [0; 4], &decline), "db", NOW).is_none());
    assert_eq!(offered(&mut responder, "web", 1), [a, b, c, d], "another port cannot decline it");
    assert!(responder.answer(&dhcp(1, [0; 4], &decline), "web", NOW).is_none());
    assert_ne!(offered(&mut responder, "web", 1), [a, b, c, d]);
}

/// The addresses that other machines use; all are out of use otherwise.
struct Used<F>(F);

impl<F: Fn(IpAddr, MacAddress) -> bool + Send> Sightings for Used<F> {
    fn is_used_by_other(&self, address: IpAddr, mac: MacAddress) -> bool {
        self.0(address, mac)
    }

    fn idle(&self, _: IpAddr) -> Option<u64> {
        None
    }
}

/// RFC 2131, section 3.1: a server should find out if an address is in use before it gives it.
#[test]
fn an_address_that_another_machine_claims_is_given_last() {
    let mut plain = responder();
    let first = offered(&mut plain, "web", 1);
    let claim_of_2 = move |ip: IpAddr, asker: MacAddress| ip == IpAddr::from(first) && asker != mac(2);
    let mut responder = responder();
    responder.heed(Used(claim_of_2));
    assert_ne!(leased(&mut responder, "web", 1), first);
    let mut own = self::responder();
    own.heed(Used(move |ip, asker| ip == IpAddr::from(first) && asker != mac(1)));
    assert_eq!(leased(&mut own, "web", 1), first, "its own claim");
    // A guest that claims all of them takes no lease away.
    let mut all = self::responder();
    all.heed(Used(|_, _| true));
    assert_eq!(leased(&mut all, "web", 1), first);
}

#[test]
fn requests_for_other_servers_and_of_relays_are_left_alone() {
    let mut responder = responder();
    let other = dhcp(1, [0; 4], &[53, 1, 3, 50, 4, 10, 0, 0, 9, 54, 4, 10, 0, 0, 9]);
    assert!(responder.answer(&other, "web", NOW).is_none());
    let mut relayed = dhcp(1, [0; 4], &[53, 1, 1]);
    relayed[42 + 24] = 10;
    assert!(responder.answer(&relayed, "web", NOW).is_none());
}

#[test]
fn stored_leases_are_restored_to_their_ports() {
    let mut before = responder();
    let of_web = IpAddr::from(leased(&mut before, "web", 1));
    let mut after = responder();
    for (port, lease) in before.leases(NOW) {
        assert!(after.restore(port, lease.address, lease.holder, lease.kind, 0));
    }
    assert_eq!(after.allowed("web", 0), [of_web]);
    assert!(!after.restore("db", of_web, mac(2).into(), LeaseKind::Leased, 0), "it is another port's");
    assert!(!after.restore("db", ip("10.9.0.5"), mac(2).into(), LeaseKind::Leased, 0), "of another subnet");
    assert!(!after.restore("gone", ip("10.0.0.5"), mac(2).into(), LeaseKind::Claimed, 0), "nobody uses it");
}

#[test]
fn its_own_address_is_resolved_and_answers_echo_requests() {
    let mut responder = responder();
    let mut arp = wire::ethernet((mac(1), MacAddress::BROADCAST), TYPE_ARP);
    arp.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 5, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    let answer = responder.answer(&arp, "web", NOW).unwrap();
    // RFC 826: the addresses change places.
    assert_eq!(answer[20..], [&[0, 2][..], &OWN, &[10, 0, 0, 1], &mac(1).bytes(), &[10, 0, 0, 5]].concat());
    let way = |from: &str, to: &str| Way { link: (mac(1), MacAddress::new(OWN)), ip: (ip(from), ip(to)) };
    let echo = wire::icmp_frame(way("10.0.0.5", "10.0.0.1"), 1, 64, &[8, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3]);
    let answer = responder.answer(&echo, "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer) && answer[34..36] == [0, 0] && answer[38..] == [0, 7, 0, 9, 1, 2, 3]);
    let echo = wire::icmp_frame(way("fd00::5", "fd00::1"), ICMPV6, 64, &[128, 0, 0, 0, 0, 7, 0, 9]);
    let answer = responder.answer(&echo, "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer) && answer[54] == 129);
    // A guest that claims its address gets no answer and takes nothing.
    let mut forged = arp.clone();
    forged[28..32].copy_from_slice(&[10, 0, 0, 1]);
    assert!(responder.answer(&forged, "web", NOW).is_none());
}

fn neighbour_discovery(n: u8, source: &str, destination: &str, message: &[u8]) -> Vec<u8> {
    let group = MacAddress::new([0x33, 0x33, 0, 0, 0, 2]);
    wire::icmp_frame(Way { link: (mac(n), group), ip: (ip(source), ip(destination)) }, ICMPV6, 255, message)
}

#[test]
fn a_router_advertisement_has_prefix_and_dns_server_and_no_router() {
    let mut responder = responder();
    let solicitation = [133, 0, 0, 0, 0, 0, 0, 0];
    let answer = responder.answer(&neighbour_discovery(1, "::", "ff02::2", &solicitation), "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer) && answer[21] == 255, "RFC 4861, section 6.1.2");
    assert_eq!(answer[22..38], link_local(MacAddress::new(OWN)).octets());
    let message = &answer[54..];
    // RFC 4861, section 4.2: hop limit, M and O, router lifetime 0.
    assert_eq!((message[0], message[4], message[5], &message[6..8]), (134, 64, 0xc0, &[0, 0][..]));
    let wanted = [
        &[1, 1][..],
        &OWN,
        // MTU (section 4.6.4).
        &[5, 1, 0, 0, 0, 0, 5, 0x78],
        // Prefix information (section 4.6.2): on-link, autonomous, without end.
        &[3, 4, 64, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        // RFC 8106, sections 5.1 and 5.2.
        &[25, 3, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[31, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 3, b'l', b'a', b'n', 0, 0, 0, 0],
    ];
    assert_eq!(message[16..], wanted.concat());
    // The address that the guest makes of it is allowed, and has no name before it is claimed.
    let its: IpAddr = ip("fd00::ff:fe00:1");
    assert_eq!(responder.allowed("web", NOW), [its]);
    assert!(responder.report(NOW).leases.is_empty());
    for wrong in [neighbour_discovery(1, "::", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1]), {
        let mut routed = neighbour_discovery(1, "fe80::1", "ff02::2", &solicitation);
        routed[21] = 254;
        routed
    }] {
        assert!(responder.answer(&wrong, "web", NOW).is_none());
    }
}

fn probe(n: u8, target: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().unwrap();
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    neighbour_discovery(n, "::", &wire::solicited_node(target).to_string(), &message)
}

/// A neighbour advertisement of `n` for `target` to all nodes (RFC 4861, section 4.4).
fn advertise(n: u8, target: &str) -> Vec<u8> {
    let octets = target.parse::<Ipv6Addr>().unwrap().octets();
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &octets, &[2, 1], &mac(n).bytes()].concat();
    neighbour_discovery(n, target, "ff02::1", &message)
}

#[test]
fn an_address_that_a_guest_claims_is_its_own_unless_another_has_it() {
    let mut responder = responder();
    assert!(responder.answer(&probe(1, "fd00::abcd"), "web", NOW).is_none());
    assert_eq!(responder.allowed("web", NOW), [ip("fd00::abcd")]);
    assert!(responder.report(NOW).leases.is_empty(), "it is in use when its probe went unanswered");
    responder.settle(NOW + 2);
    assert_eq!(responder.report(NOW + 2).leases[0].address, "fd00::abcd");
    responder.answer(&probe(2, "fd00::abcd"), "db", NOW);
    responder.answer(&probe(2, "fd00::77"), "db", NOW);
    responder.answer(&probe(2, "fd01::1"), "db", NOW);
    assert_eq!((responder.leases(NOW).len(), responder.report(NOW).refused["not-owner"]), (1, 2));
    for n in 0..50 {
        responder.answer(&probe(2, &format!("fd00::1:{n:x}")), "db", NOW);
    }
    assert_eq!(responder.leases(NOW).iter().filter(|(port, _)| *port == "db").count(), MOST_CLAIMS);
    assert_eq!(responder.report(NOW).refused["no-address"], 50 - MOST_CLAIMS as u64);
    // Later, one that is out of use goes for a new one, and other ports were never concerned.
    responder.answer(&probe(2, "fd00::2:1"), "db", NOW + 600);
    assert!(responder.allowed("db", NOW + 600).contains(&ip("fd00::2:1")) && responder.allowed("db", NOW).len() == MOST_CLAIMS);
    assert_eq!(responder.allowed("web", NOW + 600), [ip("fd00::abcd")]);
    // A probe for its own address is defended (RFC 4862, section 5.4.4).
    let answer = responder.answer(&probe(1, "fd00::1"), "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer) && answer[54] == 136 && answer[58] == 0x20);
    assert_eq!(answer[38..54], "ff02::1".parse::<Ipv6Addr>().unwrap().octets());
}

/// A claim stays with the machine that defends it, against another one behind the same port, too (RFC 4862, section 5.4.3 and 5.4.4).
#[test]
fn a_probe_takes_no_address_that_its_owner_defends() {
    let of = |responder: &Responder, now| responder.leases(now)[0].1.holder.mac;
    let mut responder = responder();
    responder.answer(&probe(1, "fd00::5"), "web", NOW);
    responder.answer(&advertise(1, "fd00::5"), "web", NOW);
    responder.answer(&probe(2, "fd00::5"), "web", NOW + 10);
    responder.answer(&advertise(1, "fd00::5"), "web", NOW + 10);
    responder.settle(NOW + 20);
    assert_eq!(of(&responder, NOW + 20), mac(1));
    // An owner that is gone does not defend it.
    responder.answer(&probe(2, "fd00::5"), "web", NOW + 30);
    assert_eq!(of(&responder, NOW + 31), mac(1));
    responder.settle(NOW + 32);
    assert_eq!(of(&responder, NOW + 32), mac(2));
    // An owner of which the responder hears by its defence alone, at another port.
    responder.answer(&probe(3, "fd00::6"), "web", NOW + 40);
    responder.answer(&advertise(4, "fd00::6"), "db", NOW + 41);
    assert!(!responder.allowed("web", NOW + 41).contains(&ip("fd00::6")) && responder.allowed("db", NOW + 41) == [ip("fd00::6")]);
    // A late one changes nothing.
    responder.answer(&probe(3, "fd00::7"), "web", NOW + 50);
    responder.answer(&advertise(4, "fd00::7"), "db", NOW + 60);
    assert!(responder.allowed("web", NOW + 60).contains(&ip("fd00::7")));
}

/// Probes of a guarded port reach the responder alone, which asks the others and tells of an owner (RFC 6620).
#[test]
fn the_responder_asks_others_for_a_guarded_port() {
    let mut responder = responder();
    responder.set_port("web", PortAddresses { is_guarded: true, ..PortAddresses::default() }, NOW);
    for target in ["fd00::5", "fe80::1234:5678:9abc:def0"] {
        let asked = responder.answer(&probe(1, target), "web", NOW).unwrap();
        let target: Ipv6Addr = target.parse().unwrap();
        assert!(has_complete_checksum(&asked) && asked[54] == 135 && asked[62..78] == target.octets());
        // The question disturbs no machine that probes itself: the source is an address (RFC 4862, section 5.4.3).
        assert_eq!(asked[22..38], link_local(MacAddress::new(OWN)).octets());
        assert_eq!(
            (&asked[..2], &asked[2..6]),
            (&[0x33, 0x33][..], &wire::solicited_node(target).octets()[12..]),
            "RFC 2464, section 7"
        );
        assert!(responder.allowed("web", NOW).contains(&target.into()));
    }
    let told = responder.answer(&advertise(4, "fd00::5"), "db", NOW + 1).unwrap();
    assert!(told[..6] == mac(1).bytes() && told[54] == 136 && told.ends_with(&mac(4).bytes()), "the prober hears of the owner");
    assert!(!responder.allowed("web", NOW + 1).contains(&ip("fd00::5")));
    let again = responder.answer(&probe(1, "fd00::5"), "web", NOW + 2).unwrap();
    assert!(again[..6] == mac(1).bytes() && again[54] == 136 && again.ends_with(&mac(4).bytes()));
    responder.settle(NOW + 9);
    assert!(
        responder.report(NOW + 9).leases.iter().all(|lease| !lease.address.starts_with("fe80")),
        "link-local ones have no name"
    );
}

fn dhcpv6(n: u8, message: &[u8]) -> Vec<u8> {
    let group = MacAddress::new([0x33, 0x33, 0, 1, 0, 2]);
    udp((mac(n), link_local(mac(n)).into(), 546), (group, ip("ff02::1:2"), 547), message)
}

const CLIENT_ID: [u8; 14] = [0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 1];
const IA: [u8; 16] = [0, 3, 0, 12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];

/// The DHCPv6 message in the frame `answer`, and its options by their codes.
fn dhcpv6_reply(answer: &[u8]) -> (Vec<u8>, std::collections::BTreeMap<u16, Vec<u8>>) {
    let message = answer[62..].to_vec();
    let (mut options, mut at) = (std::collections::BTreeMap::new(), 4);
    while at < message.len() {
        let [code, length] = [at, at + 2].map(|at| u16::from_be_bytes([message[at], message[at + 1]]));
        options.insert(code, message[at + 4..at + 4 + usize::from(length)].to_vec());
        at += 4 + usize::from(length);
    }
    (message, options)
}

#[test]
fn dhcpv6_leases_an_address_and_tells_the_dns_server() {
    let mut responder = responder();
    let solicit = [&[1, 1, 2, 3][..], &CLIENT_ID, &IA].concat();
    let answer = responder.answer(&dhcpv6(1, &solicit), "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer));
    let (advertise, options) = dhcpv6_reply(&answer);
    assert_eq!(advertise[..4], [2, 1, 2, 3], "RFC 8415, section 18.3.9");
    let own_id = [&[0, 3, 0, 1][..], &OWN].concat();
    assert_eq!((&options[&1][..], &options[&2]), (&CLIENT_ID[4..], &own_id), "section 11.4");
    assert_eq!(options[&23], "fd00::1".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(options[&24], [3, b'l', b'a', b'n', 0]);
    // Section 21.4 and 21.6: identifier, T1, T2, then the address with its lifetimes.
    let association = &options[&3];
    assert_eq!(association[..12], [0, 0, 0, 7, 0, 0, 0x07, 0x08, 0, 0, 0x0b, 0x40]);
    assert_eq!((&association[12..16], &association[32..40]), (&[0, 5, 0, 24][..], &[0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10][..]));
    let address: [u8; 16] = association[16..32].try_into().unwrap();
    assert!(responder.leases(NOW).is_empty());
    let server_id = [&[0, 2, 0, 10][..], &own_id].concat();
    let asks = [&[3, 1, 2, 4][..], &CLIENT_ID, &server_id, &IA].concat();
    let (reply, options) = dhcpv6_reply(&responder.answer(&dhcpv6(1, &asks), "web", NOW).unwrap());
    assert_eq!((reply[0], &options[&3][16..32]), (7, &address[..]));
    assert_eq!(responder.leases(NOW)[0].1.address, IpAddr::from(address));
    // An address of the client that is not its own is not valid (section 18.3.4).
    let other = [&[0, 5, 0, 24][..], &"fd00::77".parse::<Ipv6Addr>().unwrap().octets(), &[0; 8]].concat();
    let ia = [&[0, 3, 0, 40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0][..], &other].concat();
    let renew = [&[5, 1, 2, 5][..], &CLIENT_ID, &server_id, &ia].concat();
    let (_, options) = dhcpv6_reply(&responder.answer(&dhcpv6(1, &renew), "web", NOW).unwrap());
    assert_eq!((&options[&3][16..32], &options[&3][60..68]), (&address[..], &[0; 8][..]));
    let confirm = [&[4, 1, 2, 6][..], &CLIENT_ID, &ia].concat();
    let (_, options) = dhcpv6_reply(&responder.answer(&dhcpv6(1, &confirm), "web", NOW).unwrap());
    assert_eq!(options[&13][..2], [0, 0], "it is on the link");
    // Stateless (section 18.2.6).
    let (_, options) = dhcpv6_reply(&responder.answer(&dhcpv6(2, &[11, 9, 9, 9]), "db", NOW).unwrap());
    assert!(options.contains_key(&23) && !options.contains_key(&3));
    let released = [&[0, 5, 0, 24][..], &address, &[0; 8]].concat();
    let release =
        [&[8, 1, 2, 7][..], &CLIENT_ID, &server_id, &[0, 3, 0, 40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0], &released].concat();
    responder.answer(&dhcpv6(1, &release), "web", NOW).unwrap();
    assert!(responder.leases(NOW).is_empty());
}

#[test]
fn malformed_dhcpv6_gets_no_answer() {
    let mut responder = responder();
    let messages = [
        vec![1],
        vec![1, 1, 2, 3],
        [&[1, 1, 2, 3][..], &[0, 1, 0, 200, 1]].concat(),
        // A client that names a server it does not mean.
        [&[1, 1, 2, 3][..], &CLIENT_ID, &[0, 2, 0, 1, 7]].concat(),
        [&[3, 1, 2, 3][..], &CLIENT_ID, &IA].concat(),
        // An association that is cut off.
        [&[1, 1, 2, 3][..], &CLIENT_ID, &[0, 3, 0, 4, 0, 0, 0, 7]].concat(),
        // A loop of empty options.
        [&[1, 1, 2, 3][..], &CLIENT_ID, &[0; 4 * 100]].concat(),
        // Encapsulated as deep as the frame is long: vendor options in vendor options.
        [
            &[11, 1, 2, 3][..],
            &(0..150_u16).rev().flat_map(|depth| [0, 17, ((depth * 8) >> 8) as u8, (depth * 8) as u8]).collect::<Vec<_>>(),
        ]
        .concat(),
    ];
    for message in messages {
        assert!(responder.answer(&dhcpv6(1, &message), "web", NOW).is_none(), "{message:02x?}");
    }
}

/// A query (RFC 1035, section 4.1).
fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0xca, 0xfe, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(dns::encoded(name).unwrap());
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

fn ask(responder: &mut Responder, message: &[u8]) -> Option<Vec<u8>> {
    let frame = udp((mac(2), ip("10.0.0.9"), 5353), (MacAddress::new(OWN), ip("10.0.0.1"), 53), message);
    let answer = responder.answer(&frame, "db", NOW)?;
    assert!(has_complete_checksum(&answer));
    Some(answer[42..].to_vec())
}

/// Response code, number of answers, and the last bytes.
fn looked_up(responder: &mut Responder, name: &str, kind: u16) -> (u8, u8, Vec<u8>) {
    let reply = ask(responder, &query(name, kind)).unwrap();
    assert_eq!((&reply[..2], reply[2] & 0x80), (&[0xca, 0xfe][..], 0x80));
    (reply[3] & 0xf, reply[7], reply)
}

#[test]
fn names_of_ports_have_their_addresses_and_addresses_their_names() {
    const A: u16 = 1;
    const PTR: u16 = 12;
    const AAAA: u16 = 28;
    let mut responder = responder();
    let of_web = leased(&mut responder, "web", 1);
    responder.answer(&probe(1, "fd00::abcd"), "web", NOW - 2);
    let (code, count, reply) = looked_up(&mut responder, "web.lan", A);
    assert!(code == 0 && count == 1 && reply[2] & 4 != 0, "authoritative");
    // RFC 1035, section 4.1.3: a pointer to the name, type, class, time to live, length, address.
    assert_eq!(reply[25..], [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 10, 0, 4][..], &of_web].concat());
    let (code, count, reply) = looked_up(&mut responder, "WEB.Lan", AAAA);
    assert_eq!((code, count), (0, 1));
    assert!(reply.ends_with(&"fd00::abcd".parse::<Ipv6Addr>().unwrap().octets()));
    assert!(looked_up(&mut responder, "cache.lan", A).2.ends_with(&[10, 0, 0, 77]), "a static one");
    let reverse = format!("{}.0.0.10.in-addr.arpa", of_web[3]);
    let (code, count, reply) = looked_up(&mut responder, &reverse, PTR);
    assert!(code == 0 && count == 1 && reply.ends_with(b"\x03web\x03lan\0"));
    let nibbles = "7.7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
    assert!(looked_up(&mut responder, nibbles, PTR).2.ends_with(b"\x05cache\x03lan\0"), "RFC 3596, section 2.5");
    // RFC 2308: no such name, and no such record.
    let (code, count, reply) = looked_up(&mut responder, "gone.lan", A);
    assert_eq!((code, count, reply[9]), (3, 0, 1));
    let (code, count, reply) = looked_up(&mut responder, "db.lan", A);
    assert_eq!((code, count, reply[9]), (0, 0, 1));
    assert_eq!(looked_up(&mut responder, "example.com", A).0, 5, "refused, for another server to answer");
    assert_eq!(looked_up(&mut responder, "5.0.168.192.in-addr.arpa", PTR).0, 5);
}

/// An OPT record: payload, upper bits of the code, version, flags, options (RFC 6891, section 6.1.2).
fn opt(version: u8, flags: u16, options: &[u8]) -> Vec<u8> {
    let [high, low] = flags.to_be_bytes();
    [&[0, 0, 41, 4, 0xd0, 0, version, high, low, 0, options.len() as u8][..], options].concat()
}

/// `query` with further records in its last section.
fn with_additional(mut query: Vec<u8>, record: &[u8]) -> Vec<u8> {
    query[11] += 1;
    query.extend(record);
    query
}

/// The queries of RFC 8906, section 8: each gets an answer, of the form there.
#[test]
fn every_query_of_rfc_8906_gets_an_answer() {
    const SOA: u16 = 6;
    let mut responder = responder();
    let mut answer = |message: &[u8]| {
        let reply = ask(&mut responder, message).expect("an answer");
        assert!(reply[..2] == message[..2] && reply[2] & 0x80 != 0);
        (reply[3] & 0xf, reply[7], reply)
    };
    let soa = query("lan", SOA);
    // Section 8.1.1: the record; 8.1.2: an unknown type.
    let (code, count, reply) = answer(&soa);
    assert_eq!((code, count, reply[2] & 4), (0, 1, 4));
    assert_eq!((answer(&query("lan", 1000)).0, answer(&query("cache.lan", 1000)).1), (0, 0));
    // 8.1.3: flags. CD and RD are copied, AD and the reserved one are not, TC and AA of a query mean nothing.
    for (at, sent, wanted) in [(3, 0x10, 0x10), (3, 0x20, 0), (3, 0x40, 0), (2, 0, 0), (2, 3, 1), (2, 4, 0)] {
        let mut message = soa.clone();
        message[at] = sent;
        let (code, count, reply) = answer(&message);
        let mask: u8 = if at == 3 { 0x70 } else { 0x03 };
        assert_eq!((code, count, reply[at] & mask), (0, 1, wanted), "{at} {sent:x}");
    }
    // 8.1.4: unknown opcodes, also without a question.
    for opcode in 1..16 {
        let mut message = soa.clone();
        message[2] = opcode << 3;
        let (code, _, reply) = answer(&message);
        assert_eq!((code, reply[2] >> 3 & 0xf), (4, opcode));
        message[5] = 0;
        let (code, _, reply) = answer(&message[..12]);
        assert_eq!((code, reply.len()), (4, 12));
    }
    // 8.2: EDNS; unknown versions, flags and options; DO is copied (RFC 3225, section 3).
    let plain = with_additional(soa.clone(), &opt(0, 0, &[]));
    let without = opt(0, 0, &[]);
    assert!(answer(&plain).2.ends_with(&without));
    assert!(answer(&with_additional(soa.clone(), &opt(0, 0x0040, &[]))).2.ends_with(&without));
    assert!(answer(&with_additional(soa.clone(), &opt(0, 0x8000, &[]))).2.ends_with(&opt(0, 0x8000, &[])));
    assert!(answer(&with_additional(soa.clone(), &opt(0, 0, &[0, 100, 0, 0]))).2.ends_with(&without));
    for (flags, options) in [(0, &[][..]), (0x0040, &[]), (0, &[0, 100, 0, 0])] {
        let (code, count, reply) = answer(&with_additional(soa.clone(), &opt(1, flags, options)));
        // BADVERS is 16: 1 in the OPT record, of the version that is known.
        assert_eq!((code, count, &reply[reply.len() - 6..reply.len() - 4]), (0, 0, &[1, 0][..]));
    }
    // Unknown classes; zone transfers; malformed messages.
    let mut of_class = query("cache.lan", 1);
    *of_class.last_mut().unwrap() = 3;
    assert_eq!(answer(&of_class).0, 5);
    assert_eq!([answer(&query("lan", 252)).0, answer(&query("lan", 251)).0], [5, 5]);
    let two_opts = with_additional(plain.clone(), &without);
    let cut_off = &plain[..plain.len() - 1];
    assert_eq!([answer(&two_opts).0, answer(cut_off).0], [1, 1]);
}

/// RFC 8482, section 4.2.
#[test]
fn a_query_for_any_type_gets_one_record() {
    let (code, count, reply) = looked_up(&mut responder(), "cache.lan", 255);
    assert!(code == 0 && count == 1 && reply.ends_with(b"\0\x0d\0\x01\0\0\0\x0a\0\x09\x07RFC8482\0"));
    assert_eq!(looked_up(&mut responder(), "gone.lan", 255).0, 3);
}

/// A resolver compares the case of letters with that of its question (draft-vixie-dnsext-dns0x20); negative answers name their zone.
#[test]
fn the_question_is_repeated_as_it_came() {
    let message = query("gOnE.LaN", 1);
    let reply = ask(&mut responder(), &message).unwrap();
    assert_eq!(reply[12..26], message[12..26]);
    // The owner of the SOA record is the name behind the first label (RFC 2308, section 3).
    assert_eq!(reply[26..28], [0xc0, 17]);
}

#[test]
fn dns_that_is_malformed_gets_a_format_error_and_responses_none() {
    let mut responder = responder();
    let header = [0xca, 0xfe, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let bodies: [&[u8]; 7] = [
        // A pointer to itself, two that point to each other, one beyond the end (RFC 1035, section 4.1.4).
        &[0xc0, 12, 0, 1, 0, 1],
        &[0xc0, 14, 0xc0, 12, 0, 1, 0, 1],
        &[0xc0, 200, 0, 1, 0, 1],
        // A label that is cut off, one of a reserved kind, a name that is too long, and no question.
        &[63, b'a', 0, 1, 0, 1],
        &[0x80, 0, 1, 0, 1],
        &[1; 300],
        &[],
    ];
    for body in bodies {
        let reply = ask(&mut responder, &[&header[..], body].concat()).unwrap();
        assert_eq!(reply, [0xca, 0xfe, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0], "{body:02x?}");
    }
    let mut response = query("web.lan", 1);
    response[2] |= 0x80;
    assert!(ask(&mut responder, &response).is_none() && ask(&mut responder, &header[..11]).is_none(), "it is no query");
}

/// A client's end of a TCP connection to port 53.
struct TcpClient {
    port: u16,
    next: u32,
    heard: u32,
}

impl TcpClient {
    const SYN: u8 = 2;
    const ACK: u8 = 16;

    fn frame(&self, flags: u8, payload: &[u8]) -> Vec<u8> {
        let way = Way { link: (mac(2), MacAddress::new(OWN)), ip: (ip("10.0.0.9"), ip("10.0.0.1")) };
        let segment = wire::TcpSegment { ports: (self.port, 53), sequence: self.next, acknowledged: self.heard, flags, payload };
        wire::tcp_frame(way, &segment, 1000, &[])
    }

    /// Sends a segment; returns the flags and the payload of the answer, which follows those before.
    fn send(&mut self, responder: &mut Responder, flags: u8, payload: &[u8]) -> Option<(u8, Vec<u8>)> {
        let answer = responder.answer(&self.frame(flags, payload), "db", NOW)?;
        assert!(has_complete_checksum(&answer));
        let packet = wire::ipv4(&answer[14..]).unwrap();
        let segment = wire::tcp(packet.payload).unwrap();
        assert_eq!(segment.ports, (53, self.port));
        self.next = self.next.wrapping_add(payload.len() as u32 + u32::from(flags & 3 != 0));
        if segment.flags & 4 == 0 {
            assert_eq!(segment.acknowledged, self.next);
            assert!(segment.flags & Self::SYN != 0 || segment.sequence == self.heard);
            self.heard = segment.sequence.wrapping_add(segment.payload.len() as u32 + u32::from(segment.flags & 3 != 0));
        }
        Some((segment.flags, segment.payload.to_vec()))
    }

    fn open(responder: &mut Responder, port: u16) -> Self {
        let mut client = Self { port, next: u32::MAX - 3, heard: 0 };
        assert_eq!(client.send(responder, Self::SYN, &[]), Some((Self::SYN | Self::ACK, Vec::new())));
        assert_eq!(client.send(responder, Self::ACK, &[]), None);
        client
    }
}

fn with_length(message: Vec<u8>) -> Vec<u8> {
    [(message.len() as u16).to_be_bytes().to_vec(), message].concat()
}

/// RFC 7766: several queries on one connection, split anywhere, sent without waiting; the client closes it.
#[test]
fn queries_by_tcp_get_answers() {
    let mut responder = responder();
    let wanted = with_length(ask(&mut responder, &query("cache.lan", 1)).unwrap());
    let asked = with_length(query("cache.lan", 1));
    let mut client = TcpClient::open(&mut responder, 4000);
    assert_eq!(client.send(&mut responder, 24, &asked), Some((16, wanted.clone())));
    assert_eq!(client.send(&mut responder, 24, &asked[..1]).unwrap(), (16, Vec::new()));
    assert_eq!(client.send(&mut responder, 24, &asked[1..]).unwrap().1, wanted);
    assert_eq!(client.send(&mut responder, 24, &[&asked[..], &asked].concat()).unwrap().1, [&wanted[..], &wanted].concat());
    // An answer that was lost comes again with the query.
    let (next, heard) = (client.next, client.heard);
    client.send(&mut responder, 24, &asked).unwrap();
    (client.next, client.heard) = (next, heard);
    assert_eq!(client.send(&mut responder, 24, &asked).unwrap().1, wanted);
    assert_eq!(client.send(&mut responder, 17, &[]), Some((17, Vec::new())), "FIN");
    assert_eq!(client.send(&mut responder, 16, &[]), None);
    assert_eq!(client.send(&mut responder, 16, &[]).unwrap().0, 4, "it is over");
}

/// RFC 9293, section 3.10.7.1; RFC 5961.
#[test]
fn segments_of_no_connection_are_reset_and_forged_ones_end_none() {
    let mut responder = responder();
    let mut stranger = TcpClient { port: 4001, next: 7, heard: 9 };
    assert_eq!(stranger.send(&mut responder, 16, &[]).unwrap(), (4, Vec::new()));
    assert_eq!(stranger.send(&mut responder, 0, b"x").unwrap(), (20, Vec::new()));
    assert_eq!(stranger.send(&mut responder, 4, &[]), None);
    let mut client = TcpClient::open(&mut responder, 4002);
    let next = client.next;
    client.next = next.wrapping_add(5);
    assert!(responder.answer(&client.frame(4, &[]), "db", NOW).is_none());
    client.next = next;
    let asked = with_length(query("cache.lan", 1));
    assert!(!client.send(&mut responder, 24, &asked).unwrap().1.is_empty(), "only the next number resets");
    // A query that is too long, or none, ends the connection.
    assert_eq!(client.send(&mut responder, 24, &[0xff, 0xff, 0]).unwrap().0, 4);
    // Connections of a port are bounded: the first ones give way.
    for port in 5000..5050 {
        TcpClient::open(&mut responder, port);
    }
    let mut client = TcpClient::open(&mut responder, 5050);
    assert!(!client.send(&mut responder, 24, &asked).unwrap().1.is_empty());
}

/// RFC 8415, section 18.3: prefixes and temporary addresses are not given.
#[test]
fn associations_that_are_not_served_get_their_status() {
    let mut responder = responder();
    let ia_pd = [0, 25, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    let ia_ta = [0, 4, 0, 4, 0, 0, 0, 8];
    let solicit = [&[1, 1, 2, 3][..], &CLIENT_ID, &IA, &ia_pd, &ia_ta].concat();
    let (_, options) = dhcpv6_reply(&responder.answer(&dhcpv6(1, &solicit), "web", NOW).unwrap());
    assert!(options.contains_key(&3));
    assert_eq!(options[&25], [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 0, 2, 0, 6], "NoPrefixAvail");
    assert_eq!(options[&4], [0, 0, 0, 8, 0, 13, 0, 2, 0, 2], "NoAddrsAvail");
    let server_id = [&[0, 2, 0, 10, 0, 3, 0, 1][..], &OWN].concat();
    let renew = [&[5, 1, 2, 3][..], &CLIENT_ID, &server_id, &ia_pd].concat();
    let (_, options) = dhcpv6_reply(&responder.answer(&dhcpv6(1, &renew), "web", NOW).unwrap());
    assert_eq!(options[&25][12..], [0, 13, 0, 2, 0, 3], "NoBinding");
    let cut_off = [&[1, 1, 2, 3][..], &CLIENT_ID, &[0, 25, 0, 3, 0, 0, 0]].concat();
    assert!(responder.answer(&dhcpv6(1, &cut_off), "web", NOW).is_none());
}

#[test]
fn any_bytes_are_answered_or_dropped() {
    // The first byte chooses a start that is right; then the rest replaces bytes of it, or follows it.
    let starts = [
        Vec::new(),
        dhcp(1, [0; 4], &[53, 1, 1]),
        dhcp(1, [0; 4], &[53, 1, 3, 50, 4, 10, 0, 0, 9]),
        probe(1, "fd00::5"),
        dhcpv6(1, &[&[1, 1, 2, 3][..], &CLIENT_ID, &IA].concat()),
        udp((mac(1), ip("10.0.0.5"), 999), (MacAddress::new(OWN), ip("10.0.0.1"), 53), &query("web.lan", 1)),
        udp((mac(1), ip("fd00::5"), 999), (MacAddress::new(OWN), ip("fd00::1"), 53), &query("web.lan", 28)),
        udp(
            (mac(1), ip("10.0.0.5"), 999),
            (MacAddress::new(OWN), ip("10.0.0.1"), 53),
            &with_additional(query("lan", 6), &opt(0, 0, &[])),
        ),
        TcpClient { port: 999, next: 1, heard: 0 }.frame(TcpClient::SYN, &[]),
        TcpClient { port: 999, next: 2, heard: 0 }.frame(24, &with_length(query("web.lan", 1))),
    ];
    bolero::check!().with_type::<(u8, Vec<(u16, u8)>, Vec<u8>)>().for_each(|(start, changes, tail)| {
        let mut frame = starts[usize::from(*start) % starts.len()].clone();
        frame.extend(tail);
        for (at, byte) in changes {
            let length = frame.len();
            if let Some(place) = frame.get_mut(usize::from(*at) % length.max(1)) {
                *place = *byte;
            }
        }
        let mut responder = responder();
        for moment in [NOW, NOW + 1] {
            if let Some(answer) = responder.answer(&frame, "web", moment) {
                assert!(
                    answer.len() < 1600 && answer[..6] == frame[6..12] && answer[6..12] == OWN,
                    "to its sender: no port is guarded"
                );
                assert!(answer[12..14] == [8, 6] || has_complete_checksum(&answer));
            }
        }
    });
}

/// A twin names its address inside: the switch exchanges those of the fixed part of a DHCP message, and no others.
#[test]
fn a_twin_is_leased_its_address_under_the_one_that_it_has_inside() {
    let mut responder = responder();
    let outside = mac(7);
    let inside = Inside { mac: Some(mac(1)), addresses: vec![ip("10.0.0.5"), ip("fd00::5")] };
    let fixed = vec![ip("10.0.0.77"), ip("fd00::77")];
    let limits = PortLimits { inside: Some(inside), addresses: fixed.clone(), ..PortLimits::default() };
    responder.set_port("cache", PortAddresses { fixed, twin: Twin::of(&limits, outside), ..PortAddresses::default() }, NOW);
    // REQUEST of a client that starts again (RFC 2131, section 4.3.2), for the address that it had.
    let (message, options) =
        dhcp_reply(&responder.answer(&dhcp(7, [0; 4], &[53, 1, 3, 50, 4, 10, 0, 0, 5]), "cache", NOW).unwrap());
    assert_eq!((&message[16..20], &options[&53][..]), (&[10, 0, 0, 77][..], &[5][..]), "an acknowledgment");
    let (_, options) = dhcp_reply(&responder.answer(&dhcp(7, [0; 4], &[53, 1, 3, 50, 4, 10, 0, 0, 6]), "cache", NOW).unwrap());
    assert_eq!(options[&53], [6], "another address is refused");
    // REQUEST of DHCPv6 (RFC 8415, section 18.2.2).
    let client = [&[0, 1, 0, 10, 0, 3, 0, 1][..], &mac(1).bytes()].concat();
    let server = [&[0, 2, 0, 10, 0, 3, 0, 1][..], &OWN].concat();
    let five = "fd00::5".parse::<Ipv6Addr>().unwrap().octets();
    let association = [&[0, 3, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24][..], &five, &[0; 8]].concat();
    let message = [&[3, 9, 9, 9][..], &client, &server, &association].concat();
    let to = (MacAddress::new([0x33, 0x33, 0, 1, 0, 2]), ip("ff02::1:2"), 547);
    let reply = responder.answer(&udp((outside, link_local(outside).into(), 546), to, &message), "cache", NOW).unwrap();
    let found: Vec<_> = reply.windows(16).filter(|bytes| bytes.starts_with(&five[..8]) && bytes[8..15] == [0; 7]).collect();
    assert!(found.contains(&&five[..]) && !found.iter().any(|bytes| bytes[15] == 0x77), "{found:02x?}");
    // DNS: its own name has the address inside; others are told the one outside.
    let mut own_name = |port: &str| {
        let message = query("cache.lan", 1);
        let from = (outside, ip("10.0.0.77"), 4000);
        let answer = responder.answer(&udp(from, (MacAddress::new(OWN), ip("10.0.0.1"), 53), &message), port, NOW).unwrap();
        answer[answer.len() - 4..].to_vec()
    };
    assert_eq!((own_name("cache"), own_name("web")), (vec![10, 0, 0, 5], vec![10, 0, 0, 77]));
}
