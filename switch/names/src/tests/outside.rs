//! Names outside: questions of guests, and what resolvers answer, also those that lie.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::forward::Question;

const A: u16 = 1;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const MX: u16 = 15;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;

/// Allows names below example.org, and notes the others.
struct Rules(Arc<Mutex<Vec<(String, String)>>>);

impl NamePolicy for Rules {
    fn admit(&self, port: &str, name: &str) -> Admission {
        if name.ends_with(".example.org") {
            return Admission::Ask;
        }
        self.0.lock().unwrap().push((port.into(), name.into()));
        Admission::Refuse
    }

    fn limits(&self) -> bool {
        true
    }
}

fn forwarding() -> Responder {
    let mut responder = Responder::new(Settings { forwards: true, ..settings() });
    ["web", "db"].into_iter().for_each(|port| responder.set_port(port, PortAddresses::default(), NOW));
    responder
}

/// Sends a DNS message from this UDP port of `port`; returns the answer that comes at once.
fn send(responder: &mut Responder, port: &str, source: u16, message: &[u8]) -> Option<Vec<u8>> {
    let frame = udp((mac(2), ip("10.0.0.9"), source), (MacAddress::new(OWN), ip("10.0.0.1"), 53), message);
    responder.answer(&frame, port, NOW).map(|answer| answer[42..].to_vec())
}

/// Asks for `name`; returns the question for the forwarder.
fn forwarded(responder: &mut Responder, name: &str, kind: u16) -> Question {
    assert_eq!(send(responder, "db", 5353, &query(name, kind)), None);
    let mut questions = responder.take_questions();
    assert_eq!(questions.len(), 1, "{name}");
    questions.remove(0)
}

fn name(name: &str) -> Vec<u8> {
    dns::encoded(name).unwrap()
}

fn record(owner: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let head = [kind, 1].into_iter().flat_map(u16::to_be_bytes);
    let length = (data.len() as u16).to_be_bytes();
    owner.iter().copied().chain(head).chain(ttl.to_be_bytes()).chain(length).chain(data.iter().copied()).collect()
}

/// A pointer to the name in question.
const ASKED: [u8; 2] = [0xc0, 12];

/// A resolver's message with these records in its answer and its authority section.
fn message(question: &Question, code: u16, answers: &[Vec<u8>], authorities: &[Vec<u8>]) -> Vec<u8> {
    let head = [7, 0x8180 | code, 1, answers.len() as u16, authorities.len() as u16, 0];
    let mut message: Vec<u8> = head.into_iter().flat_map(u16::to_be_bytes).collect();
    message.extend(&question.bytes);
    message.extend(answers.concat());
    message.extend(authorities.concat());
    message
}

/// The answer that the guest gets, and the addresses that its port is given.
fn heard(responder: &mut Responder, question: &Question, message: &[u8]) -> (Vec<u8>, Vec<(IpAddr, u32)>) {
    let given = responder.hear(question.id, Some(message), NOW).unwrap();
    assert!(has_complete_checksum(&given.frame) && given.frame.len() < 1600);
    assert_eq!(given.port.as_ref(), "db");
    (given.frame[42..].to_vec(), given.addresses)
}

/// The answer that a guest gets about `asked` by a resolver with these records: code, count of records, addresses of its port.
fn told(asked: (&str, u16), code: u16, answers: &[Vec<u8>]) -> (u8, u16, Vec<String>) {
    let mut responder = forwarding();
    let question = forwarded(&mut responder, asked.0, asked.1);
    let (answer, addresses) = heard(&mut responder, &question, &message(&question, code, answers, &[]));
    let count = u16::from_be_bytes([answer[6], answer[7]]);
    (answer[3] & 0xf, count, addresses.into_iter().map(|(address, _)| address.to_string()).collect())
}

#[test]
fn an_answer_has_the_letters_of_its_question_and_its_addresses() {
    let mut responder = forwarding();
    let question = forwarded(&mut responder, "aPi.Example.org", A);
    assert_eq!(question.bytes, [&b"\x03aPi\x07Example\x03org\0"[..], &[0, 1, 0, 1]].concat());
    let answers = [record(&ASKED, A, 300, &[192, 0, 2, 7]), record(&ASKED, A, 1 << 31, &[192, 0, 2, 8])];
    let (answer, addresses) = heard(&mut responder, &question, &message(&question, 0, &answers, &[]));
    // Response, recursion desired and available; one question, two answers.
    assert_eq!(answer[..12], [0xca, 0xfe, 0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
    assert!(answer[12..].starts_with(&question.bytes));
    let second = [&ASKED[..], &[0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 192, 0, 2, 8]].concat();
    assert!(answer.ends_with(&second), "a TTL with the highest bit is 0 (RFC 2181)");
    assert_eq!(addresses, [(ip("192.0.2.7"), 300), (ip("192.0.2.8"), 1 << 31)]);
    assert!(responder.hear(question.id, Some(&answer), NOW).is_none(), "once");
    assert!(responder.hear(99, Some(&answer), NOW).is_none(), "nobody asked");
}

#[test]
fn aliases_are_followed_and_records_of_other_names_left_out() {
    let (cdn, far) = (name("cdn.example.net"), name("far.example.net"));
    let answers = [
        record(&name("bank.example.com"), A, 60, &[198, 51, 100, 1]),
        record(&ASKED, CNAME, 60, &cdn),
        record(&cdn, CNAME, 60, &far),
        record(&far, A, 60, &[192, 0, 2, 7]),
        record(&cdn, A, 60, &[192, 0, 2, 8]),
        record(&ASKED, A, 60, &[192, 0, 2, 9]),
        record(&far, AAAA, 60, &[0x20; 16]),
    ];
    assert_eq!(told(("a.example.org", A), 0, &answers), (0, 3, vec!["192.0.2.7".into()]));
    assert_eq!(told(("a.example.org", CNAME), 0, &answers), (0, 1, vec![]), "asked for, none is followed");
    // Loops, and chains that are too long.
    let looped = [record(&ASKED, CNAME, 60, &cdn), record(&cdn, CNAME, 60, &name("a.example.org"))];
    assert_eq!(told(("a.example.org", A), 0, &looped), (2, 0, vec![]));
    assert_eq!(told(("a.example.org", A), 0, &[record(&ASKED, CNAME, 60, &ASKED)]), (2, 0, vec![]));
    let step = |n: u32| record(&name(&format!("n{n}.example.org")), CNAME, 60, &name(&format!("n{}.example.org", n + 1)));
    let chain: Vec<Vec<u8>> = (0..200).map(step).collect();
    assert_eq!(told(("n0.example.org", A), 0, &chain), (2, 0, vec![]));
    let end = [&chain[..10], &[record(&name("n10.example.org"), A, 60, &[192, 0, 2, 7])]].concat();
    assert_eq!(told(("n0.example.org", A), 0, &end), (0, 11, vec!["192.0.2.7".into()]));
}

/// An address of the segment is another guest's, and those of this host and its links are no machine outside (DNS rebinding).
#[test]
fn addresses_that_no_name_outside_has_are_left_out() {
    let a = |address: [u8; 4]| record(&ASKED, A, 60, &address);
    let inside = [[10, 0, 0, 5], [127, 0, 0, 1], [0, 0, 0, 0], [0, 1, 2, 3], [169, 254, 169, 254], [224, 0, 0, 1], [255; 4]];
    let answers: Vec<Vec<u8>> = inside.into_iter().map(a).chain([a([10, 0, 1, 5])]).collect();
    assert_eq!(told(("a.example.org", A), 0, &answers), (0, 1, vec!["10.0.1.5".into()]));
    let aaaa = |text: &str| record(&ASKED, AAAA, 60, &text.parse::<Ipv6Addr>().unwrap().octets());
    let inside = ["fd00::5", "::1", "::", "fe80::1", "ff02::1", "::ffff:10.0.0.5", "::10.0.0.5"];
    let answers: Vec<Vec<u8>> = inside.into_iter().chain(["2001:db8::7"]).map(aaaa).collect();
    assert_eq!(told(("a.example.org", AAAA), 0, &answers), (0, 1, vec!["2001:db8::7".into()]));
    assert_eq!(told(("a.example.org", A), 0, &[record(&ASKED, A, 60, &[192, 0, 2])]), (0, 0, vec![]), "three bytes");
}

#[test]
fn a_thousand_addresses_become_those_that_are_told() {
    let answers: Vec<Vec<u8>> = (0..1000_u16).map(|n| record(&ASKED, A, 60, &[198, 18, (n >> 8) as u8, n as u8])).collect();
    let mut responder = forwarding();
    let small = forwarded(&mut responder, "a.example.org", A);
    let (answer, addresses) = heard(&mut responder, &small, &message(&small, 0, &answers, &[]));
    assert_eq!((answer[2] & 2, answer[7], addresses.len()), (2, 0, 0), "it does not fit 512 bytes, so it is truncated");
    assert_eq!(send(&mut responder, "db", 5353, &with_additional(query("a.example.org", A), &opt(0, 0, &[]))), None);
    let large = responder.take_questions().remove(0);
    let (answer, addresses) = heard(&mut responder, &large, &message(&large, 0, &answers, &[]));
    assert_eq!((answer[2] & 2, answer[7], addresses.len()), (0, 32, 32));
}

#[test]
fn services_are_told_with_the_addresses_of_their_hints() {
    let hint = |key: u8, value: &[u8]| [&[0, key, 0, value.len() as u8][..], value].concat();
    let service =
        |priority: u8, target: &[u8], params: &[u8]| record(&ASKED, HTTPS, 60, &[&[0, priority][..], target, params].concat());
    let six = "2001:db8::7".parse::<Ipv6Addr>().unwrap().octets();
    let params = [hint(1, b"\x02h2"), hint(4, &[192, 0, 2, 7, 192, 0, 2, 8]), hint(6, &six)].concat();
    let wanted = vec!["192.0.2.7".to_owned(), "192.0.2.8".into(), "2001:db8::7".into()];
    assert_eq!(told(("a.example.org", HTTPS), 0, &[service(1, &[0], &params)]), (0, 1, wanted));
    for bad in [
        service(0, &name("b.example.org"), &[]),
        service(1, &name("b.example.org"), &[]),
        service(1, &[0], &hint(4, &[192, 0, 2])),
        service(1, &[0], &hint(4, &[10, 0, 0, 5])),
        service(1, &[0], &[0, 4, 0, 9, 1]),
    ] {
        assert_eq!(told(("a.example.org", HTTPS), 0, &[bad]), (0, 0, vec![]));
    }
}

#[test]
fn names_in_data_are_written_without_pointers_and_negative_answers_have_their_zone() {
    let mut responder = forwarding();
    let question = forwarded(&mut responder, "a.example.org", MX);
    let mx = record(&ASKED, MX, 60, &[0, 10, 2, b'm', b'x', 0xc0, 14]);
    let (answer, _) = heard(&mut responder, &question, &message(&question, 0, &[mx], &[]));
    assert!(answer.ends_with(&[&[0, 10][..], &name("mx.example.org")].concat()));
    let soa = |owner: &[u8]| record(owner, SOA, 90_000, &[&name("ns.example.org")[..], &[0xc0, 14], &[9; 20]].concat());
    for (code, owner, has) in [(3, "example.org", 1), (0, "a.example.org", 1), (3, "b.example.org", 0), (3, "xample.org", 0)] {
        let question = forwarded(&mut responder, "a.example.org", A);
        let (answer, _) = heard(&mut responder, &question, &message(&question, code, &[], &[soa(&name(owner))]));
        assert_eq!((answer[3] & 0xf, answer[9]), (code as u8, has), "{owner}");
        if has == 1 {
            let data = [&name("ns.example.org")[..], &name("example.org"), &[9; 20]].concat();
            assert!(answer.ends_with(&data));
            let at = answer.len() - data.len() - 6;
            assert_eq!(answer[at..at + 4], 86_400_u32.to_be_bytes(), "a day at most");
        }
    }
}

/// A change of a message.
type Change = Box<dyn Fn(&mut Vec<u8>)>;

#[test]
fn messages_that_are_malformed_or_of_another_question_are_failures() {
    let good = |question: &Question| message(question, 0, &[record(&ASKED, A, 60, &[192, 0, 2, 7])], &[]);
    let mut cases: Vec<Change> = vec![
        Box::new(|message| message[14] ^= 0x20),
        Box::new(|message| message[2] &= 0x7f),
        Box::new(|message| message[2] |= 2),
        Box::new(|message| message[3] |= 2),
        Box::new(|message| message[5] = 0),
        Box::new(|message| message[7] = 2),
        Box::new(|message| message.truncate(11)),
    ];
    // Each pointer of the record: to itself, ahead, and to the one before.
    for to in [32_u8, 33, 255] {
        cases.push(Box::new(move |message| message[33] = to));
    }
    for change in cases {
        let mut responder = forwarding();
        let question = forwarded(&mut responder, "aa.example.org", A);
        let mut message = good(&question);
        assert_eq!(message[32..34], [0xc0, 12]);
        change(&mut message);
        let (answer, addresses) = heard(&mut responder, &question, &message);
        assert_eq!((answer[3] & 0xf, answer[7], addresses.len()), (2, 0, 0), "{message:02x?}");
    }
    let mut responder = forwarding();
    let question = forwarded(&mut responder, "a.example.org", A);
    assert_eq!(responder.hear(question.id, None, NOW).unwrap().frame[45] & 0xf, 2, "no resolver answers");
}

#[test]
fn names_that_rules_refuse_are_asked_of_no_resolver_and_told() {
    let refused = Arc::new(Mutex::new(Vec::new()));
    for (tells_refusal, code) in [(false, 3), (true, 5)] {
        let mut responder = Responder::new(Settings { forwards: true, tells_refusal, ..settings() });
        responder.set_port("db", PortAddresses::default(), NOW);
        responder.resolve_by(Rules(Arc::clone(&refused)));
        let answer = send(&mut responder, "db", 5353, &query("Evil.example.com", A)).unwrap();
        assert_eq!((answer[3] & 0xf, answer[7]), (code, 0));
        assert!(responder.take_questions().is_empty());
        assert_eq!(std::mem::take(&mut *refused.lock().unwrap()), [("db".into(), "evil.example.com".into())]);
        forwarded(&mut responder, "good.example.org", A);
        // Another name in the wire's form: one label "x.example", which is no label of a host.
        let dotted = [&query("a.org", A)[..12], &b"\x09x.example\x03org\0"[..], &[0, 1, 0, 1]].concat();
        assert_eq!(send(&mut responder, "db", 5353, &dotted).unwrap()[3] & 0xf, 3);
        assert!(responder.take_questions().is_empty() && refused.lock().unwrap().is_empty());
    }
}

#[test]
fn no_resolver_is_asked_for_names_of_this_host_nor_for_transfers() {
    let mut responder = forwarding();
    for (name, kind, code) in [
        ("localhost", A, 3),
        ("printer.local", A, 3),
        ("a.onion", A, 3),
        ("single", A, 3),
        ("a.example.org", 255, 5),
        ("a.example.org", 252, 5),
        ("a.example.org", 10, 5),
        ("gone.lan", A, 3),
    ] {
        assert_eq!(send(&mut responder, "db", 5353, &query(name, kind)).unwrap()[3] & 0xf, code, "{name} {kind}");
    }
    let mut iterative = query("a.example.org", A);
    iterative[2] = 0;
    assert_eq!(send(&mut responder, "db", 5353, &iterative).unwrap()[3] & 0xf, 5, "no recursion is desired");
    // Answers, also to the question that another guest asked.
    forwarded(&mut responder, "b.example.org", A);
    let mut answer = query("b.example.org", A);
    answer[2] |= 0x80;
    assert_eq!(send(&mut responder, "web", 53, &answer), None);
    assert!(responder.take_questions().is_empty());
}

/// Ten thousand names of one guest: its own wait for each other, and another's do not.
#[test]
fn a_flood_of_one_guest_costs_no_other_an_answer() {
    let mut responder = forwarding();
    let mut failures = 0;
    for n in 0..10_000_u16 {
        let answer = send(&mut responder, "web", n.max(1024), &query(&format!("n{n}.example.org"), A));
        failures += usize::from(answer.is_some_and(|answer| answer[3] & 0xf == 2));
    }
    assert_eq!((responder.take_questions().len(), failures), (32, 10_000 - 32));
    let question = forwarded(&mut responder, "a.example.org", A);
    let (_, addresses) = heard(&mut responder, &question, &message(&question, 0, &[record(&ASKED, A, 60, &[192, 0, 2, 7])], &[]));
    assert_eq!(addresses.len(), 1);
    // A repeated question waits as the first one.
    forwarded(&mut responder, "b.example.org", A);
    assert_eq!(send(&mut responder, "db", 5353, &query("b.example.org", A)), None);
    assert!(responder.take_questions().is_empty());
    // Of many guests, one with the most gives way.
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    names.iter().for_each(|port| responder.set_port(port, PortAddresses::default(), NOW));
    for port in &names {
        (0..20).for_each(|n| {
            assert_eq!(send(&mut responder, port, 2000 + n, &query(&format!("n{n}.example.org"), A)), None);
        });
    }
    assert!(responder.take_questions().len() == 800 && responder.take_displaced().iter().all(|given| given.addresses.is_empty()));
    assert!(responder.hear_end(NOW).is_empty() && responder.take_questions().len() == 512, "asked of the next forwarder");
    assert_eq!(responder.hear_end(NOW).len(), 512, "all that wait have an answer when that ends, too");
    assert!(responder.hear_end(NOW).is_empty());
}

#[test]
fn a_question_by_tcp_has_an_answer_of_many_segments() {
    let mut responder = forwarding();
    let mut client = TcpClient::open(&mut responder, 4000);
    let asked = with_length(query("a.example.org", TXT));
    assert!(responder.answer(&client.frame(24, &[&asked[..], &asked].concat()), "db", NOW).is_none(), "not acknowledged");
    let question = responder.take_questions().remove(0);
    // The client repeats what is not acknowledged.
    assert!(responder.answer(&client.frame(24, &asked), "db", NOW).is_none() && responder.take_questions().is_empty());
    let texts: Vec<Vec<u8>> = (0..12).map(|n| record(&ASKED, TXT, 60, &[&[200, n][..], &[b'x'; 199]].concat())).collect();
    let given = responder.hear(question.id, Some(&message(&question, 0, &texts, &[])), NOW).unwrap();
    client.next = client.next.wrapping_add(2 * asked.len() as u32);
    let mut stream = Vec::new();
    let mut take = |client: &mut TcpClient, frame: &[u8]| {
        assert!(has_complete_checksum(frame));
        let packet = wire::ipv4(&frame[14..]).unwrap();
        let segment = wire::tcp(packet.payload).unwrap();
        assert_eq!((segment.acknowledged, segment.sequence), (client.next, client.heard));
        client.heard = client.heard.wrapping_add(segment.payload.len() as u32);
        stream.extend(segment.payload);
        stream.len()
    };
    take(&mut client, &given.frame);
    while let Some(frame) = responder.answer(&client.frame(16, &[]), "db", NOW) {
        take(&mut client, &frame);
    }
    let length = usize::from(u16::from_be_bytes([stream[0], stream[1]]));
    assert!(length > 2400 && stream.len() == 2 + length && stream[9] == 12, "{length}");
    // The second query was asked with the answer to the first, and its client has gone.
    assert_eq!(responder.take_questions().len(), 1);
    responder.remove_port("db", NOW);
    assert!(responder.hear_end(NOW).is_empty() && responder.take_questions().is_empty());
}

/// RFC 2132, section 3.8: servers in the order of preference. Where rules limit names, no guest is to ask another server.
#[test]
fn guests_are_told_of_the_resolvers_last_unless_rules_limit_names() {
    struct Rules(Arc<AtomicBool>);
    impl NamePolicy for Rules {
        fn admit(&self, _port: &str, _name: &str) -> Admission {
            Admission::Ask
        }

        fn limits(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }
    let limits = Arc::new(AtomicBool::new(false));
    let asked = vec![ip("192.0.2.53"), ip("2001:db8::53")];
    let mut responder = Responder::new(Settings { asked, forwards: true, ..settings() });
    responder.set_port("web", PortAddresses::default(), NOW);
    responder.resolve_by(Rules(Arc::clone(&limits)));
    for (limited, servers) in
        [(false, &[10, 0, 0, 1, 192, 0, 2, 53][..]), (true, &[10, 0, 0, 1]), (false, &[10, 0, 0, 1, 192, 0, 2, 53])]
    {
        limits.store(limited, Ordering::Relaxed);
        let (_, options) = dhcp_reply(&responder.answer(&dhcp(1, [0; 4], &[53, 1, 1]), "web", NOW).unwrap());
        assert_eq!(options[&6], servers, "limited: {limited}");
    }
}
