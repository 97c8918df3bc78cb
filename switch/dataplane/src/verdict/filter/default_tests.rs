//! Frames between a port with `default = "deny"` and another, in both directions.

use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::frame::{MacAddress, START};
use crate::policy::filter::{Action, Member, Names};
use crate::policy::flows::{self, Flows};
use crate::policy::gate::Gate;
use crate::policy::grants::Grants;
use crate::policy::rulebook::Rulebook;
use crate::policy::rules::PortRules;
use crate::table::Table;
use crate::verdict::{Epoch, FlowCache, Sender, Verdict, decide};

const BOXED: PortId = PortId(0);
const GATE: PortId = PortId(1);
const OWN: [u8; 2] = [9, 1];
const GUEST: &str = "10.0.0.1";
const GUEST6: &str = "fd00::1";
const SERVER: &str = "192.0.2.7";
const SERVER6: &str = "2001:db8::7";

struct World {
    table: Table,
    book: Rulebook,
    flows: [Arc<Flows>; 2],
    grants: [Arc<Grants>; 2],
}

fn allow(protocol: u8, port: u16) -> PolicyRule {
    PolicyRule {
        from: Names(vec!["box".into()]),
        destinations: ["192.0.2.0/24", "2001:db8::/32"].map(|text| text.parse().unwrap()).to_vec(),
        protocol: Some(Protocol(protocol)),
        ports: if port == 0 { Vec::new() } else { vec![PortRange { first: port, last: port }] },
        action: Some(Action::Allow),
        ..PolicyRule::default()
    }
}

fn default_of(name: &str) -> PolicyRule {
    PolicyRule { default: Some(Action::Deny), members: Names(vec![name.into()]), ..PolicyRule::default() }
}

/// Rules that allow TCP to port 443, UDP to port 53, and both kinds of ICMP.
fn usual() -> Vec<PolicyRule> {
    vec![default_of("box"), allow(6, 443), allow(17, 53), allow(1, 0), allow(58, 0)]
}

impl World {
    fn new(rules: &[PolicyRule]) -> Self {
        let table = Table::new(2, 64, 1);
        table.pin(mac(BOXED), BOXED);
        table.pin(mac(GATE), GATE);
        let mut world = Self { table, book: Rulebook::default(), flows: Default::default(), grants: Default::default() };
        world.set(rules);
        world
    }

    fn set(&mut self, rules: &[PolicyRule]) {
        self.book.set_rules(rules);
        for (port, name) in [(BOXED, "box"), (GATE, "gate")] {
            let (flows, grants) = (Some(&self.flows[port.index()]), Some(&self.grants[port.index()]));
            self.book.enter(port, Member { name, segment: "lan", groups: &[], flows, grants });
        }
    }

    fn sender(&self, from: PortId, is_forecast: bool) -> Sender<'_> {
        static NONE: PortRules = PortRules::NONE;
        let gate = Gate { filtered: Some(Filtered { filter: self.book.filter(), from, is_forecast }), ..Gate::OPEN };
        Sender { port: from, rules: &NONE, gate, is_gated: true }
    }

    fn verdict(&self, from: PortId, packet: &[u8], is_forecast: bool) -> bool {
        let (start, length) = start_of(from, packet);
        let decided = decide(Start::new(&start, length), self.sender(from, is_forecast), |_| Some(Gate::OPEN), &self.table, 0);
        let to = if from == BOXED { GATE } else { BOXED };
        assert!([Verdict::To(to), Verdict::Drop(DropReason::PolicyDenied)].contains(&decided.verdict));
        decided.verdict == Verdict::To(to)
    }

    /// Whether a packet that the boxed port transmits passes.
    fn sends(&self, packet: &[u8]) -> bool {
        self.verdict(BOXED, packet, false)
    }

    /// Whether a packet for the boxed port passes.
    fn receives(&self, packet: &[u8]) -> bool {
        self.verdict(GATE, packet, false)
    }
}

fn mac(port: PortId) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, port.index() as u8 + 1])
}

fn start_of(from: PortId, packet: &[u8]) -> ([u8; START], usize) {
    let to = if from == BOXED { GATE } else { BOXED };
    let kind: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    let mut bytes = [&mac(to).bytes()[..], &mac(from).bytes(), &kind, packet].concat();
    bytes.resize(bytes.len().max(60), 0);
    let (mut start, length) = ([0; START], bytes.len().min(START));
    start[..length].copy_from_slice(&bytes[..length]);
    (start, length)
}

/// An IP packet; `fragment` is the word with the flags and the offset of IPv4.
fn packet(from: &str, to: &str, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = (20 + payload.len()) as u16;
            let start = [&[0x45, 0][..], &length.to_be_bytes(), &OWN, &fragment.to_be_bytes(), &[64, protocol, 0, 0]].concat();
            [&start[..], &from.octets(), &to.octets(), payload].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [high, low] = (payload.len() as u16).to_be_bytes();
            [&[0x60, 0, 0, 0, high, low, protocol, 64][..], &from.octets(), &to.octets(), payload].concat()
        }
        _ => panic!("two addresses of one version"),
    }
}

/// A TCP or UDP header, long enough for both.
fn ports(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]].concat()
}

fn echo(kind: u8, identifier: u16) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &identifier.to_be_bytes(), &[0, 1, 7, 7, 7, 7]].concat()
}

/// An ICMP error that quotes `about`.
fn error(kind: u8, code: u8, about: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0, 0, 0, 0, 0][..], &about[..about.len().min(80)]].concat()
}

#[test]
fn replies_to_an_allowed_flow_pass_and_no_other_frame_does() {
    for (guest, server) in [(GUEST, SERVER), (GUEST6, SERVER6)] {
        for (protocol, port) in [(6, 443), (17, 53)] {
            let world = World::new(&usual());
            let reply = packet(server, guest, protocol, 0, &ports(port, 40_000));
            assert!(!world.receives(&reply), "before the flow is opened");
            let request = packet(guest, server, protocol, 0, &ports(40_000, port));
            assert!(world.verdict(BOXED, &request, true) && !world.receives(&reply), "a forecast opens none");
            assert!(world.sends(&request) && world.receives(&reply));
            assert!(!world.sends(&packet(guest, server, protocol, 0, &ports(40_000, port + 1))), "a port that no rule allows");
            for other in [ports(port, 40_001), ports(port + 1, 40_000), ports(40_000, port)] {
                assert!(!world.receives(&packet(server, guest, protocol, 0, &other)));
            }
            assert!(!world.receives(&packet(server, guest, 23 - protocol, 0, &ports(port, 40_000))), "another protocol");
        }
        let world = World::new(&usual());
        assert!(world.sends(&packet(guest, server, 17, 0, &ports(40_000, 53))));
        let stranger = if guest == GUEST { "192.0.2.8" } else { "2001:db8::8" };
        assert!(!world.receives(&packet(stranger, guest, 17, 0, &ports(53, 40_000))), "another address");
    }
    let world = World::new(&usual());
    assert!(!world.sends(&packet(GUEST, "198.51.100.1", 6, 0, &ports(40_000, 443))), "no destination of a rule");
}

/// Two VLANs of a segment may have the same addresses: a flow of one is none of the other.
#[test]
fn replies_pass_in_the_vlan_of_their_flow_only() {
    let world = World::new(&usual());
    let verdict = |from: PortId, vlan: u16, packet: &[u8]| {
        let (start, length) = start_of(from, packet);
        let filtered = Filtered { filter: world.book.filter(), from, is_forecast: false };
        let flooded = FilteredFlood::new(filtered, Start::new(&start, length), vlan);
        flooded.passes(if from == BOXED { GATE } else { BOXED })
    };
    let flows = [
        (packet(GUEST, SERVER, 6, 0, &ports(40_000, 443)), packet(SERVER, GUEST, 6, 0, &ports(443, 40_000))),
        (packet(GUEST, SERVER, 1, 0, &echo(8, 7)), packet(SERVER, GUEST, 1, 0, &echo(0, 7))),
    ];
    for ((sent, reply), [own, other]) in flows.iter().zip([[10, 20], [11, 21]]) {
        assert!(verdict(BOXED, own, sent) && verdict(GATE, own, reply));
        assert!(!verdict(GATE, other, reply) && !verdict(GATE, 0, reply));
        // Errors that quote a packet of the flow, and later fragments.
        let quotes = packet("203.0.113.1", GUEST, 1, 0, &error(3, 1, sent));
        assert!(verdict(GATE, own, &quotes) && !verdict(GATE, other, &quotes));
        let later = packet(SERVER, GUEST, 6, 0x00b9, &[0; 32]);
        assert!(verdict(GATE, own, &later) && !verdict(GATE, other, &later));
        assert!(verdict(BOXED, other, sent) && verdict(GATE, other, reply) && !verdict(GATE, 0, reply));
    }
    // A tagged frame, by the verdict of a trunk.
    let tagged = |from: PortId, vlan: u8, packet: &[u8]| {
        let (start, length) = start_of(from, packet);
        let mut bytes = [0; START];
        bytes[..12].copy_from_slice(&start[..12]);
        bytes[12..16].copy_from_slice(&[0x81, 0, 0, vlan]);
        bytes[16..].copy_from_slice(&start[12..START - 4]);
        let to = if from == BOXED { GATE } else { BOXED };
        for port in [BOXED, GATE] {
            world.table.learn(crate::table::LearnedAddress { address: mac(port), vlan: vlan.into() }, port, 0);
        }
        let decided = decide(Start::new(&bytes, length), world.sender(from, false), |_| Some(Gate::OPEN), &world.table, 0);
        decided.verdict == Verdict::To(to)
    };
    let (sent, reply) = (packet(GUEST, SERVER, 17, 0, &ports(40_000, 53)), packet(SERVER, GUEST, 17, 0, &ports(53, 40_000)));
    assert!(!tagged(GATE, 30, &reply) && tagged(BOXED, 30, &sent) && tagged(GATE, 30, &reply) && !tagged(GATE, 40, &reply));
}

/// RFC 792 and RFC 4443: echo with its identifier, and errors that quote a packet of the flow.
#[test]
fn replies_of_icmp_pass() {
    for (guest, server, icmp, [request, reply, unreachable]) in
        [(GUEST, SERVER, 1, [8, 0, 3]), (GUEST6, SERVER6, 58, [128, 129, 1])]
    {
        let world = World::new(&usual());
        let answer = |kind, identifier| world.receives(&packet(server, guest, icmp, 0, &echo(kind, identifier)));
        assert!(!answer(reply, 7));
        assert!(world.sends(&packet(guest, server, icmp, 0, &echo(request, 7))));
        assert!(answer(reply, 7) && !answer(reply, 8) && !answer(request, 7));
        let router = if icmp == 1 { "203.0.113.1" } else { "2001:db8:ffff::1" };
        let tells = |about: &[u8]| world.receives(&packet(router, guest, icmp, 0, &error(unreachable, 1, about)));
        let (sent, other) = (ports(40_000, 53), ports(40_001, 53));
        assert!(!tells(&packet(guest, server, 17, 0, &sent)));
        assert!(world.sends(&packet(guest, server, 17, 0, &sent)));
        assert!(tells(&packet(guest, server, 17, 0, &sent)) && !tells(&packet(guest, server, 17, 0, &other)));
        assert!(!tells(&packet(server, guest, 17, 0, &ports(53, 40_000))), "it quotes a packet that the guest never sent");
        assert!(!tells(&[]) && !tells(&[0x45; 19]));
    }
}

/// A port that serves: the other opens the flow, and errors about replies reach it (path MTU discovery, RFC 1191).
#[test]
fn a_flow_that_the_other_port_opens_passes_in_both_directions() {
    let rule = PolicyRule { from: Names::default(), to: Names(vec!["box".into()]), destinations: Vec::new(), ..allow(6, 80) };
    let world = World::new(&[default_of("box"), rule]);
    let reply = packet(GUEST, SERVER, 6, 0, &ports(80, 50_000));
    assert!(!world.sends(&reply));
    assert!(world.receives(&packet(SERVER, GUEST, 6, 0, &ports(50_000, 80))) && world.sends(&reply));
    assert!(world.receives(&packet("203.0.113.1", GUEST, 1, 0, &error(3, 4, &reply))), "fragmentation needed");
    let other = packet(GUEST, SERVER, 6, 0, &ports(80, 50_001));
    assert!(!world.receives(&packet("203.0.113.1", GUEST, 1, 0, &error(3, 4, &other))));
}

/// Later fragments have no ports: they pass between the addresses of a flow.
#[test]
fn later_fragments_of_replies_pass() {
    let world = World::new(&usual());
    let later = packet(SERVER, GUEST, 17, 185, &[7; 40]);
    let later6 = packet(SERVER6, GUEST6, 44, 0, &[&[17, 0, 5, 0xc8, 0, 0, 0, 1][..], &[7; 40]].concat());
    assert!(!world.receives(&later) && !world.receives(&later6));
    assert!(world.sends(&packet(GUEST, SERVER, 17, 0, &ports(40_000, 53))) && world.receives(&later) && !world.receives(&later6));
    assert!(world.sends(&packet(GUEST6, SERVER6, 17, 0, &ports(40_000, 53))) && world.receives(&later6));
    assert!(!world.receives(&packet("192.0.2.8", GUEST, 17, 185, &[7; 40])));
}

#[test]
fn a_reply_passes_while_the_rules_allow_the_direction_that_opened_its_flow() {
    let mut world = World::new(&usual());
    let (request, reply) = (packet(GUEST, SERVER, 6, 0, &ports(40_000, 443)), packet(SERVER, GUEST, 6, 0, &ports(443, 40_000)));
    assert!(world.sends(&request) && world.receives(&reply));
    world.set(&[default_of("box"), allow(6, 444)]);
    assert!(!world.receives(&reply) && !world.sends(&request));
    world.set(&usual());
    assert!(world.receives(&reply), "the flow is still open");
    let deny = PolicyRule { action: Some(Action::Deny), destinations: Vec::new(), ..allow(6, 443) };
    world.set(&[&[deny][..], &usual()].concat());
    assert!(!world.receives(&reply), "an earlier rule denies the request");
}

/// Frames of one flow have one verdict from the cache, and those of another have none from it.
#[test]
fn verdicts_on_replies_are_kept_for_their_flow() {
    let world = World::new(&usual());
    let epoch = Epoch { generation: world.table.generation(), second: 0 };
    for (from, first, second) in [(BOXED, (40_000, 443), (40_001, 443)), (GATE, (443, 40_000), (443, 40_001))] {
        let of = |pair: (u16, u16)| {
            let (source, destination) = if from == BOXED { (GUEST, SERVER) } else { (SERVER, GUEST) };
            start_of(from, &packet(source, destination, 6, 0, &ports(pair.0, pair.1)))
        };
        let mut cache = FlowCache::default();
        let (bytes, length) = of(first);
        let verdict =
            cache.decide(Start::new(&bytes, length), world.sender(from, false), |_| Some(Gate::OPEN), &world.table, epoch);
        assert!(matches!(verdict, Verdict::To(_)) && cache.fits(Start::new(&bytes, length), epoch));
        let (bytes, length) = of(second);
        assert!(!cache.fits(Start::new(&bytes, length), epoch), "each flow is opened");
    }
    let refused = start_of(GATE, &packet(SERVER, GUEST, 6, 0, &ports(443, 50_000)));
    let mut cache = FlowCache::default();
    cache.decide(Start::new(&refused.0, refused.1), world.sender(GATE, false), |_| Some(Gate::OPEN), &world.table, epoch);
    assert!(!cache.fits(Start::new(&refused.0, refused.1), epoch), "its flow may be opened at any time");
}

/// A flood of invented frames enters nothing in the table of the port that it is for.
#[test]
fn no_other_port_fills_the_flows_of_a_port() {
    let world = World::new(&usual());
    assert!(world.sends(&packet(GUEST, SERVER, 6, 0, &ports(40_000, 443))));
    for n in 0..20_000 {
        assert!(!world.receives(&packet(SERVER, GUEST, 6, 0, &ports(n, 41_000))));
    }
    assert!(world.receives(&packet(SERVER, GUEST, 6, 0, &ports(443, 40_000))));
}

fn named(names: &[&str], action: Action) -> PolicyRule {
    PolicyRule {
        from: Names(vec!["box".into()]),
        destinations: names.iter().map(|name| name.parse().unwrap()).collect(),
        protocol: Some(Protocol(6)),
        action: Some(action),
        ..PolicyRule::default()
    }
}

impl World {
    /// The question of `port` for `name` was answered with `address`.
    fn grant(&self, port: PortId, name: &str, address: &str) {
        let rules = self.book.filter().rules_of_name(port, name);
        self.grants[port.index()].grant(&name.into(), &[(address.parse().unwrap(), 60)], &rules, flows::second());
    }
}

#[test]
fn an_address_is_allowed_for_the_port_that_asked_for_a_name_of_the_rule() {
    for (guest, server, other) in [(GUEST, SERVER, "192.0.2.8"), (GUEST6, SERVER6, "2001:db8::8")] {
        let rules = [default_of("box"), named(&["api.example.org", "*.example.net"], Action::Allow)];
        let mut world = World::new(&rules);
        let to = |server: &str| packet(guest, server, 6, 0, &ports(40000, 443));
        let reply = packet(server, guest, 6, 0, &ports(443, 40000));
        assert!(!world.sends(&to(server)));
        world.grant(GATE, "api.example.org", server);
        assert!(!world.sends(&to(server)), "another port's question allows nothing");
        world.grant(BOXED, "other.example.org", server);
        assert!(!world.sends(&to(server)), "a name that no rule has");
        world.grant(BOXED, "api.example.org", server);
        assert!(!world.receives(&reply) && world.sends(&to(server)) && world.receives(&reply));
        assert!(!world.sends(&to(other)), "an address beside it");
        assert!(!world.sends(&packet(guest, server, 17, 0, &ports(40000, 443))), "another protocol");
        // Another rule is without the grant, and one with the name has it.
        world.set(&[default_of("box"), named(&["api.example.com"], Action::Allow)]);
        assert!(!world.sends(&to(server)) && !world.receives(&reply));
        world.set(&[default_of("box"), named(&["10.0.0.0/8", "*.example.org"], Action::Allow)]);
        assert!(world.sends(&to(server)) && world.receives(&reply));
    }
}

/// Each address is looked at, and a verdict that is kept holds for it alone.
#[test]
fn a_kept_verdict_about_a_granted_address_holds_for_it_alone() {
    let deny = PolicyRule { action: Some(Action::Deny), ..PolicyRule::default() };
    let world = World::new(&[named(&["api.example.org"], Action::Allow), deny]);
    world.grant(BOXED, "api.example.org", SERVER);
    let mut cache = FlowCache::default();
    let epoch = Epoch { generation: world.table.generation(), second: 0 };
    for last in [7, 8, 6, 7, 39, 71, 135, 7] {
        let (start, length) = start_of(BOXED, &packet(GUEST, &format!("192.0.2.{last}"), 6, 0, &ports(40000, 443)));
        let sender = world.sender(BOXED, false);
        let verdict = cache.decide(Start::new(&start, length), sender, |_| Some(Gate::OPEN), &world.table, epoch);
        assert_eq!(verdict == Verdict::To(GATE), last == 7, "{last}");
    }
}

#[test]
fn a_port_may_ask_for_the_names_of_its_rules() {
    let may = |rules: &[PolicyRule], name: &str| {
        let world = World::new(rules);
        world.book.filter().may_ask(BOXED, name).map_err(|rule| rule.map(|rule| rules.iter().position(|one| rule.is(one)).unwrap()))
    };
    let allow = named(&["api.example.org", "*.example.net"], Action::Allow);
    let rules = [default_of("box"), named(&["bad.example.net"], Action::Deny), allow.clone()];
    assert_eq!(may(&rules, "api.example.org"), Ok(()));
    assert_eq!(may(&rules, "a.b.example.net"), Ok(()));
    assert_eq!(may(&rules, "bad.example.net"), Err(Some(1)), "the first rule decides");
    assert_eq!(may(&rules, "example.net"), Err(Some(0)), "the default");
    assert_eq!(may(std::slice::from_ref(&allow), "example.com"), Err(None), "its rules have names");
    assert_eq!(may(&[], "example.com"), Ok(()));
    assert_eq!(may(&[PolicyRule { from: Names(vec!["gate".into()]), ..allow.clone() }], "example.com"), Ok(()));
    let all = PolicyRule { destinations: vec!["0.0.0.0/0".parse().unwrap()], ..allow };
    assert_eq!(may(&[default_of("box"), all.clone()], "example.com"), Ok(()), "all addresses are allowed");
    assert_eq!(may(&[default_of("box"), PolicyRule { destinations: vec![], ..all.clone() }], "example.com"), Ok(()));
    let to_one = PolicyRule { destinations: vec![], to: Names(vec!["gate".into()]), ..all };
    assert_eq!(may(&[default_of("box"), to_one], "example.com"), Err(Some(0)));
}
