//! Frames of several guests, through the translation and back.

use super::*;
use memlane_dataplane::headers::number_at;
use memlane_dataplane::id::SegmentId;

use crate::offload::checksum;

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 254);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const SYN: u8 = 2;
const ACK: u8 = 16;
const FIN: u8 = 1;
const RST: u8 = 4;

fn mac(n: u8) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 1, n])
}

fn guest(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, n)
}

/// The translation on a segment with guests 1 to 9 at ports of their numbers, which know web, guest 5, by its static address.
fn nat() -> Nat {
    let segment = Segment::new(SegmentId(0), "lan", 16, 7, 8);
    for n in 1..10 {
        segment.join(PortId(n));
        segment.pin(mac(n as u8), PortId(n)).unwrap();
    }
    segment.addresses().configure(PortId(5), Some(mac(5)), Some(0), &[guest(5).into()], false);
    let forwardings = vec![
        Forwarding { is_udp: false, port: 8080, to: SocketAddrV4::new(guest(5), 80) },
        Forwarding { is_udp: true, port: FIRST_FREE, to: SocketAddrV4::new(guest(5), 53) },
    ];
    let settings = NatSettings { router: ROUTER, mac: mac(99), subnet: (Ipv4Addr::new(10, 9, 0, 0), 24), forwardings };
    of(settings, segment)
}

/// A forwarded port that would be the first of a flow.
const FIRST_FREE: u16 = flows::FIRST;

fn of(settings: NatSettings, segment: Arc<Segment>) -> Nat {
    let taken = |is_udp| settings.forwardings.iter().filter(|one| one.is_udp == is_udp).map(|one| one.port).collect();
    let tables =
        [FlowTable::new(Kind::Tcp, taken(false)), FlowTable::new(Kind::Udp, taken(true)), FlowTable::new(Kind::Icmp, vec![])];
    let members = MacPorts { table: segment.table(), second: 0 };
    Nat { settings, segment, state: Mutex::new(State { tables, resets: Vec::new(), members }) }
}

fn frame(link: (MacAddress, MacAddress), ip: (Ipv4Addr, Ipv4Addr), protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [link.1.bytes(), link.0.bytes()].concat();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 7, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(ip.0.octets());
    frame.extend(ip.1.octets());
    let sum = checksum::over(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum);
    frame.extend(payload);
    let field = match protocol {
        TCP => 34 + 16,
        UDP => 34 + 6,
        _ => 34 + 2,
    };
    let sum = transport_sum(&frame, protocol);
    frame[field..field + 2].copy_from_slice(&sum);
    frame
}

/// The checksum over the transport, with the pseudo-header; of a good frame with its checksum, it is zero.
fn transport_sum(frame: &[u8], protocol: u8) -> [u8; 2] {
    let pseudo = [&frame[26..34], &[0, protocol], &((frame.len() - 34) as u16).to_be_bytes()].concat();
    if protocol == ICMP { checksum::over(&[&frame[34..]]) } else { checksum::over(&[&pseudo, &frame[34..]]) }
}

fn is_good(frame: &[u8]) -> bool {
    let is_zero = |sum: [u8; 2]| sum == [0, 0];
    is_zero(checksum::over(&[&frame[14..34]])) && is_zero(transport_sum(frame, frame[23]))
}

fn tcp(link: (MacAddress, MacAddress), from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 100, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    segment.extend(data);
    frame(link, (from.0, to.0), TCP, &segment)
}

fn udp(link: (MacAddress, MacAddress), from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let mut datagram = [from.1.to_be_bytes(), to.1.to_be_bytes(), (8 + data.len() as u16).to_be_bytes(), [0, 0]].concat();
    datagram.extend(data);
    frame(link, (from.0, to.0), UDP, &datagram)
}

fn echo(link: (MacAddress, MacAddress), ip: (Ipv4Addr, Ipv4Addr), kind: u8, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    frame(link, ip, ICMP, &[kind, 0, 0, 0, high, low, 0, 1, 9, 9])
}

fn to_router(n: u8) -> (MacAddress, MacAddress) {
    (mac(n), mac(99))
}

fn of_passt() -> (MacAddress, MacAddress) {
    (mac(77), MacAddress::new(INSIDE_MAC))
}

fn source(frame: &[u8]) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(*frame[26..].first_chunk::<4>().unwrap()), number_at(frame, 34).unwrap())
}

fn destination(frame: &[u8]) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(*frame[30..].first_chunk::<4>().unwrap()), number_at(frame, 36).unwrap())
}

/// Sends a frame of guest `n` out; returns it as passt sees it.
fn out(nat: &Nat, n: u8, mut frame: Vec<u8>, now: u32) -> Vec<u8> {
    assert_eq!(nat.outbound_at(&mut frame, PortId(n.into()), now), Translated::Sent);
    assert!(is_good(&frame) && frame[6..12] == INSIDE_MAC && source(&frame).0 == INSIDE);
    frame
}

#[test]
fn two_guests_with_the_same_ports_share_one_passt_and_each_gets_its_own() {
    let nat = nat();
    for protocol in [TCP, UDP] {
        let send = |n, flags, data: &[u8]| {
            let (from, to) = ((guest(n), 40000), (SERVER, 443));
            if protocol == TCP { tcp(to_router(n), from, to, flags, data) } else { udp(to_router(n), from, to, data) }
        };
        let first = [1, 2].map(|n| out(&nat, n, send(n, SYN, b""), 10));
        let ports = [&first[0], &first[1]].map(|frame| source(frame).1);
        assert_ne!(ports[0], ports[1]);
        assert!(!ports.contains(&FIRST_FREE) || protocol == TCP, "a forwarded port is no flow's");
        for (n, port) in [(1, ports[0]), (2, ports[1]), (1, ports[0])] {
            assert_eq!(source(&out(&nat, n, send(n, ACK, b"odd"), 11)), (INSIDE, port), "the flow keeps its port");
            let reply = |from| {
                let to = (INSIDE, port);
                if protocol == TCP { tcp(of_passt(), from, to, ACK, &[n]) } else { udp(of_passt(), from, to, &[n]) }
            };
            let mut frame = reply((SERVER, 443));
            assert_eq!(nat.inbound_at(&mut frame, 11), Translated::Sent);
            assert!(is_good(&frame));
            assert_eq!((destination(&frame), source(&frame)), ((guest(n), 40000), (SERVER, 443)));
            assert_eq!((frame[..6].to_vec(), frame[6..12].to_vec()), (mac(n).bytes().to_vec(), mac(99).bytes().to_vec()));
            // From another server, or another of its ports.
            for stranger in [(SERVER, 444), (Ipv4Addr::new(198, 51, 100, 8), 443)] {
                assert_eq!(nat.inbound_at(&mut reply(stranger), 11), UNKNOWN);
            }
        }
    }
}

#[test]
fn udp_without_a_checksum_stays_so() {
    let nat = nat();
    let mut frame = udp(to_router(1), (guest(1), 5000), (SERVER, 53), b"q");
    frame[40..42].copy_from_slice(&[0, 0]);
    assert_eq!(nat.outbound_at(&mut frame, PortId(1), 0), Translated::Sent);
    assert_eq!(frame[40..42], [0, 0]);
}

#[test]
fn echoes_and_errors_find_their_guest() {
    let nat = nat();
    let asked = [1, 2].map(|n| out(&nat, n, echo(to_router(n), (guest(n), SERVER), 8, 7), 0));
    for (n, asked) in [(1, &asked[0]), (2, &asked[1])] {
        let id = number_at(asked, 38).unwrap();
        let mut reply = echo(of_passt(), (SERVER, INSIDE), 0, id);
        assert_eq!(nat.inbound_at(&mut reply, 0), Translated::Sent);
        assert!(is_good(&reply) && destination(&reply).0 == guest(n) && number_at(&reply, 38) == Some(7));
    }
    let sent = out(&nat, 2, udp(to_router(2), (guest(2), 6000), (SERVER, 9), b"x"), 0);
    let quoted = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &sent[14..42]].concat();
    let mut error = frame(of_passt(), (SERVER, INSIDE), ICMP, &quoted);
    assert_eq!(nat.inbound_at(&mut error, 0), Translated::Sent);
    assert!(is_good(&error) && destination(&error).0 == guest(2));
    assert_eq!((source(&error[28..]), destination(&error[28..])), ((guest(2), 6000), (SERVER, 9)), "the quoted packet");
    assert_eq!(checksum::over(&[&error[42..62]]), [0, 0], "its header's checksum");
    let mut foreign = frame(of_passt(), (SERVER, INSIDE), ICMP, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &[0x45; 28]].concat());
    assert_eq!(nat.inbound_at(&mut foreign, 0), UNKNOWN);
}

#[test]
fn the_router_routes_to_no_guest_and_translates_nothing_hidden() {
    let nat = nat();
    let from = (guest(1), 1000);
    let refused = |mut frame: Vec<u8>| nat.outbound_at(&mut frame, PortId(1), 0) == REFUSED;
    for to in ["10.9.0.2", "10.9.0.254", "192.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0"] {
        let to = (to.parse().unwrap(), 80);
        assert!(refused(tcp(to_router(1), from, to, SYN, b"")) && refused(udp(to_router(1), from, to, b"")), "{to:?}");
    }
    assert!(refused(tcp(to_router(1), (Ipv4Addr::new(10, 8, 0, 1), 1), (SERVER, 80), SYN, b"")), "a foreign source");
    assert!(refused(tcp(to_router(1), (ROUTER, 1), (SERVER, 80), SYN, b"")), "the router's own");
    assert!(refused(tcp(to_router(1), from, (SERVER, 80), ACK, b"")), "a connection that nothing opened");
    assert!(refused(echo(to_router(1), (guest(1), SERVER), 0, 1)), "an answer that nothing asked for");
    assert!(refused(frame(to_router(1), (guest(1), SERVER), 47, &[0; 40])), "GRE");
    for (at, value) in [(20, 0x20), (21, 1)] {
        let mut fragment = udp(to_router(1), from, (SERVER, 80), b"");
        fragment[at] = value;
        assert!(refused(fragment));
    }
    let whole = tcp(to_router(1), from, (SERVER, 80), SYN, b"");
    assert!((0..whole.len()).all(|length| refused(whole[..length].to_vec())), "cut off");
    assert_eq!(nat.state().tables.iter().map(FlowTable::len).sum::<usize>(), 0);
    let mut broadcast = udp((mac(1), MacAddress::new([0xff; 6])), from, (Ipv4Addr::BROADCAST, 67), b"");
    assert_eq!(nat.outbound_at(&mut broadcast, PortId(1), 0), Translated::Ignored);
}

#[test]
fn a_forwarding_leads_to_its_guest_and_back() {
    let nat = nat();
    for (own, port) in [(TCP, (8080, 80)), (UDP, (FIRST_FREE, 53))] {
        for (remote, seen) in [((SERVER, 999), (SERVER, 999)), ((PASST, 999), (ROUTER, 999))] {
            let make =
                |link, from, to, flags| if own == TCP { tcp(link, from, to, flags, b"a") } else { udp(link, from, to, b"a") };
            let mut asked = make(of_passt(), remote, (INSIDE, port.0), SYN);
            assert_eq!(nat.inbound_at(&mut asked, 0), Translated::Sent);
            assert!(is_good(&asked) && asked[..6] == mac(5).bytes());
            assert_eq!((source(&asked), destination(&asked)), (seen, (guest(5), port.1)));
            let reply = out(&nat, 5, make(to_router(5), (guest(5), port.1), seen, SYN | ACK), 0);
            assert_eq!((source(&reply), destination(&reply)), ((INSIDE, port.0), remote));
        }
    }
    assert_eq!(nat.inbound_at(&mut tcp(of_passt(), (SERVER, 1), (INSIDE, 8081), SYN, b""), 0), UNKNOWN);
    // The guest has left.
    nat.segment.leave(PortId(5));
    assert_eq!(nat.inbound_at(&mut tcp(of_passt(), (SERVER, 1), (INSIDE, 8080), SYN, b""), 1), UNKNOWN);
}

#[test]
fn a_guest_that_left_gets_nothing_and_passt_closes_its_connection() {
    let nat = nat();
    let port = source(&out(&nat, 1, tcp(to_router(1), (guest(1), 1), (SERVER, 80), SYN, b""), 0)).1;
    let reply = || tcp(of_passt(), (SERVER, 80), (INSIDE, port), SYN | ACK, b"");
    assert_eq!(nat.inbound_at(&mut reply(), 0), Translated::Sent);
    nat.segment.leave(PortId(1));
    assert_eq!(nat.inbound_at(&mut reply(), 1), UNKNOWN);
    // The address is at another port now, with another flow.
    nat.segment.table().learn(mac(1), PortId(2), 1);
    assert_eq!(nat.inbound_at(&mut reply(), 2), UNKNOWN);
    let resets = nat.take_resets();
    assert!(resets.len() == 1 && is_good(&resets[0]) && resets[0][47] == RST);
    assert_eq!((source(&resets[0]), destination(&resets[0])), ((INSIDE, port), (SERVER, 80)));
    assert_eq!(resets[0][38..42], [0, 0, 0, 101], "behind the SYN");
}

#[test]
fn no_guest_takes_the_flows_of_another() {
    let nat = nat();
    let open = |n: u8, port: u16, now| {
        let frame = udp(to_router(n), (guest(n), port), (SERVER, 53), b"q");
        source(&out(&nat, n, frame, now)).1
    };
    let kept = open(2, 1, 0);
    for port in 1..=20000 {
        open(1, port, 1);
    }
    let held = nat.state().tables[1].len() - 1;
    assert!((4000..=usize::from(flows::MOST_FLOWS) / 2).contains(&held), "{held}");
    assert_eq!(open(2, 1, 2), kept, "the other guest's flow goes on");
    // Nine more that want all.
    for n in 3..10 {
        for port in 1..=20000 {
            open(n, port, 3);
        }
    }
    assert!(nat.state().tables[1].len() <= usize::from(flows::MOST_FLOWS));
    assert_eq!(open(2, 1, 4), kept);
    let ports: Vec<u16> = (100..100 + flows::LEAST_FLOWS as u16 - 1).map(|port| open(2, port, 5)).collect();
    let again: Vec<u16> = (100..100 + flows::LEAST_FLOWS as u16 - 1).map(|port| open(2, port, 5)).collect();
    assert_eq!(ports, again, "the least that each may have");
}

/// TCP connections in the table.
fn held(nat: &Nat) -> usize {
    nat.state().tables[0].len()
}

#[test]
fn closed_and_idle_flows_end_and_their_places_rest() {
    let nat = nat();
    let send = |n: u8, port, flags, now| out(&nat, n, tcp(to_router(n), (guest(n), port), (SERVER, 80), flags, b""), now);
    let port = source(&send(1, 1, SYN, 0)).1;
    send(1, 1, FIN | ACK, 1);
    nat.inbound_at(&mut tcp(of_passt(), (SERVER, 80), (INSIDE, port), FIN | ACK, b""), 1);
    send(1, 1, ACK, 1);
    send(2, 9, SYN, 20);
    assert_eq!((held(&nat), nat.take_resets().len()), (1, 0), "closed by both sides");
    send(2, 10, SYN, 20 + 300);
    assert_eq!((held(&nat), nat.take_resets().len()), (1, 1), "never answered");
}

#[test]
fn flows_go_on_in_another_process() {
    let nat = self::nat();
    let first = out(&nat, 1, tcp(to_router(1), (guest(1), 1), (SERVER, 80), SYN, b""), 0);
    let second = out(&nat, 2, udp(to_router(2), (guest(2), 1), (SERVER, 53), b""), 0);
    let after = self::nat();
    let saved = nat.save();
    after.restore(&saved);
    let mut reply = udp(of_passt(), (SERVER, 53), (INSIDE, source(&second).1), b"");
    assert_eq!(after.inbound(&mut reply), Translated::Sent);
    let mut frame = tcp(to_router(1), (guest(1), 1), (SERVER, 80), ACK, b"x");
    assert_eq!(after.outbound(&mut frame, PortId(1)), Translated::Sent);
    assert_eq!(source(&frame), source(&first));
    let mut other = tcp(to_router(3), (guest(3), 1), (SERVER, 80), SYN, b"");
    assert_eq!(after.outbound(&mut other, PortId(3)), Translated::Sent);
    assert_ne!(source(&other), source(&first));
    // Hostile numbers change nothing.
    let outside = |port| saved.iter().map(move |flow| SavedFlow { port, ..flow.clone() });
    let bad: Vec<_> = outside(1).chain(outside(65535)).collect();
    after.restore(&bad);
    assert!(after.save().is_empty());
}

#[test]
fn arp_asks_passt_for_the_router_alone() {
    let nat = nat();
    let arp = |operation: u8, sender: (MacAddress, Ipv4Addr), target: Ipv4Addr, to: MacAddress| {
        let mut frame = [to.bytes(), sender.0.bytes()].concat();
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend(sender.0.bytes());
        frame.extend(sender.1.octets());
        frame.extend([0; 6]);
        frame.extend(target.octets());
        frame
    };
    let all = MacAddress::new([0xff; 6]);
    let ask = |target| nat.outbound_at(&mut arp(1, (mac(1), guest(1)), target, all), PortId(1), 0);
    assert_eq!((ask(ROUTER), ask(guest(2))), (Translated::Sent, Translated::Ignored));
    let mut answer = arp(2, (mac(77), ROUTER), guest(1), mac(1));
    assert_eq!(nat.inbound_at(&mut answer, 0), Translated::Sent);
    assert!(answer[6..12] == mac(99).bytes() && answer[22..28] == mac(99).bytes());
    assert_eq!(nat.inbound_at(&mut arp(2, (mac(77), guest(2)), guest(1), mac(1)), 0), Translated::Ignored);
}
