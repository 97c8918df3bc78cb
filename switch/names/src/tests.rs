//! Whole frames in, whole frames out, with values of the standards.

use std::net::{IpAddr, Ipv6Addr};

use memlane_dataplane::headers::{ICMPV6, TYPE_ARP, link_local};
use memlane_virtq::frame::MacAddress;
use memlane_virtq::offload::checksum::Sum;

use super::*;
use crate::wire::{self, Way};

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
    }
}

/// A responder with the ports web, db, and cache, which has static addresses.
fn responder() -> Responder {
    let mut responder = Responder::new(settings());
    responder.set_port("web", PortAddresses { mtu: Some(1400), ..PortAddresses::default() });
    responder.set_port("db", PortAddresses::default());
    responder.set_port("cache", PortAddresses { fixed: vec![ip("10.0.0.77"), ip("fd00::77")], mtu: None });
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
    assert_eq!(leased(&mut responder, "cache", 4), [10, 0, 0, 77], "also with another MAC address");
    let of_web = leased(&mut responder, "web", 1);
    responder.set_port("db", PortAddresses { fixed: vec![of_web.into()], mtu: None });
    assert_eq!(request(&mut responder, "web", 1, of_web), 6, "it is the operator's to give");
    assert_eq!(leased(&mut responder, "db", 2), of_web);
    responder.remove_port("db");
    assert!(responder.leases(NOW).iter().all(|(port, _)| *port != "db"));
}

#[test]
fn a_port_cannot_exhaust_the_subnet() {
    let mut responder = responder();
    let of_web = leased(&mut responder, "web", 200);
    for n in 1..150 {
        leased(&mut responder, "db", n);
    }
    assert_eq!(responder.leases(NOW).iter().filter(|(port, _)| *port == "db").count(), 8);
    assert_eq!(leased(&mut responder, "web", 200), of_web);
    // Where few addresses are, each port gets few.
    let mut small = Responder::new(Settings { subnet: Some(([10, 0, 0, 0].into(), 29)), ..settings() });
    small.set_port("web", PortAddresses::default());
    small.set_port("db", PortAddresses::default());
    for n in 1..20 {
        leased(&mut small, "db", n);
    }
    leased(&mut small, "web", 200);
}

#[test]
fn an_address_that_was_given_up_is_used_when_no_other_is_free() {
    let mut responder = Responder::new(Settings { subnet: Some(([10, 0, 0, 0].into(), 30)), ..settings() });
    responder.set_port("web", PortAddresses::default());
    responder.set_port("db", PortAddresses::default());
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

/// RFC 2131, section 3.1: a server should find out if an address is in use before it gives it.
#[test]
fn an_address_that_another_machine_claims_is_given_last() {
    let mut plain = responder();
    let first = offered(&mut plain, "web", 1);
    let claim_of_2 = move |ip: IpAddr, asker: MacAddress| ip == IpAddr::from(first) && asker != mac(2);
    let mut responder = responder();
    responder.heed_claims(claim_of_2);
    assert_ne!(leased(&mut responder, "web", 1), first);
    let mut own = self::responder();
    own.heed_claims(move |ip, asker| ip == IpAddr::from(first) && asker != mac(1));
    assert_eq!(leased(&mut own, "web", 1), first, "its own claim");
    // A guest that claims all of them takes no lease away.
    let mut all = self::responder();
    all.heed_claims(|_, _| true);
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
        assert!(after.restore(port, lease.address, lease.mac, lease.kind, 0));
    }
    assert_eq!(after.allowed("web", 0), [of_web]);
    assert!(!after.restore("db", of_web, mac(2), LeaseKind::Leased, 0), "it is another port's");
    assert!(!after.restore("db", ip("10.9.0.5"), mac(2), LeaseKind::Leased, 0), "of another subnet");
    assert!(!after.restore("gone", ip("10.0.0.5"), mac(2), LeaseKind::Leased, 0));
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

#[test]
fn an_address_that_a_guest_claims_is_its_own_unless_another_has_it() {
    let mut responder = responder();
    assert!(responder.answer(&probe(1, "fd00::abcd"), "web", NOW).is_none());
    assert_eq!(responder.leases(NOW)[0].1.kind, LeaseKind::Claimed);
    responder.answer(&probe(2, "fd00::abcd"), "db", NOW);
    responder.answer(&probe(2, "fd00::77"), "db", NOW);
    responder.answer(&probe(2, "fd01::1"), "db", NOW);
    assert_eq!((responder.leases(NOW).len(), responder.report(NOW).refused["not-owner"]), (1, 2));
    for n in 0..50 {
        responder.answer(&probe(2, &format!("fd00::1:{n:x}")), "db", NOW);
    }
    assert_eq!(responder.leases(NOW).iter().filter(|(port, _)| *port == "db").count(), 8);
    // A probe for its own address is defended (RFC 4862, section 5.4.4).
    let answer = responder.answer(&probe(1, "fd00::1"), "web", NOW).unwrap();
    assert!(has_complete_checksum(&answer) && answer[54] == 136 && answer[58] == 0x20);
    assert_eq!(answer[38..54], "ff02::1".parse::<Ipv6Addr>().unwrap().octets());
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
    responder.answer(&probe(1, "fd00::abcd"), "web", NOW);
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

#[test]
fn a_query_with_edns_gets_an_answer_with_edns() {
    let mut message = query("cache.lan", 1);
    message[11] = 1;
    message.extend([0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0]);
    let reply = ask(&mut responder(), &message).unwrap();
    assert_eq!((reply[7], reply[11]), (1, 1), "RFC 6891, section 6.1.1");
}

#[test]
fn malformed_dns_gets_no_answer() {
    let mut responder = responder();
    let header = [0xca, 0xfe, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let bodies: [&[u8]; 6] = [
        // A pointer to itself, two that point to each other, one beyond the end (RFC 1035, section 4.1.4).
        &[0xc0, 12, 0, 1, 0, 1],
        &[0xc0, 14, 0xc0, 12, 0, 1, 0, 1],
        &[0xc0, 200, 0, 1, 0, 1],
        // A label that is cut off, one of a reserved kind, and no question.
        &[63, b'a', 0, 1, 0, 1],
        &[0x80, 0, 1, 0, 1],
        &[],
    ];
    for body in bodies {
        assert!(ask(&mut responder, &[&header[..], body].concat()).is_none(), "{body:02x?}");
    }
    let mut response = query("web.lan", 1);
    response[2] |= 0x80;
    assert!(ask(&mut responder, &response).is_none(), "it is no query");
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
                assert!(answer.len() < 1600 && answer[..6] == frame[6..12] && answer[6..12] == OWN);
                assert!(answer[12..14] == [8, 6] || has_complete_checksum(&answer));
            }
        }
    });
}
