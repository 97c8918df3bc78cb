//! The exchange against frames that are built twice: with the addresses inside, and with those outside; every checksum is summed anew.

use memlane_model::addresses::Inside;

use super::*;
use crate::frame::START;

const INNER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUTER: [u8; 6] = [2, 0, 0, 0, 0x10, 7];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn twin() -> Twin {
    let ips = |list: [&str; 3]| list.map(|ip| ip.parse().unwrap()).to_vec();
    let inside = Inside { mac: Some(MacAddress::new(INNER)), addresses: ips(["10.0.0.5", "fd00::5", "10.1.0.5"]) };
    let limits =
        PortLimits { inside: Some(inside), addresses: ips(["10.0.0.207", "10.1.0.207", "fd00::c0:7"]), ..PortLimits::default() };
    Twin::of(&limits, MacAddress::new(OUTER)).unwrap()
}

/// The sum of the 16-bit words of `bytes`, added up slowly (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A host: MAC address, and last bytes of its IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The guest, as it knows itself.
    Inside,
    /// The guest, as others know it.
    Outside,
    Peer,
}

impl Who {
    fn exchanged(self) -> Self {
        match self {
            Self::Inside => Self::Outside,
            Self::Outside => Self::Inside,
            Self::Peer => Self::Peer,
        }
    }

    fn mac(self) -> [u8; 6] {
        match self {
            Self::Inside => INNER,
            Self::Outside => OUTER,
            Self::Peer => PEER,
        }
    }

    fn v4(self) -> [u8; 4] {
        match self {
            Self::Inside => [10, 0, 0, 5],
            Self::Outside => [10, 0, 0, 207],
            Self::Peer => [10, 0, 0, 9],
        }
    }

    fn v6(self) -> [u8; 16] {
        match self {
            Self::Inside => "fd00::5".parse::<Ipv6Addr>().unwrap().octets(),
            Self::Outside => "fd00::c0:7".parse::<Ipv6Addr>().unwrap().octets(),
            Self::Peer => "fd00::9".parse::<Ipv6Addr>().unwrap().octets(),
        }
    }

    fn local(self) -> [u8; 16] {
        link_local(MacAddress::new(self.mac())).octets()
    }
}

/// A message behind an IP header.
#[derive(Clone, Debug)]
enum Upper4 {
    Tcp(Vec<u8>),
    /// With or without a checksum.
    Udp(bool, Vec<u8>),
    /// An echo request.
    Ping(Vec<u8>),
    /// An error that quotes a packet between two others.
    Error(Who, Who, Box<Upper4>),
}

/// How a frame is built.
#[derive(Clone, Debug)]
struct Plan {
    is_v6: bool,
    tags: usize,
    /// Bytes of options or extension headers, of which the last is none that matters.
    extra: usize,
    from: Who,
    to: Who,
    upper: Upper4,
    /// The checksum is left to the switch.
    is_partial: bool,
}

/// `message` of `protocol` with a checksum at `field`; `pseudo` is the pseudo-header's addresses.
fn summed(message: Vec<u8>, protocol: u8, field: usize, pseudo: &[u8], is_partial: bool) -> Vec<u8> {
    let mut message = message;
    let length = (message.len() as u32).to_be_bytes();
    let pseudo = sum(&[pseudo, &length, &[0, 0, 0, protocol]].concat());
    message[field..field + 2].fill(0);
    let all = !sum(&[&pseudo.to_be_bytes()[..], &message].concat());
    let value = if is_partial { pseudo } else { all };
    // RFC 768.
    let value = if protocol == UDP && value == 0 { 0xffff } else { value };
    message[field..field + 2].copy_from_slice(&value.to_be_bytes());
    message
}

impl Upper4 {
    /// The message, its protocol, and the place of its checksum, if it has a pseudo-header.
    fn bytes(&self, is_v6: bool, pseudo: &[u8], is_partial: bool, change: fn(Who) -> Who) -> (Vec<u8>, u8, Option<usize>) {
        match self {
            Self::Tcp(payload) => {
                let header = [0x9c, 0x40, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
                (summed([&header[..], payload].concat(), TCP, 16, pseudo, is_partial), TCP, Some(16))
            }
            Self::Udp(has_checksum, payload) => {
                let length = (8 + payload.len() as u16).to_be_bytes();
                let header = [0x9c, 0x41, 0, 53, length[0], length[1], 0, 0];
                let mut message = summed([&header[..], payload].concat(), UDP, 6, pseudo, is_partial);
                if !has_checksum {
                    message[6..8].fill(0);
                }
                (message, UDP, Some(6))
            }
            Self::Ping(payload) => {
                let kind = if is_v6 { 128 } else { 8 };
                icmp([&[kind, 0, 0, 0, 0, 1, 0, 2][..], payload].concat(), is_v6, pseudo)
            }
            Self::Error(from, to, upper) => {
                let quoted = Plan { is_v6, tags: 0, extra: 0, from: *from, to: *to, upper: (**upper).clone(), is_partial: false };
                let kind = if is_v6 { 1 } else { 3 };
                icmp([&[kind, 1, 0, 0, 0, 0, 0, 0][..], &quoted.packet(change)].concat(), is_v6, pseudo)
            }
        }
    }
}

fn icmp(message: Vec<u8>, is_v6: bool, pseudo: &[u8]) -> (Vec<u8>, u8, Option<usize>) {
    if is_v6 {
        return (summed(message, ICMPV6, 2, pseudo, false), ICMPV6, None);
    }
    let mut message = message;
    let value = !sum(&message);
    message[2..4].copy_from_slice(&value.to_be_bytes());
    (message, ICMP, None)
}

impl Plan {
    /// The IP packet.
    fn packet(&self, change: fn(Who) -> Who) -> Vec<u8> {
        let (from, to) = (change(self.from), change(self.to));
        if self.is_v6 {
            let pseudo = [from.v6(), to.v6()].concat();
            let (message, protocol, _) = self.upper.bytes(true, &pseudo, self.is_partial, change);
            let extra = 8 * (self.extra / 8);
            let options =
                if extra > 0 { [&[protocol, (extra / 8 - 1) as u8][..], &vec![0; extra - 2]].concat() } else { Vec::new() };
            let length = ((message.len() + extra) as u16).to_be_bytes();
            let next = if extra > 0 { 60 } else { protocol };
            return [&[0x60, 0, 0, 0, length[0], length[1], next, 64][..], &pseudo, &options, &message].concat();
        }
        let pseudo = [from.v4(), to.v4()].concat();
        let (message, protocol, _) = self.upper.bytes(false, &pseudo, self.is_partial, change);
        let options = vec![1; self.extra / 4 * 4];
        let length = ((20 + options.len() + message.len()) as u16).to_be_bytes();
        let first = 0x45 + (options.len() / 4) as u8;
        let mut header = [&[first, 0, length[0], length[1], 0, 7, 0x40, 0, 64, protocol, 0, 0][..], &pseudo, &options].concat();
        let value = !sum(&header);
        header[10..12].copy_from_slice(&value.to_be_bytes());
        [header, message].concat()
    }

    /// The frame and its virtio-net header.
    fn frame(&self, change: fn(Who) -> Who) -> (Vec<u8>, NetHeader) {
        let tags = [0x81, 0, 0, 7].repeat(self.tags);
        let kind = if self.is_v6 { TYPE_IPV6 } else { TYPE_IPV4 };
        let (from, to) = (change(self.from), change(self.to));
        let packet = self.packet(change);
        let frame = [&to.mac()[..], &from.mac(), &tags, &kind.to_be_bytes(), &packet].concat();
        let extra = if self.is_v6 { 40 + self.extra / 8 * 8 } else { 20 + self.extra / 4 * 4 };
        let field = self.upper.bytes(self.is_v6, &[], false, change).2;
        let header = field
            .filter(|_| self.is_partial)
            .map(|field| NetHeader::partial_checksum((14 + tags.len() + extra) as u16, field as u16));
        (frame, header.unwrap_or_default())
    }
}

/// Exchanges the addresses of a frame of which so many bytes were copied.
fn exchange(twin: &Twin, frame: &[u8], header: NetHeader) -> Result<Vec<u8>, Hidden> {
    let mut changed = frame.to_vec();
    let copied = frame.len().min(START - 4);
    twin.exchange_in(&mut changed[..copied], header, frame.len())?;
    Ok(changed)
}

fn same(who: Who) -> Who {
    who
}

/// Cases by numbers, so that any of them is a case.
fn plan(numbers: [u8; 8], payload: Vec<u8>) -> Plan {
    let who = |number: u8| [Who::Inside, Who::Outside, Who::Peer][usize::from(number % 3)];
    let is_partial = numbers[5] % 2 == 1;
    let simple = |number: u8, payload: Vec<u8>| match number % 3 {
        0 => Upper4::Tcp(payload),
        1 => Upper4::Udp(is_partial || number < 128, payload),
        _ => Upper4::Ping(payload),
    };
    let upper = if numbers[6].is_multiple_of(4) {
        let quoted = payload[..payload.len().min(20)].to_vec();
        Upper4::Error(who(numbers[6] / 4), who(numbers[6] / 12), Box::new(simple(numbers[7], quoted)))
    } else {
        simple(numbers[7], payload)
    };
    let extra = usize::from(numbers[2]) % 41;
    let extra = if matches!(upper, Upper4::Error(..)) { 0 } else { extra };
    Plan {
        is_v6: numbers[0] % 2 == 1,
        tags: usize::from(numbers[1]) % 3,
        extra,
        from: who(numbers[3]),
        to: who(numbers[4]),
        upper,
        is_partial,
    }
}

/// Every checksum of the exchanged frame is the one that a full sum yields, and the other way round.
#[test]
fn checksums_by_increment_are_those_of_a_full_sum() {
    let twin = twin();
    bolero::check!().with_type::<([u8; 8], Vec<u8>)>().cloned().for_each(|(numbers, payload)| {
        let plan = plan(numbers, payload);
        let ((inner, header), (outer, _)) = (plan.frame(same), plan.frame(Who::exchanged));
        assert_eq!(exchange(&twin, &inner, header), Ok(outer.clone()), "{plan:?}");
        assert_eq!(exchange(&twin, &outer, header), Ok(inner), "{plan:?}");
    });
}

/// Of any bytes, a second exchange restores all but the sign of a zero in a sum (RFC 1624, section 3).
#[test]
fn an_exchange_is_its_own_inverse() {
    let twin = twin();
    bolero::check!().with_type::<(Vec<u8>, u8, [u8; 12], u8)>().cloned().for_each(|(bytes, kind, header, place)| {
        let mut frame = bytes;
        // Most frames are of a protocol whose addresses are exchanged.
        if frame.len() > 60 {
            frame[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]][usize::from(kind % 4)]);
            frame[14] = [0x45, 0x60, 0, 0][usize::from(kind % 4)];
            frame[if kind % 4 == 0 { 23 } else { 20 }] = [6, 17, 1, 58, 43, 44, 0][usize::from(kind / 4 % 7)];
            let at = 14 + usize::from(place) % 40;
            frame[at..at + 4].copy_from_slice(&[10, 0, 0, 5]);
        }
        let header = NetHeader::from_bytes(header);
        let Ok(once) = exchange(&twin, &frame, header) else { return };
        let twice = exchange(&twin, &once, header).unwrap();
        for (at, (was, is)) in frame.iter().zip(&twice).enumerate() {
            assert!(was == is || matches!((was, is), (0, 0xff) | (0xff, 0)), "byte {at} of {frame:02x?}: {twice:02x?}");
        }
    });
}

/// The example of RFC 1624, section 4: a checksum of 0xdd2f, a word that changes from 0x5555 to 0x3285.
#[test]
fn the_example_of_the_standard() {
    let change = Change::between(&[0x55, 0x55], &[0x32, 0x85]);
    assert_eq!(!change.of_sum(!0xdd2f), 0x0000);
}

/// ARP (RFC 826), by hand: a probe, an announcement, and a reply to the guest.
#[test]
fn arp_tells_the_addresses_outside() {
    let arp = |operation: u8, sender: (Who, bool), target: (Who, bool)| {
        let pair =
            |(who, has_mac): (Who, bool), ip: [u8; 4]| [if has_mac { who.mac() } else { [0; 6] }.to_vec(), ip.to_vec()].concat();
        [
            &[0xff; 6][..],
            &sender.0.mac(),
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation],
            &pair(sender, sender.0.v4()),
            &pair(target, target.0.v4()),
        ]
        .concat()
    };
    for (operation, sender, target) in [
        (1, (Who::Inside, true), (Who::Peer, false)),
        (1, (Who::Inside, true), (Who::Inside, false)),
        (2, (Who::Peer, true), (Who::Inside, true)),
    ] {
        let change = |(who, has_mac): (Who, bool)| (who.exchanged(), has_mac);
        let (inner, outer) = (arp(operation, sender, target), arp(operation, change(sender), change(target)));
        assert_eq!(exchange(&twin(), &inner, NetHeader::default()), Ok(outer));
    }
    let other = [&[0xff; 6][..], &INNER, &[8, 6, 0, 6, 8, 0, 6, 4, 0, 1], &INNER, &[10, 0, 0, 5], &[0; 10]].concat();
    let changed = exchange(&twin(), &other, NetHeader::default()).unwrap();
    assert_eq!((&changed[6..12], &changed[12..]), (&OUTER[..], &other[12..]), "other hardware than Ethernet");
}

/// A frame of ICMPv6 from `source` to `destination`, with a right checksum.
fn icmp6(macs: [[u8; 6]; 2], ips: [[u8; 16]; 2], hops: &[u8], message: &[u8]) -> Vec<u8> {
    let pseudo = ips.concat();
    let message = summed(message.to_vec(), ICMPV6, 2, &pseudo, false);
    let length = ((hops.len() + message.len()) as u16).to_be_bytes();
    let next = if hops.is_empty() { ICMPV6 } else { 0 };
    [&macs[1][..], &macs[0], &[0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], next, 255], &pseudo, hops, &message].concat()
}

fn group_mac(group: [u8; 16]) -> [u8; 6] {
    let [.., a, b, c, d] = group;
    [0x33, 0x33, a, b, c, d]
}

/// Duplicate address detection, address resolution and its answers (RFC 4861), with the solicited-node groups.
#[test]
fn neighbour_discovery_tells_the_addresses_outside() {
    let group = |ip: [u8; 16]| solicited_node(ip.into()).octets();
    let solicit = |from: [u8; 16], mac: [u8; 6], target: [u8; 16], has_link: bool| {
        let link = if has_link { [&[1, 1][..], &mac].concat() } else { Vec::new() };
        let to = group(target);
        icmp6([mac, group_mac(to)], [from, to], &[], &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target, &link].concat())
    };
    let advertise = |who: Who, ip: [u8; 16]| {
        icmp6(
            [who.mac(), PEER],
            [ip, Who::Peer.v6()],
            &[],
            &[&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &ip, &[2, 1], &who.mac()].concat(),
        )
    };
    let pairs = [
        (solicit([0; 16], INNER, Who::Inside.v6(), false), solicit([0; 16], OUTER, Who::Outside.v6(), false)),
        (solicit([0; 16], INNER, Who::Inside.local(), false), solicit([0; 16], OUTER, Who::Outside.local(), false)),
        (solicit(Who::Inside.v6(), INNER, Who::Peer.v6(), true), solicit(Who::Outside.v6(), OUTER, Who::Peer.v6(), true)),
        (solicit(Who::Peer.v6(), PEER, Who::Inside.v6(), true), solicit(Who::Peer.v6(), PEER, Who::Outside.v6(), true)),
        (advertise(Who::Inside, Who::Inside.v6()), advertise(Who::Outside, Who::Outside.v6())),
        (advertise(Who::Inside, Who::Inside.local()), advertise(Who::Outside, Who::Outside.local())),
    ];
    for (inner, outer) in pairs {
        assert_eq!(exchange(&twin(), &inner, NetHeader::default()), Ok(outer.clone()));
        assert_eq!(exchange(&twin(), &outer, NetHeader::default()), Ok(inner));
    }
}

/// Reports of MLD (RFC 3810) name the solicited-node groups outside, behind the router alert.
#[test]
fn reports_name_the_groups_outside() {
    let router_alert = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    let routers = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16];
    let other = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb];
    let report = |who: Who, groups: [[u8; 16]; 3]| {
        let records: Vec<u8> = groups.iter().flat_map(|group| [&[4, 0, 0, 0][..], group].concat()).collect();
        icmp6(
            [who.mac(), group_mac(routers)],
            [who.local(), routers],
            &router_alert,
            &[&[143, 0, 0, 0, 0, 0, 0, 3][..], &records].concat(),
        )
    };
    let groups = |who: Who| [solicited_node(who.v6().into()).octets(), other, solicited_node(who.local().into()).octets()];
    let (inner, outer) = (report(Who::Inside, groups(Who::Inside)), report(Who::Outside, groups(Who::Outside)));
    assert_eq!(inner.len(), 130, "all of it is copied");
    assert_eq!(exchange(&twin(), &inner, NetHeader::default()), Ok(outer));
}

/// The client's addresses of DHCP (RFC 2131), which lie in the copied bytes.
#[test]
fn dhcp_has_the_addresses_outside() {
    let dhcp = |who: Who, ports: [u8; 2], is_partial: bool| {
        let mut message = vec![1, 1, 6, 0, 9, 9, 9, 9, 0, 0, 0, 0];
        message.extend([who.v4(), who.v4(), [0; 4], [0; 4]].concat());
        message.extend(who.mac());
        message.extend([0; 300]);
        let length = (8 + message.len() as u16).to_be_bytes();
        let udp = [&[0, ports[0], 0, ports[1], length[0], length[1], 0, 0][..], &message].concat();
        let ips = [who.v4(), [255; 4]].concat();
        let udp = summed(udp, UDP, 6, &ips, is_partial);
        let total = (20 + udp.len() as u16).to_be_bytes();
        let mut header = [&[0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0][..], &ips].concat();
        let value = !sum(&header);
        header[10..12].copy_from_slice(&value.to_be_bytes());
        [&[0xff; 6][..], &who.mac(), &[8, 0], &header, &udp].concat()
    };
    for (ports, is_partial) in [([68, 67], false), ([67, 68], false), ([68, 67], true)] {
        let header = if is_partial { NetHeader::partial_checksum(34, 6) } else { NetHeader::default() };
        let changed = exchange(&twin(), &dhcp(Who::Inside, ports, is_partial), header);
        assert_eq!(changed, Ok(dhcp(Who::Outside, ports, is_partial)));
    }
    let other = dhcp(Who::Inside, [68, 69], false);
    let changed = exchange(&twin(), &other, NetHeader::default()).unwrap();
    assert_eq!(changed[42..], other[42..], "another service");
}

/// A later fragment has no transport header, and its IP header is as that of others (RFC 791, RFC 8200).
#[test]
fn of_fragments_the_first_has_the_transport_header() {
    let plan = Plan {
        is_v6: false,
        tags: 0,
        extra: 0,
        from: Who::Inside,
        to: Who::Peer,
        upper: Upper4::Tcp(vec![7; 40]),
        is_partial: false,
    };
    let fragment = |frame: &[u8], word: u16| {
        let mut frame = frame.to_vec();
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        frame[24..26].fill(0);
        let value = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&value.to_be_bytes());
        frame
    };
    let (inner, outer) = (plan.frame(same).0, plan.frame(Who::exchanged).0);
    assert_eq!(exchange(&twin(), &fragment(&inner, 0x2000), NetHeader::default()), Ok(fragment(&outer, 0x2000)));
    let changed = exchange(&twin(), &fragment(&inner, 0x2064), NetHeader::default()).unwrap();
    assert_eq!((&changed[..34], &changed[34..]), (&fragment(&outer, 0x2064)[..34], &inner[34..]));
    let v6 = Plan { is_v6: true, extra: 8, ..plan };
    let as_fragment = |frame: &[u8], offset: u16| {
        let mut frame = frame.to_vec();
        frame[20] = 44;
        frame[56..58].copy_from_slice(&(offset | 1).to_be_bytes());
        frame
    };
    let (inner, outer) = (v6.frame(same).0, v6.frame(Who::exchanged).0);
    assert_eq!(exchange(&twin(), &as_fragment(&inner, 0), NetHeader::default()), Ok(as_fragment(&outer, 0)));
    let changed = exchange(&twin(), &as_fragment(&inner, 64), NetHeader::default()).unwrap();
    assert_eq!((&changed[..62], &changed[62..]), (&as_fragment(&outer, 64)[..62], &inner[62..]));
}

/// With a routing header, the pseudo-header has the last destination (RFC 8200, section 8.1).
#[test]
fn a_routed_packet_has_another_destination_in_its_sum() {
    let frame = |to: Who| {
        let last = Who::Peer.v6();
        let message = summed(vec![0; 20], TCP, 16, &[Who::Peer.v6(), last].concat(), false);
        let routing = [&[TCP, 2, 2, 1, 0, 0, 0, 0][..], &last].concat();
        [&PEER[..], &PEER, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 44, 43, 64], &Who::Peer.v6(), &to.v6(), &routing, &message].concat()
    };
    assert_eq!(exchange(&twin(), &frame(Who::Inside), NetHeader::default()), Ok(frame(Who::Outside)));
}

#[test]
fn a_frame_with_a_checksum_behind_the_copied_bytes_is_hidden() {
    let long = |extra: usize, to: Who| {
        Plan { is_v6: true, tags: 0, extra, from: Who::Peer, to, upper: Upper4::Tcp(vec![0; 10]), is_partial: false }.frame(same).0
    };
    let result = |frame: &[u8]| exchange(&twin(), frame, NetHeader::default());
    assert_eq!(result(&long(64, Who::Outside)), Ok(long(64, Who::Inside)));
    assert_eq!(result(&long(72, Who::Outside)), Err(Hidden));
    assert_eq!(result(&long(200, Who::Outside)), Err(Hidden));
    assert_eq!(result(&long(200, Who::Peer)), Ok(long(200, Who::Peer)), "nothing is exchanged");
    assert_eq!(
        result(&long(64, Who::Outside)[..20]).map(|frame| frame[12..].to_vec()),
        Ok(long(64, Who::Outside)[12..20].to_vec()),
        "it ends there"
    );
    let mut cut = long(0, Who::Outside)[..60].to_vec();
    assert_eq!(twin().exchange_in(&mut cut[..30], NetHeader::default(), 60), Err(Hidden), "of which too few bytes are copied");
}

#[test]
fn each_address_has_one_partner() {
    let twin = twin();
    let ip = |text: &str| twin.ip(text.parse().unwrap()).to_string();
    for (one, other) in [
        ("10.0.0.5", "10.0.0.207"),
        ("10.1.0.5", "10.1.0.207"),
        ("fd00::5", "fd00::c0:7"),
        ("fe80::ff:fe00:1", "fe80::ff:fe00:1007"),
    ] {
        assert_eq!((ip(one), ip(other)), (other.to_owned(), one.to_owned()));
    }
    assert_eq!(ip("10.0.0.9"), "10.0.0.9");
    assert_eq!(twin.mac(MacAddress::new(OUTER)), MacAddress::new(INNER));
    // Two addresses of one solicited-node group inside have two outside: a solicitation goes to that of its target.
    let ips = |list: [&str; 2]| list.map(|ip| ip.parse().unwrap()).to_vec();
    let inside = Inside { mac: None, addresses: ips(["fd00::5", "fd01::5"]) };
    let limits = PortLimits { inside: Some(inside), addresses: ips(["fd00::6", "fd01::7"]), ..PortLimits::default() };
    let twin = Twin::of(&limits, MacAddress::new(OUTER)).unwrap();
    for (inner, outer) in [("fd00::5", "fd00::6"), ("fd01::5", "fd01::7")] {
        let frame = |target: &str| {
            let target = target.parse::<Ipv6Addr>().unwrap();
            let to = solicited_node(target).octets();
            icmp6([PEER, group_mac(to)], [Who::Peer.v6(), to], &[], &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat())
        };
        assert_eq!(exchange(&twin, &frame(outer), NetHeader::default()), Ok(frame(inner)));
        assert_eq!(exchange(&twin, &frame(inner), NetHeader::default()), Ok(frame(outer)));
    }
}
