//! Frames by RFC 826, 5227, 4861, 4862 and 7527, as their figures have them.

use super::*;
use crate::frame::START;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ALL: [u8; 6] = [0xff; 6];

fn mac(bytes: [u8; 6]) -> MacAddress {
    MacAddress::new(bytes)
}

fn of(frame: &[u8]) -> Option<Resolution> {
    Resolution::of(&frame[..frame.len().min(START)], NetHeader::default())
}

/// RFC 826: operation, sender and target.
fn arp(to: [u8; 6], operation: u8, sender: ([u8; 6], [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    let head = [&to[..], &A, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    [&head[..], &sender.0, &sender.1, &[0; 6], &target, &[0; 18]].concat()
}

fn claim(ip: &str, bytes: [u8; 6], router: Option<bool>) -> Option<Claim> {
    Some(Claim { ip: ip.parse().unwrap(), mac: mac(bytes), router })
}

fn question(ip: &str, is_probe: bool) -> Option<Question> {
    Some(Question { target: ip.parse().unwrap(), is_probe })
}

#[test]
fn arp_claims_and_asks() {
    let request = arp(ALL, 1, (A, [10, 0, 0, 1]), [10, 0, 0, 2]);
    assert_eq!(of(&request), Some(Resolution { claim: claim("10.0.0.1", A, None), question: question("10.0.0.2", false) }));
    let to_one = arp(B, 1, (A, [10, 0, 0, 1]), [10, 0, 0, 2]);
    assert_eq!(of(&to_one).unwrap().question, None, "a poll of the owner itself: RFC 1122, section 2.3.2.1");
    let reply = arp(B, 2, (A, [10, 0, 0, 1]), [10, 0, 0, 2]);
    assert_eq!(of(&reply), Some(Resolution { claim: claim("10.0.0.1", A, None), question: None }));
}

#[test]
fn arp_probes_claim_nothing_and_announcements_ask_nothing() {
    let probe = arp(ALL, 1, (A, [0; 4]), [10, 0, 0, 2]);
    assert_eq!(of(&probe), Some(Resolution { claim: None, question: question("10.0.0.2", true) }), "RFC 5227, section 2.1.1");
    let announcement = arp(ALL, 1, (A, [10, 0, 0, 1]), [10, 0, 0, 1]);
    assert_eq!(of(&announcement), Some(Resolution { claim: claim("10.0.0.1", A, None), question: None }), "section 2.3");
}

#[test]
fn arp_that_breaks_a_rule_says_nothing() {
    let good = arp(ALL, 1, (A, [10, 0, 0, 1]), [10, 0, 0, 2]);
    for (at, byte) in [(15, 2), (17, 6), (18, 8), (19, 16), (21, 3), (27, 7)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(of(&bad), None, "byte {at}");
    }
    assert_eq!(of(&good[..41]), None, "cut off");
    for sender in [[224, 0, 0, 1], [255; 4], [127, 0, 0, 1]] {
        assert_eq!(of(&arp(ALL, 1, (A, sender), [10, 0, 0, 2])), None, "no host has {sender:?}");
    }
}

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// An ICMPv6 message in an IPv6 packet in a frame from A, with its checksum.
fn nd(to: [u8; 6], source: &str, destination: &str, message: &[u8]) -> Vec<u8> {
    let (source, destination) = (address(source), address(destination));
    let mut message = message.to_vec();
    let sum = sum(source, destination, &message);
    message[2..4].copy_from_slice(&sum);
    let head = [&to[..], &A, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, message.len() as u8, 58, 255]].concat();
    [&head[..], &source.octets(), &destination.octets(), &message].concat()
}

const SOLICITED_NODE: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 2];

fn solicitation(source: &str, options: &[u8]) -> Vec<u8> {
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address("fd00::2").octets(), options].concat();
    nd(SOLICITED_NODE, source, "ff02::1:ff00:2", &message)
}

fn source_link(bytes: [u8; 6]) -> Vec<u8> {
    [&[1, 1][..], &bytes].concat()
}

fn advertised(to: [u8; 6], flags: u8, options: &[u8]) -> Vec<u8> {
    let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &address("fd00::1").octets(), options].concat();
    nd(to, "fd00::1", "fd00::2", &message)
}

#[test]
fn solicitations_claim_and_ask() {
    let asked = solicitation("fd00::1", &source_link(A));
    assert_eq!(of(&asked), Some(Resolution { claim: claim("fd00::1", A, None), question: question("fd00::2", false) }));
    let mut to_one = asked.clone();
    to_one[..6].copy_from_slice(&B);
    assert_eq!(of(&to_one).unwrap().question, None, "unreachability detection: RFC 4861, section 7.3");
    assert_eq!(of(&solicitation("fd00::1", &source_link(B))).unwrap().claim, None, "for another MAC address");
    let mut partial = asked.clone();
    partial[56..58].copy_from_slice(&[1, 2]);
    assert_eq!(of(&partial), None, "a wrong checksum: section 7.1.1");
    assert!(Resolution::of(&partial, NetHeader::partial_checksum(54, 2)).is_some(), "left to the other side");
}

/// RFC 4862, section 5.4.2, and the nonce of RFC 7527, section 4.1.
#[test]
fn duplicate_address_detection_is_a_probe() {
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    for options in [&[][..], &nonce] {
        let probe = solicitation("::", options);
        assert_eq!(of(&probe), Some(Resolution { claim: None, question: question("fd00::2", true) }));
    }
    assert_eq!(of(&solicitation("::", &source_link(A))), None, "RFC 4861, section 7.1.1");
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address("fd00::2").octets()].concat();
    assert_eq!(of(&nd(SOLICITED_NODE, "::", "ff02::1", &message)), None, "to another group: the same section");
}

#[test]
fn advertisements_claim_with_their_flags() {
    let link: &[u8] = &[2, 1, 2, 0, 0, 0, 0, 1];
    let all_nodes = [0x33, 0x33, 0, 0, 0, 1];
    assert_eq!(of(&advertised(B, 0x60, link)).unwrap().claim, claim("fd00::1", A, Some(false)));
    assert_eq!(of(&advertised(B, 0xe0, link)).unwrap().claim, claim("fd00::1", A, Some(true)));
    assert_eq!(of(&advertised(all_nodes, 0x20, link)).unwrap().claim, claim("fd00::1", A, Some(false)), "section 7.2.6");
    assert_eq!(of(&advertised(B, 0x60, &[])).unwrap().claim, claim("fd00::1", A, Some(false)), "the option may be left out to one");
    assert_eq!(of(&advertised(B, 0x40, link)).unwrap().claim, None, "an anycast address: section 7.2.7");
    assert_eq!(of(&advertised(all_nodes, 0x60, link)).unwrap().claim, None, "section 7.1.2");
}

#[test]
fn routers_claim_by_their_advertisements() {
    let message = [&[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &source_link(A)].concat();
    let frame = nd([0x33, 0x33, 0, 0, 0, 1], "fe80::1", "ff02::1", &message);
    assert_eq!(of(&frame), Some(Resolution { claim: claim("fe80::1", A, Some(true)), question: None }));
    assert_eq!(of(&nd([0x33, 0x33, 0, 0, 0, 1], "fd00::1", "ff02::1", &message)), None, "RFC 4861, section 6.1.2");
    let solicitation = [&[133, 0, 0, 0, 0, 0, 0, 0][..], &source_link(A)].concat();
    let solicitation = |source| of(&nd([0x33, 0x33, 0, 0, 0, 2], source, "ff02::2", &solicitation));
    assert_eq!(solicitation("fe80::1").unwrap().claim, claim("fe80::1", A, None));
    assert_eq!(solicitation("::"), None, "section 6.1.1");
}

#[test]
fn neighbour_discovery_that_breaks_a_rule_says_nothing() {
    let good = solicitation("fd00::1", &source_link(A));
    let changed = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        let (source, destination) = (address("fd00::1"), address("ff02::1:ff00:2"));
        bad[56..58].fill(0);
        let sum = sum(source, destination, &bad[54..]);
        bad[56..58].copy_from_slice(&sum);
        of(&bad)
    };
    assert!(changed(0, 0x33).is_some());
    assert_eq!(changed(21, 254), None, "forwarded by a router: RFC 4861, section 7.1.1");
    assert_eq!(changed(55, 1), None, "of another code");
    assert_eq!(changed(79, 0), None, "an option without a length");
    assert_eq!(changed(79, 2), None, "an option longer than the packet");
    assert_eq!(of(&good[..85]), None, "cut off");
    let to_group = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address("ff02::1").octets(), &source_link(A)].concat();
    assert_eq!(of(&nd(SOLICITED_NODE, "fd00::1", "ff02::1:ff00:2", &to_group)), None, "no one has a group's address");
}

#[test]
fn an_arp_request_is_answered_as_by_its_owner() {
    for tag in [&[][..], &[0x81, 0, 0, 7]] {
        let request = arp(ALL, 1, (A, [10, 0, 0, 1]), [10, 0, 0, 2]);
        let request = [&request[..12], tag, &request[12..]].concat();
        let asked = of(&request).unwrap().question.unwrap();
        let answer = answer(&request, asked, mac(B), false).unwrap();
        let head = [&A[..], &B, tag, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
        let wanted = [&head[..], &B, &[10, 0, 0, 2], &A, &[10, 0, 0, 1]].concat();
        assert_eq!(answer.frame()[..wanted.len()], wanted);
        assert!(answer.frame().len() == 60 && answer.frame()[wanted.len()..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_solicitation_is_answered_as_by_its_owner() {
    for is_router in [false, true] {
        let asked = solicitation("fd00::1", &source_link(A));
        let answer = answer(&asked, of(&asked).unwrap().question.unwrap(), mac(B), is_router).unwrap();
        let frame = answer.frame();
        assert_eq!((&frame[..6], &frame[6..12], frame[21]), (&A[..], &B[..], 255));
        let said = of(frame).unwrap();
        assert_eq!((said.claim, said.question), (claim("fd00::2", B, Some(is_router)), None), "whole, with its checksum");
        assert_eq!(frame[38..54], address("fd00::1").octets());
        assert_eq!(frame[58] & 0x7f, 0x60, "solicited, override: RFC 4861, section 7.2.4");
    }
}

#[test]
fn a_probe_is_answered_to_all_nodes() {
    let probe = solicitation("::", &[14, 1, 1, 2, 3, 4, 5, 6]);
    let answer = answer(&probe, of(&probe).unwrap().question.unwrap(), mac(B), false).unwrap();
    let frame = answer.frame();
    assert_eq!((&frame[..6], &frame[38..54]), (&[0x33, 0x33, 0, 0, 0, 1][..], &address("ff02::1").octets()[..]));
    assert_eq!(frame[58], 0x20, "not solicited: RFC 4861, section 7.2.4");
    assert_eq!(of(frame).unwrap().claim, claim("fd00::2", B, Some(false)));
}

#[test]
fn any_frame_is_read_and_answered_without_a_panic() {
    bolero::check!().with_type::<(Vec<u8>, bool)>().for_each(|(bytes, is_router)| {
        let start = &bytes[..bytes.len().min(START)];
        let Some(said) = Resolution::of(start, NetHeader::default()) else { return };
        assert!(is_candidate(start) || start.len() < 60);
        if let Some(asked) = said.question {
            let answer = answer(start, asked, mac(B), *is_router).unwrap();
            assert_eq!(Resolution::of(answer.frame(), NetHeader::default()).unwrap().claim.unwrap().ip, asked.target);
        }
    });
}
