use std::net::IpAddr;

use bolero::TypeGenerator;

use super::*;
use crate::frame::{MacAddress, START, UDP};
use crate::headers::tests::ipv6;
use crate::policy::filter::{Action, Destination, Names};
use crate::policy::gate::Gate;
use crate::policy::rules::PortRules;
use crate::table::Table;
use crate::verdict::{Decision, Epoch, FlowCache, Sender, Verdict, decide};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn rule(protocol: Option<u8>, ports: &[(u16, u16)], established: bool, action: Action) -> PolicyRule {
    let ports = ports.iter().map(|&(first, last)| PortRange { first, last }).collect();
    PolicyRule { protocol: protocol.map(Protocol), ports, established, action: Some(action), ..PolicyRule::default() }
}

/// `rule` for these destinations.
fn about(destinations: &[&str], rule: PolicyRule) -> PolicyRule {
    PolicyRule { destinations: destinations.iter().map(|text| text.parse().unwrap()).collect(), ..rule }
}

/// `packet` to `destination`.
fn to(destination: IpAddr, mut packet: Vec<u8>) -> Vec<u8> {
    match destination {
        IpAddr::V4(address) => packet[16..20].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => packet[24..40].copy_from_slice(&address.octets()),
    }
    packet
}

fn frame(kind: u16, tags: usize, packet: &[u8]) -> Vec<u8> {
    let mut bytes = [PEER, OWN].concat();
    (0..tags).for_each(|_| bytes.extend([0x81, 0, 0, 7]));
    bytes.extend(kind.to_be_bytes());
    bytes.extend(packet);
    bytes.resize(bytes.len().max(60), 0xff);
    bytes
}

/// An IPv4 packet (RFC 791) with so many words of options; `fragment` is the word with the flags and the offset.
fn ipv4(options: usize, fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (20 + 4 * options + payload.len()) as u16;
    let mut bytes = vec![0x45 + options as u8, 0];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 1]);
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([1].repeat(4 * options));
    bytes.extend(payload);
    bytes
}

/// A TCP header (RFC 9293, section 3.1).
fn tcp(port: u16, flags: u8) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![0x80, 1, high, low, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]
}

fn udp(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![0x80, 1, high, low, 0, 12, 0, 0, 1, 2, 3, 4]
}

struct World {
    table: Table,
    filter: Filter,
}

impl World {
    fn new(rules: &[PolicyRule]) -> Self {
        let table = Table::new(2, 64, 1);
        table.pin(MacAddress::new(PEER), PortId(1));
        Self { table, filter: Filter::new(rules) }
    }

    fn sender(&self) -> Sender<'_> {
        static NONE: PortRules = PortRules::NONE;
        let gate = Gate { filtered: Some(Filtered { filter: &self.filter, from: PortId(0), is_forecast: false }), ..Gate::OPEN };
        Sender { port: PortId(0), rules: &NONE, gate, is_gated: true }
    }

    fn decide(&self, frame: &[u8]) -> Decision {
        let (start, length) = start_of(frame);
        decide(Start::new(&start, length), self.sender(), |_| Some(Gate::OPEN), &self.table, 0)
    }

    fn passes(&self, frame: &[u8]) -> bool {
        let (start, length) = start_of(frame);
        let verdict = self.decide(frame).verdict;
        assert!([Verdict::To(PortId(1)), Verdict::Drop(DropReason::PolicyDenied)].contains(&verdict), "{verdict:?}");
        let filtered = Filtered { filter: &self.filter, from: PortId(0), is_forecast: false };
        let flooded = FilteredFlood::new(filtered, Start::new(&start, length), 0).passes(PortId(1));
        assert_eq!(flooded, verdict == Verdict::To(PortId(1)), "flooded frames are judged alike");
        flooded
    }
}

fn start_of(frame: &[u8]) -> ([u8; START], usize) {
    let (mut start, length) = ([0xee; START], frame.len().min(START));
    start[..length].copy_from_slice(&frame[..length]);
    (start, length)
}

#[test]
fn the_first_rule_that_matches_decides() {
    use Action::{Allow, Deny};
    let world = World::new(&[
        rule(Some(6), &[(22, 22)], false, Deny),
        rule(Some(6), &[(1, 1023), (8000, 8099)], false, Allow),
        rule(Some(6), &[], true, Allow),
        rule(Some(1), &[], false, Allow),
        rule(None, &[], false, Deny),
    ]);
    let v4 = |protocol, payload: &[u8]| frame(0x800, 0, &ipv4(0, 0x4000, protocol, payload));
    for (port, passes) in
        [(22, false), (21, true), (1023, true), (1024, false), (7999, false), (8000, true), (8099, true), (8100, false)]
    {
        assert_eq!(world.passes(&v4(6, &tcp(port, 2))), passes, "TCP {port}");
        assert_eq!(world.passes(&frame(0x86dd, 0, &ipv6(6, &tcp(port, 2)))), passes, "TCP {port} over IPv6");
        assert!(!world.passes(&v4(17, &udp(port))), "UDP {port}");
    }
    // SYN opens a connection; all but the first segment have ACK, and RST may have none (RFC 9293, section 3.10.7).
    for (flags, passes) in [(0x02, false), (0x12, true), (0x10, true), (0x18, true), (0x04, true), (0x01, false), (0, false)] {
        assert_eq!(world.passes(&v4(6, &tcp(40_000, flags))), passes, "flags {flags:#x}");
    }
    assert!(world.passes(&v4(1, &[8, 0, 0, 0, 0, 0, 0, 0])));
    assert!(!world.passes(&frame(0x88cc, 0, &[0; 46])), "no IP");
}

/// A rule that denies everything leaves address resolution: without it no rule that allows would be of use.
#[test]
fn address_resolution_passes_always() {
    let world = World::new(&[rule(None, &[], false, Action::Deny)]);
    assert!(world.passes(&frame(0x806, 0, &[0; 28])) && world.passes(&frame(0x8035, 0, &[0; 28])));
    for kind in 133..=137 {
        assert!(world.passes(&frame(0x86dd, 1, &ipv6(58, &[kind; 24]))), "ICMPv6 {kind}");
    }
    let hop_by_hop = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &[135; 24]].concat();
    assert!(world.passes(&frame(0x86dd, 0, &ipv6(0, &hop_by_hop))));
    for kind in [1, 128, 129, 132, 138] {
        assert!(!world.passes(&frame(0x86dd, 0, &ipv6(58, &[kind; 24]))), "ICMPv6 {kind}");
    }
    // RFC 6980: neighbour discovery is not fragmented.
    let fragment = [&[58, 0, 0, 1, 0, 0, 0, 9][..], &[135; 24]].concat();
    assert!(!world.passes(&frame(0x86dd, 0, &ipv6(44, &fragment))));
}

/// Destinations of IPv4 and IPv6, behind tags and extension headers, and in every fragment.
#[test]
fn rules_with_destinations_judge_every_packet_to_them() {
    use Action::{Allow, Deny};
    let inside = ["10.0.0.0/8", "fd00::/16"];
    let allow = World::new(&[about(&inside, rule(None, &[], false, Allow)), rule(None, &[], false, Deny)]);
    let deny = World::new(&[about(&inside, rule(None, &[], false, Deny))]);
    let web = World::new(&[about(&inside, rule(Some(6), &[(80, 80)], false, Allow)), rule(None, &[], false, Deny)]);
    for (address, is_inside) in [
        ("10.0.0.2", true),
        ("10.255.255.255", true),
        ("11.0.0.0", false),
        ("fd00::9", true),
        ("fd01::", false),
        ("224.0.0.251", false),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let v4 = |options, fragment, payload: &[u8]| to(address, ipv4(options, fragment, 6, payload));
        let v6 = |next, payload: &[u8]| to(address, ipv6(next, payload));
        let syn = tcp(80, 2);
        let packets = if address.is_ipv4() {
            vec![(0x800, v4(0, 0, &syn)), (0x800, v4(3, 0x2000, &syn)), (0x800, v4(0, 185, &[7; 40]))]
        } else {
            let later = [&[6, 0, 5, 0xc8, 0, 0, 0, 1][..], &[7; 40]].concat();
            let behind = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &syn].concat();
            vec![(0x86dd, v6(6, &syn)), (0x86dd, v6(60, &behind)), (0x86dd, v6(44, &later))]
        };
        for (kind, packet) in packets {
            for tags in 0..3 {
                let sent = frame(kind, tags, &packet);
                assert_eq!(allow.passes(&sent), is_inside, "{address}, {tags} tags");
                assert_eq!(deny.passes(&sent), !is_inside, "{address}, {tags} tags");
                assert_eq!(web.passes(&sent), is_inside, "a later fragment passes where its first one may: {address}");
            }
        }
        let udp = if address.is_ipv4() { (0x800, to(address, ipv4(0, 0, 17, &udp(80)))) } else { (0x86dd, v6(17, &udp(80))) };
        assert!(!web.passes(&frame(udp.0, 0, &udp.1)), "{address}");
    }
    assert!(!allow.passes(&frame(0x88cc, 0, &[0; 46])) && deny.passes(&frame(0x88cc, 0, &[0; 46])), "no IP");
    assert!(allow.passes(&frame(0x806, 0, &[0; 28])) && deny.passes(&frame(0x806, 0, &[0; 28])), "ARP");
}

/// A source route (RFC 791, section 3.1; RFC 8200, section 4.4) leads past the destination of the header.
#[test]
fn source_routes_lead_around_no_destination() {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let (action, udp) = (Action::Allow, udp(80));
    let allow =
        World::new(&[about(&["10.0.0.0/8", "fd00::/16"], rule(None, &[], false, action)), rule(None, &[], false, Action::Deny)]);
    let deny = World::new(&[about(&["192.0.2.0/24", "2001:db8::/32"], rule(None, &[], false, Action::Deny))]);
    let mut v4 = to(address("10.0.0.2"), ipv4(2, 0, 17, &udp));
    v4[20..28].copy_from_slice(&[131, 7, 4, 192, 0, 2, 1, 0]);
    let routing = |left| [&[17, 2, 4, left][..], &[0; 20], &udp].concat();
    let v6 = |left| to(address("fd00::2"), ipv6(43, &routing(left)));
    for sent in [frame(0x800, 0, &v4), frame(0x86dd, 0, &v6(1))] {
        assert!(!allow.passes(&sent) && !deny.passes(&sent));
    }
    let arrived = frame(0x86dd, 0, &v6(0));
    assert!(allow.passes(&arrived) && deny.passes(&arrived), "no segment is left");
    let none = World::new(&[rule(Some(17), &[(80, 80)], false, action), rule(None, &[], false, Action::Deny)]);
    assert!(none.passes(&frame(0x800, 0, &v4)), "rules without destinations do not ask for one");
}

/// One verdict for all addresses between two bounds, and another beyond them.
#[test]
fn verdicts_hold_for_all_addresses_with_a_prefix() {
    let world = World::new(&[about(&["10.0.0.0/8"], rule(None, &[], false, Action::Deny))]);
    let epoch = Epoch { generation: world.table.generation(), second: 0 };
    let fits = |of: &str, other: &str| {
        let start = |text: &str| start_of(&frame(0x800, 0, &to(text.parse().unwrap(), ipv4(0, 0, 17, &udp(80)))));
        let (mut cache, (bytes, length)) = (FlowCache::default(), start(of));
        cache.decide(Start::new(&bytes, length), world.sender(), |_| Some(Gate::OPEN), &world.table, epoch);
        let (bytes, length) = start(other);
        cache.fits(Start::new(&bytes, length), epoch)
    };
    assert!(fits("10.0.0.1", "10.255.0.9") && fits("192.0.2.1", "203.0.113.9") && fits("8.8.8.8", "9.9.9.9"));
    assert!(!fits("10.0.0.1", "11.0.0.1") && !fits("9.9.9.9", "10.0.0.1") && !fits("11.0.0.0", "10.0.0.1"));
}

/// Frames that hide a header pass no rule that allows by it, and none that denies by it.
#[test]
fn hidden_headers_pass_by_no_rule() {
    let (all, ssh) = (rule(None, &[], false, Action::Deny), (22, 22));
    let allow = World::new(&[rule(Some(6), &[ssh], false, Action::Allow), all]);
    let deny = World::new(&[rule(Some(6), &[ssh], false, Action::Deny)]);
    let syn = tcp(22, 2);
    let options = |count: u8| [&[6, count][..], &[1; 6], &vec![1; 8 * usize::from(count)], &syn].concat();
    let hidden = [
        ("three tags", frame(0x800, 3, &ipv4(0, 0, 6, &syn))),
        ("IEEE 802.2", frame(46, 0, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ipv4(0, 0, 6, &syn)].concat())),
        ("another version", frame(0x800, 0, &[0x55; 40])),
        ("a header of 16 bytes", frame(0x800, 0, &[&[0x44][..], &ipv4(0, 0, 6, &syn)[1..]].concat())),
        ("a first fragment that ends in the padding: RFC 1858", frame(0x800, 0, &ipv4(0, 0x2000, 6, &[]))),
        ("a header that ends behind the frame", frame(0x800, 0, &ipv4(0, 0, 6, &syn))[..36].to_vec()),
        ("a fragment at offset 8: RFC 3128", frame(0x800, 0, &ipv4(0, 1, 6, &[0; 12]))),
        ("more extension headers than copied bytes: RFC 7112", frame(0x86dd, 0, &ipv6(60, &options(20)))),
        ("extension headers longer than the packet", frame(0x86dd, 0, &ipv6(0, &[6, 9, 1, 4, 0, 0, 0, 0]))),
        ("no transport header", frame(0x86dd, 0, &ipv6(6, &[]))[..54].to_vec()),
    ];
    for (name, frame) in hidden {
        assert!(!allow.passes(&frame), "{name}: allowed");
        assert!(!deny.passes(&frame), "{name}: not denied");
    }
    let shown = [
        ("two tags", frame(0x800, 2, &ipv4(0, 0, 6, &syn))),
        ("options", frame(0x800, 0, &ipv4(10, 0, 6, &syn))),
        ("a first fragment", frame(0x800, 0, &ipv4(0, 0x2000, 6, &syn))),
        ("extension headers", frame(0x86dd, 0, &ipv6(60, &options(2)))),
        ("a fragment that is whole: RFC 6946", frame(0x86dd, 0, &ipv6(44, &[&[6, 0, 0, 0, 0, 0, 0, 1][..], &syn].concat()))),
    ];
    for (name, frame) in shown {
        assert!(allow.passes(&frame) && !deny.passes(&frame), "{name}");
    }
}

/// Flags in the second fragment: the first one ends before them (RFC 1858, section 3), and its padding pretends them.
#[test]
fn flags_are_not_read_from_padding() {
    let world = World::new(&[rule(Some(6), &[], true, Action::Allow), rule(None, &[], false, Action::Deny)]);
    assert!(!world.passes(&frame(0x800, 0, &ipv4(0, 0x2000, 6, &tcp(80, 2)[..8]))));
    assert!(world.passes(&frame(0x800, 0, &ipv4(0, 0x2000, 6, &tcp(80, 0x10)[..16]))));
}

/// A later fragment is of no use without its first one, which is judged.
#[test]
fn later_fragments_pass_where_their_protocol_may() {
    let allow = World::new(&[rule(Some(17), &[(53, 53)], false, Action::Allow), rule(None, &[], false, Action::Deny)]);
    let deny = World::new(&[rule(Some(17), &[(53, 53)], false, Action::Deny)]);
    let later = |offset, protocol| frame(0x800, 0, &ipv4(0, offset, protocol, &[0; 40]));
    assert!(allow.passes(&later(1, UDP)) && allow.passes(&later(0x2000 | 185, UDP)) && deny.passes(&later(185, UDP)));
    assert!(!allow.passes(&later(185, TCP)), "of no protocol that may pass");
    let v6 = frame(0x86dd, 0, &ipv6(44, &[&[TCP, 0, 5, 0xc8, 0, 0, 0, 1][..], &[0; 40]].concat()));
    assert!(allow.passes(&v6), "the protocol is that of the first fragment");
    let none = World::new(&[rule(None, &[], false, Action::Deny)]);
    assert!(!none.passes(&v6) && !none.passes(&later(185, UDP)));
}

/// A frame, by its parts.
#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Parts {
    is_v6: bool,
    tags: u8,
    protocol: u8,
    port: u8,
    flags: u8,
    /// None, a first one, one at offset 8, one at offset 1480.
    fragment: u8,
    options: u8,
    destination: u8,
}

const DESTINATIONS: [[&str; 2]; 6] = [
    ["10.0.0.2", "fd00::2"],
    ["10.1.2.3", "fd00:1::3"],
    ["9.255.255.255", "fcff::1"],
    ["11.0.0.0", "fe00::"],
    ["255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
    ["0.0.0.0", "::"],
];
const PREFIXES: [&[&str]; 5] =
    [&["10.0.0.0/8", "fd00::/16"], &["10.1.0.0/16"], &["10.1.2.3", "fd00:1::3"], &["0.0.0.0/0"], &["::/0"]];

const PORTS: [u16; 9] = [0, 21, 22, 23, 80, 8000, 8099, 40_000, 65_535];
const PROTOCOLS: [u8; 5] = [6, 17, 1, 58, 47];
const FLAG_SETS: [u8; 5] = [0x02, 0x10, 0x12, 0x04, 0x14];

impl Parts {
    fn protocol(self) -> u8 {
        PROTOCOLS[usize::from(self.protocol) % PROTOCOLS.len()]
    }

    fn port(self) -> u16 {
        PORTS[usize::from(self.port) % PORTS.len()]
    }

    fn flags(self) -> u8 {
        FLAG_SETS[usize::from(self.flags) % FLAG_SETS.len()]
    }

    fn fragment(self) -> u8 {
        self.fragment % 8
    }

    /// The fragment could overwrite the flags of TCP: RFC 3128.
    fn is_at_flags(self) -> bool {
        self.fragment() == 2 && !self.is_v6 && self.protocol() == 6
    }

    fn destination(self) -> IpAddr {
        DESTINATIONS[usize::from(self.destination) % DESTINATIONS.len()][usize::from(self.is_v6)].parse().unwrap()
    }

    fn frame(self) -> Vec<u8> {
        let payload = match self.protocol() {
            6 => tcp(self.port(), self.flags()),
            17 => udp(self.port()),
            _ => vec![128; 24],
        };
        let (options, tags) = (usize::from(self.options % 4), usize::from(self.tags % 3));
        if !self.is_v6 {
            let word = [0x4000, 0x2000, 1, 185].get(usize::from(self.fragment())).copied().unwrap_or(0x4000);
            return frame(0x800, tags, &to(self.destination(), ipv4(options, word, self.protocol(), &payload)));
        }
        let mut next = self.protocol();
        let mut bytes = payload;
        if (1..=3).contains(&self.fragment()) {
            let word: u16 = [1, 8, 1480][usize::from(self.fragment()) - 1];
            let [high, low] = word.to_be_bytes();
            bytes = [&[next, 0, high, low, 0, 0, 0, 9][..], &bytes].concat();
            next = 44;
        }
        for _ in 0..options {
            bytes = [&[next, 0, 1, 4, 0, 0, 0, 0][..], &bytes].concat();
            next = 60;
        }
        frame(0x86dd, tags, &to(self.destination(), ipv6(next, &bytes)))
    }

    /// Whether some packet with these parts passes `rules`, one after the other, as the reference says it; each part that the frame
    /// hides may have any value.
    fn passes(self, rules: &[PolicyRule]) -> bool {
        let is_later = (2..=3).contains(&self.fragment());
        let ports: &[u16] = if is_later { &PORTS } else { &[self.port()] };
        let flags: &[u8] = if is_later { &FLAG_SETS } else { &[self.flags()] };
        let protocol = self.protocol();
        let protocols: &[u8] = if is_later && self.is_v6 { &PROTOCOLS } else { std::slice::from_ref(&protocol) };
        let single = |protocol: u8, port: u16, flags: u8| {
            let first = rules.iter().find(|rule| {
                let has =
                    |destination: &Destination| destination.prefix().is_some_and(|prefix| prefix.contains(self.destination()));
                rule.protocol.is_none_or(|wanted| wanted.0 == protocol)
                    && (rule.destinations.is_empty() || rule.destinations.iter().any(has))
                    && (rule.ports.is_empty() || rule.ports.iter().any(|range| (range.first..=range.last).contains(&port)))
                    && (!rule.established || flags & 0x14 != 0)
            });
            first.is_none_or(|rule| rule.action == Some(Action::Allow))
        };
        let mut all = protocols
            .iter()
            .flat_map(|&protocol| ports.iter().flat_map(move |&port| flags.iter().map(move |&flags| (protocol, port, flags))));
        if self.is_at_flags() {
            all.all(|(protocol, port, flags)| single(protocol, port, flags))
        } else {
            all.any(|(protocol, port, flags)| single(protocol, port, flags))
        }
    }
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct RuleParts {
    protocol: u8,
    ports: u8,
    established: bool,
    allows: bool,
    destinations: u8,
}

impl RuleParts {
    fn rule(self) -> PolicyRule {
        let protocol = [6, 6, 6, 17, 17, 1, 58, 47].get(usize::from(self.protocol % 10)).copied();
        let ports: &[(u16, u16)] = match self.ports % 6 {
            _ if !matches!(protocol, Some(6 | 17)) => &[],
            0 => &[(22, 22)],
            1 => &[(0, 21), (8000, 8099)],
            2 => &[(23, 65_535)],
            3 => &[(80, 80), (65_535, 65_535)],
            _ => &[],
        };
        let destinations = PREFIXES.get(usize::from(self.destinations % 10)).copied().unwrap_or_default();
        let action = if self.allows { Action::Allow } else { Action::Deny };
        about(destinations, rule(protocol, ports, self.established && protocol == Some(6), action))
    }
}

/// Compiled rules agree with the naive reading of them, and so does the flow cache for each frame that fits it.
#[test]
fn compiled_rules_agree_with_a_naive_reading_and_so_do_cached_verdicts() {
    let kept = std::sync::atomic::AtomicU64::new(0);
    bolero::check!().with_type::<(Vec<RuleParts>, Vec<Parts>)>().for_each(|(rules, frames)| {
        let rules: Vec<PolicyRule> = rules.iter().take(8).map(|rule| rule.rule()).collect();
        let world = World::new(&rules);
        let mut cache = FlowCache::default();
        let epoch = Epoch { generation: world.table.generation(), second: 0 };
        // Each frame twice: with a verdict that is kept from the one before, and from a decision of its own.
        for parts in frames.iter().take(16).flat_map(|parts| [parts, parts]) {
            let bytes = parts.frame();
            let wanted = parts.passes(&rules);
            let passes = world.passes(&bytes);
            let (is_later, is_at_flags) = ((2..=3).contains(&parts.fragment()), parts.is_at_flags());
            assert!(passes == wanted || is_later, "{parts:?} {rules:?}");
            // Rules that together decide on all values are taken one by one.
            assert!(!is_later || is_at_flags || passes || !wanted, "{parts:?} {rules:?}: a fragment that may be of use");
            assert!(!is_at_flags || !passes || wanted, "{parts:?} {rules:?}: a fragment that may overwrite flags");
            let (start, length) = start_of(&bytes);
            let start = Start::new(&start, length);
            if cache.fits(start, epoch) {
                kept.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            let verdict = cache.decide(start, world.sender(), |_| Some(Gate::OPEN), &world.table, epoch);
            assert_eq!(verdict == Verdict::To(PortId(1)), passes, "{parts:?} {rules:?}: from the flow cache");
        }
    });
    assert!(kept.into_inner() > 100, "the flow cache keeps verdicts");
}

/// The mask holds the bytes that the rules read, and no more: a stream keeps one verdict, and so do the answers to its port.
#[test]
fn verdicts_on_streams_are_kept() {
    let rules = [
        rule(Some(6), &[(22, 22)], false, Action::Deny),
        rule(Some(6), &[(80, 80)], false, Action::Allow),
        rule(Some(6), &[], true, Action::Allow),
        rule(None, &[], false, Action::Deny),
    ];
    let world = World::new(&rules);
    let start = |port, flags| start_of(&frame(0x800, 0, &ipv4(0, 0x4000, 6, &tcp(port, flags))));
    let (mut cache, epoch) = (FlowCache::default(), Epoch { generation: world.table.generation(), second: 0 });
    let mut fits = |of: (u16, u8), other: (u16, u8)| {
        let (bytes, length) = start(of.0, of.1);
        cache.decide(Start::new(&bytes, length), world.sender(), |_| Some(Gate::OPEN), &world.table, epoch);
        let (bytes, length) = start(other.0, other.1);
        cache.fits(Start::new(&bytes, length), epoch)
    };
    assert!(fits((80, 2), (80, 0x10)), "an allowed port is allowed whatever the flags");
    assert!(fits((40_000, 0x10), (50_000, 0x18)), "one verdict for all answers");
    assert!(!fits((40_000, 0x10), (40_000, 0x02)) && !fits((80, 2), (22, 2)) && !fits((81, 2), (80, 2)));
}

#[test]
fn the_rule_that_would_allow_a_frame_is_told() {
    let world = World::new(&[rule(None, &[], false, Action::Deny)]);
    let remedy = |frame: &[u8]| {
        let (start, length) = start_of(frame);
        let filtered = Filtered { filter: &world.filter, from: PortId(0), is_forecast: false };
        FilteredFlood::new(filtered, Start::new(&start, length), 0).target().allowing(
            "web",
            Some("db"),
            world.filter.limits_destinations(),
        )
    };
    let told = remedy(&frame(0x800, 0, &ipv4(0, 0, 6, &tcp(5432, 2))));
    assert_eq!(told.stated(), r#"[[policy]] from = "web" to = "db" protocol = "tcp" ports = [5432] action = "allow""#);
    let answer = remedy(&frame(0x800, 0, &ipv4(0, 0, 6, &tcp(40_000, 0x12))));
    assert!(answer.established, "{}", answer.stated());
    assert_eq!(told.from, Names(vec!["web".into()]));
}
