//! Target `resolver`: what a resolver, or the forwarder before it, sends about a name outside. A guest is told no more than it asked for, and its
//! port is given the addresses that it is told, and no others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memlane::frame::MacAddress;
use memlane_names::forward::{Question, decode_answer};
use memlane_names::{Given, PortAddresses, Responder, Settings};

use super::names::dns;

/// Names, types and classes that the guest asks for.
const ASKED: [&[u8]; 5] = [
    b"\x01a\x07example\x03org\0\0\x01\0\x01",
    b"\x01A\x07eXample\x03org\0\0\x1c\0\x01",
    b"\x01a\x07example\x03org\0\0\x41\0\x01",
    b"\x01a\x07example\x03org\0\0\x0f\0\x01",
    b"\x01a\x07example\x03org\0\0\x05\0\x01",
];
/// Bytes of a DNS header.
const HEADER: usize = 12;
const DAY: u32 = 86_400;

/// Hears `data`: a byte that chooses the question, one that tells whether header and question are made right, and the message.
pub fn run(data: &[u8]) {
    let Some((choice, message)) = data.split_first_chunk::<2>() else { return };
    let _ = decode_answer(message);
    if let Some(question) = Question::decode(message) {
        assert_eq!(Question::decode(&question.encode()), Some(question));
    }
    let question = ASKED[usize::from(choice[0]) % ASKED.len()];
    let mut responder = Responder::new(Settings {
        segment: "lan".into(),
        mac: MacAddress::new([2, 0, 0, 0, 0, 0xff]),
        subnet: Some(([10, 0, 0, 0].into(), 24)),
        subnet6: "fd00::".parse().ok(),
        domain: "lan".into(),
        router: None,
        dns: Vec::new(),
        asked: Vec::new(),
        forwards: true,
        tells_refusal: false,
    });
    responder.set_port("web", PortAddresses::default(), 0);
    assert!(responder.answer(&dns(question), "web", 0).is_none(), "the answer comes later");
    let asked = responder.take_questions().pop().expect("the question");
    assert_eq!(asked.bytes, question);
    let message = if choice[1] & 1 == 0 { message.to_vec() } else { repaired(message, question) };
    let _ = asked.heard(7, &message);
    let given = responder.hear(asked.id, Some(&message), 0).expect("an answer to the client");
    assert!(responder.hear(asked.id, Some(&message), 0).is_none(), "once");
    judge(question, &given);
}

/// `message` with a header and a question that fit.
fn repaired(message: &[u8], question: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes.resize(bytes.len().max(HEADER), 0);
    let code = bytes[3] & 3;
    bytes[2..6].copy_from_slice(&[0x81, 0x80 | code, 0, 1]);
    let rest = bytes.split_off(HEADER);
    [&bytes[..], question, &rest].concat()
}

/// A name at `at`, in lower case, and the place behind it. A simple reading, of messages that this project wrote.
fn name(message: &[u8], mut at: usize) -> (Vec<u8>, usize) {
    let (mut name, mut end) = (Vec::new(), None);
    loop {
        match message[at] {
            0 => return (name, end.unwrap_or(at + 1)),
            length @ 1..=63 => {
                name.extend(message[at..=at + usize::from(length)].to_ascii_lowercase());
                at += 1 + usize::from(length);
            }
            high => {
                end = end.or(Some(at + 2));
                let to = usize::from(high & 0x3f) << 8 | usize::from(message[at + 1]);
                assert!(to < at, "a pointer leads back");
                at = to;
            }
        }
        assert!(name.len() < 256);
    }
}

fn judge(question: &[u8], given: &Given) {
    let message = &given.frame[42..];
    let number = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    assert!((given.port.as_ref(), given.name.as_ref()) == ("web", "a.example.org") && message.len() <= 512);
    assert!(number(2) & 0x8080 == 0x8080 && message[HEADER..].starts_with(question), "the question as it was asked");
    let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
    let (mut at, mut owner, mut told) = (HEADER + question.len(), name(message, HEADER).0, Vec::new());
    for _ in 0..number(6) {
        let (of, next) = name(message, at);
        assert_eq!(of, owner, "of the name, or the end of its aliases");
        let (is, ttl, length) = (number(next), u32::from(number(next + 4)) << 16 | u32::from(number(next + 6)), number(next + 8));
        assert!(ttl <= DAY && number(next + 2) == 1);
        let data = &message[next + 10..next + 10 + usize::from(length)];
        match is {
            5 if kind != 5 => owner = name(message, next + 10).0,
            _ => assert_eq!(is, kind),
        }
        match is {
            1 => told.push(IpAddr::from(<[u8; 4]>::try_from(data).expect("an address"))),
            28 => told.push(IpAddr::from(<[u8; 16]>::try_from(data).expect("an address"))),
            65 => told.extend(hints(data)),
            _ => {}
        }
        at = next + 10 + usize::from(length);
    }
    assert!(number(8) <= 1 && number(10) == 0);
    if number(8) == 0 {
        assert_eq!(at, message.len());
    }
    assert_eq!(given.addresses.iter().map(|(address, _)| *address).collect::<Vec<_>>(), told, "those that the guest is told");
    for address in told {
        let is_inside = match address {
            IpAddr::V4(address) => address.octets()[..3] == [10, 0, 0] || address == Ipv4Addr::LOCALHOST || address.is_link_local(),
            IpAddr::V6(address) => address.segments()[..4] == [0xfd00, 0, 0, 0] || address == Ipv6Addr::LOCALHOST,
        };
        assert!(!is_inside && !address.is_multicast() && !address.is_unspecified(), "{address}");
    }
}

/// Addresses in the parameters of a service.
fn hints(data: &[u8]) -> Vec<IpAddr> {
    assert!(data[..2] != [0, 0] && data[2] == 0, "a service of this name");
    let (mut rest, mut found) = (&data[3..], Vec::new());
    while let [_, key, high, low, more @ ..] = rest {
        let (value, after) = more.split_at(usize::from(*high) << 8 | usize::from(*low));
        let is_hint = rest[0] == 0;
        match key {
            4 if is_hint => found.extend(value.chunks(4).map(|part| IpAddr::from(<[u8; 4]>::try_from(part).expect("whole")))),
            6 if is_hint => found.extend(value.chunks(16).map(|part| IpAddr::from(<[u8; 16]>::try_from(part).expect("whole")))),
            _ => {}
        }
        rest = after;
    }
    found
}

/// Messages that reach far.
pub fn seeds() -> [(&'static str, Vec<u8>); 9] {
    let record = |owner: &[u8], kind: u8, data: &[u8]| [owner, &[0, kind, 0, 1, 0, 0, 1, 0, 0, data.len() as u8], data].concat();
    let message = |choice: u8, code: u8, answers: &[Vec<u8>], authorities: &[Vec<u8>]| {
        let head = [choice, 1, 0, 7, 0x81, 0x80 | code, 0, 1, 0, answers.len() as u8, 0, authorities.len() as u8, 0, 0];
        [&head[..], &answers.concat(), &authorities.concat()].concat()
    };
    let (asked, cdn) = ([0xc0, 12], b"\x03cdn\x07example\x03net\0");
    let soa = record(&[0xc0, 14], 6, &[&[2, b'n', b's', 0xc0, 14, 0xc0, 14][..], &[0; 20]].concat());
    let hint = [0, 1, 0, 0, 1, 0, 3, 2, b'h', b'2', 0, 4, 0, 4, 192, 0, 2, 7];
    [
        ("an-address", message(0, 0, &[record(&asked, 1, &[192, 0, 2, 7])], &[])),
        ("an-address-of-the-segment", message(0, 0, &[record(&asked, 1, &[10, 0, 0, 5]), record(&asked, 1, &[10, 1, 0, 5])], &[])),
        ("an-alias", message(0, 0, &[record(&asked, 5, cdn), record(cdn, 1, &[192, 0, 2, 7])], &[])),
        ("an-alias-of-itself", message(0, 0, &[record(&asked, 5, &asked)], &[])),
        ("six", message(1, 0, &[record(&asked, 28, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7])], &[])),
        ("a-service", message(2, 0, &[record(&asked, 65, &hint)], &[])),
        ("mail", message(3, 0, &[record(&asked, 15, &[0, 10, 2, b'm', b'x', 0xc0, 14])], &[])),
        ("no-such-name", message(0, 3, &[], &[soa])),
        ("many", message(0, 0, &(0..40).map(|n| record(&asked, 1, &[198, 18, 0, n])).collect::<Vec<_>>(), &[])),
    ]
}
