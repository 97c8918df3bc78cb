//! Settings by chance: policy rules, rate limits, VLANs, anti-spoofing, and link emulation of ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memlane::link::Impairment;
use memlane::policy::filter::{Action, Names, PolicyRule, PortRange, Protocol};
use memlane::policy::rules::Service;
use memlane::policy::{AntiSpoof, Limit, PortLimits, Reserved};
use memlane::port::settings::PortSettings;

use super::Dice;
use super::world::{PORTS, SEGMENTS, address};

/// VLANs of tags.
pub const VLANS: [u16; 4] = [10, 20, 21, 30];
/// Ports of transport protocols, and identifiers of echoes.
pub const SERVICES: [u16; 6] = [22, 53, 68, 80, 546, 8080];
/// DNS names that guests ask for.
pub const NAMES: [&str; 3] = ["a.example.org", "b.example.org", "www.a.example.org"];
/// Addresses that DHCP servers lease.
pub const LEASES: u8 = 3;

/// An address of the guest in a place.
pub fn ip(place: usize, is_v6: bool) -> IpAddr {
    match is_v6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, place as u16).into(),
        false => Ipv4Addr::new(10, 0, 0, place as u8).into(),
    }
}

/// Settings of the guest in a place, without VLANs.
pub fn port(place: usize, dice: &mut Dice) -> PortSettings {
    let limit = |dice: &mut Dice| match dice.below(8) {
        0 => Limit { rate: Some("12345678bit".into()), packets: None, burst_ms: Some(3) },
        1 => Limit { rate: None, packets: Some(12_345), burst_ms: Some(3) },
        _ => Limit::default(),
    };
    let limits = PortLimits {
        weight: dice.pick(&[1, 1, 3, 100]),
        transmit: limit(dice),
        receive: limit(dice),
        storm: dice.pick(&[0, 0, 0, 0, 500]),
        anti_spoof: dice.pick(&[AntiSpoof::Off, AntiSpoof::Off, AntiSpoof::Mac, AntiSpoof::All]),
        addresses: vec![ip(place, false), ip(place, true)],
        isolated: dice.once_in(5),
        reserved: dice.pick(&[None, Some(Reserved::Pass), Some(Reserved::Drop)]),
        may_serve: dice.pick(&[vec![], vec![], vec![Service::Dhcp], vec![Service::Dhcp, Service::Ra]]),
        groups: ["red", "blue"].into_iter().filter(|_| dice.once_in(3)).map(String::from).collect(),
        ..PortLimits::default()
    };
    let mac = (!dice.once_in(3)).then(|| address(place));
    PortSettings { enabled: !dice.once_in(12), mac, mtu: None, limits, link: link(dice) }
}

fn link(dice: &mut Dice) -> Option<Impairment> {
    match dice.below(10) {
        0 => Some(Impairment { delay: Some("200us".into()), ..Impairment::default() }),
        1 => Some(Impairment { delay: Some("1ms".into()), jitter: Some("500us".into()), loss: 0.1, ..Impairment::default() }),
        2 => Some(Impairment { rate: Some("100Mbit".into()), queue: Some(16), ..Impairment::default() }),
        _ => None,
    }
}

/// The VLANs of an access port, or of a trunk, for the life of the port.
pub fn vlans(limits: &mut PortLimits, dice: &mut Dice) {
    let trunk = |text: &str| text.split(' ').filter_map(|range| range.parse().ok()).collect();
    match dice.below(6) {
        0 => limits.vlan = Some(10),
        1 => limits.trunk = trunk("10 20-21"),
        2 => (limits.vlan, limits.trunk) = (Some(20), trunk("10 30")),
        _ => {}
    }
}

/// Policy rules.
pub fn rules(dice: &mut Dice) -> Vec<PolicyRule> {
    (0..dice.below(8)).map(|_| rule(dice)).collect()
}

fn names(dice: &mut Dice) -> Names {
    let count = dice.pick(&[0, 0, 1, 2]);
    Names(
        (0..count)
            .map(|_| if dice.once_in(3) { dice.pick(&["red", "blue"]).into() } else { format!("n{}", dice.below(PORTS)) })
            .collect(),
    )
}

fn rule(dice: &mut Dice) -> PolicyRule {
    if dice.once_in(5) {
        let (members, segment) = match dice.once_in(2) {
            true => (Names(vec![dice.pick(&["red", "n0", "n1"]).into()]), None),
            false => (Names::default(), Some(dice.pick(&SEGMENTS).into())),
        };
        let default = Some(if dice.once_in(4) { Action::Allow } else { Action::Deny });
        return PolicyRule { default, members, segment, ..PolicyRule::default() };
    }
    let protocol = dice.pick(&[None, Some(6), Some(6), Some(17), Some(1)]).map(Protocol);
    let has_ports = matches!(protocol, Some(Protocol(6 | 17)));
    let first = dice.pick(&SERVICES);
    let range = PortRange { first, last: if dice.once_in(2) { first } else { first + 60 } };
    if dice.once_in(8) {
        let names = vec![dice.pick(&["a.example.org", "b.example.org", "*.example.org"]).parse().expect("a name")];
        let action = Some(if dice.once_in(3) { Action::Deny } else { Action::Allow });
        return PolicyRule { from: self::names(dice), to: self::names(dice), destinations: names, action, ..PolicyRule::default() };
    }
    let prefixes = ["10.0.0.0/30", "10.0.0.4/31", "10.0.0.1", "fd00::/126", "0.0.0.0/0"];
    PolicyRule {
        from: names(dice),
        to: names(dice),
        destinations: if dice.once_in(3) { vec![dice.pick(&prefixes).parse().expect("a prefix")] } else { Vec::new() },
        protocol,
        ports: if has_ports && dice.once_in(2) { vec![range] } else { Vec::new() },
        established: protocol == Some(Protocol::TCP) && dice.once_in(4),
        action: Some(if dice.once_in(2) { Action::Allow } else { Action::Deny }),
        ..PolicyRule::default()
    }
}
