//! An independent model of the switch: the rules of its documentation as plainly as they can be put, without caches, tables or threads.
//!
//! A question to the model has one answer wherever the order of events is known. Where it is not (two frames in one poll iteration, a change of the
//! configuration while frames flow), the model is asked once for each possible state, and every answer is right.

use std::net::IpAddr;

use memlane::frame::MacAddress;
use memlane::headers::link_local;
use memlane::offload::Offloads;
use memlane::policy::filter::{Action, Destination, PolicyRule};
use memlane::policy::rules::Service;
use memlane::policy::{AntiSpoof, Reserved};
use memlane::port::settings::PortSettings;
use memlane::stats::DropReason;

use super::flows::{FlowKey, Granted, OpenFlows};
use super::frames::{ADVERTISEMENT, Body, Fault, Frame, Nd, Packet, ROUTER, SOLICITATION};
use super::world::SEGMENTS;

/// A guest from its attachment to its detachment, by number.
pub type Life = usize;

/// A port as configured.
#[derive(Clone, Debug)]
pub struct PortState {
    pub life: Life,
    pub name: String,
    pub segment: usize,
    pub settings: PortSettings,
    /// Offloads that the guest may request, and that it accepts.
    pub offers: Offloads,
    pub accepts: Offloads,
    /// The transmit queue is enabled.
    pub sends: bool,
    /// The receive queue runs and is enabled.
    pub receives: bool,
}

impl PortState {
    /// The VLAN of a frame that it sends with this tag, 0 for none.
    pub fn vlan_of(&self, tag: u16) -> Option<u16> {
        let limits = &self.settings.limits;
        let carries = |vlan| limits.trunk.iter().any(|range| range.vlans().contains(&vlan));
        match (limits.vlan, limits.trunk.is_empty(), tag) {
            (None, true, _) => Some(tag),
            (Some(vlan), _, 0) => Some(vlan),
            (_, false, 1..) if carries(tag) => Some(tag),
            _ => None,
        }
    }

    /// The tag with which it receives frames of `vlan`, 0 for none.
    fn tag_of(&self, vlan: u16) -> Option<u16> {
        let limits = &self.settings.limits;
        let carries = |vlan| limits.trunk.iter().any(|range| range.vlans().contains(&vlan));
        match (limits.vlan, limits.trunk.is_empty()) {
            (None, true) => Some(vlan),
            (Some(own), _) if own == vlan => Some(0),
            (_, false) if carries(vlan) => Some(vlan),
            _ => None,
        }
    }

    fn is_own(&self, mac: MacAddress) -> bool {
        self.settings.mac == Some(mac)
    }

    /// Whether it may offer a service (`may-serve`).
    pub fn serves(&self, service: Service) -> bool {
        self.settings.limits.may_serve.contains(&service)
    }

    fn has_ip(&self, mac: MacAddress, ip: IpAddr) -> bool {
        self.settings.limits.addresses.contains(&ip) || ip == IpAddr::from(link_local(mac))
    }
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Dropped, and counted at the sender.
    Drop(DropReason),
    /// To one port, with this tag.
    To(Life, u16),
    /// To these ports, with these tags; rules deny the frame to so many others.
    Flood(Vec<(Life, u16)>, u64),
}

/// A configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub ports: Vec<Option<PortState>>,
    pub rules: Vec<PolicyRule>,
}

/// The state for which a question is asked.
#[derive(Clone, Copy, Debug)]
pub struct State<'s> {
    pub config: &'s Config,
    pub flows: &'s OpenFlows,
    pub granted: &'s Granted,
    /// Where the destination was learned.
    pub behind: Option<Life>,
    /// OpenFlows that are perhaps open are; and addresses of DNS names that perhaps hold do.
    pub lenient: bool,
    pub grants: bool,
    /// Second; `None` if any flow may be open or not.
    pub now: Option<u64>,
}

impl Config {
    /// The port of this life.
    pub fn port(&self, life: Life) -> Option<&PortState> {
        self.ports.iter().flatten().find(|port| port.life == life)
    }

    /// Whether rules have DNS names.
    pub fn has_names(&self) -> bool {
        self.rules.iter().any(PolicyRule::has_names)
    }

    fn members(&self, segment: usize) -> impl Iterator<Item = &PortState> {
        self.ports.iter().flatten().filter(move |port| port.segment == segment)
    }

    pub fn pinned(&self, segment: usize, mac: MacAddress) -> Option<Life> {
        self.members(segment).find(|port| port.is_own(mac)).map(|port| port.life)
    }

    /// The VLAN in which the switch learns the source of a frame, or the reason for which it is dropped before.
    pub fn learns(&self, from: &PortState, frame: &Frame) -> Result<u16, DropReason> {
        if !from.sends {
            return Err(DropReason::TransmitDisabled);
        }
        if let Some(reason) = frame.fault.map(Fault::reason).or_else(|| frame.refusal(&from.offers)) {
            return Err(reason);
        }
        if !frame.from.is_unicast() {
            return Err(DropReason::BadSource);
        }
        if from.settings.limits.anti_spoof != AntiSpoof::Off && !from.is_own(frame.from) {
            return Err(DropReason::SpoofedSource);
        }
        let vlan = from.vlan_of(frame.tag).ok_or(DropReason::VlanNotCarried)?;
        if from.settings.limits.anti_spoof == AntiSpoof::All {
            identify(from, frame)?;
        }
        match self.pinned(from.segment, frame.from) {
            Some(owner) if owner != from.life => Err(DropReason::BadSource),
            _ => Ok(vlan),
        }
    }
}

/// Whether all addresses that a frame claims are its port's.
fn identify(from: &PortState, frame: &Frame) -> Result<(), DropReason> {
    match &frame.body {
        Body::Other => Ok(()),
        Body::Hidden => Err(DropReason::SpoofedIp),
        Body::Arp(mac, ip) => (from.is_own(*mac) && from.has_ip(*mac, *ip)).then_some(()).ok_or(DropReason::SpoofedArp),
        Body::Nd(message) => identify_nd(from, frame.from, message),
        Body::Ip(packet) if !from.has_ip(frame.from, packet.from.0) => Err(DropReason::SpoofedIp),
        Body::Ip(packet) => {
            let client = if packet.from.0.is_ipv4() { 68 } else { 546 };
            let serves = packet.protocol == 17 && !packet.is_later && packet.to.1 == client;
            if serves && !from.serves(Service::Dhcp) { Err(DropReason::NotAServer) } else { Ok(()) }
        }
    }
}

/// The same of a neighbour discovery message: one without a source address asks for its target.
fn identify_nd(from: &PortState, source: MacAddress, message: &Nd) -> Result<(), DropReason> {
    let Nd { kind, from: ip, target, link } = *message;
    let is_probe = ip.is_unspecified();
    if is_probe && kind != SOLICITATION || !is_probe && !from.has_ip(source, ip.into()) {
        return Err(DropReason::SpoofedIp);
    }
    if kind == ROUTER && !from.serves(Service::Ra) {
        return Err(DropReason::NotAServer);
    }
    let claimed = if kind == ADVERTISEMENT { target } else { ip };
    let is_targets = kind == ADVERTISEMENT || is_probe;
    let is_right = !is_targets || from.has_ip(source, target.into());
    let has_link = link.is_none_or(|link| from.is_own(link) && from.has_ip(link, claimed.into()));
    if is_right && has_link { Ok(()) } else { Err(DropReason::SpoofedArp) }
}

impl State<'_> {
    /// The verdict on `frame` from `from`. `opens` is told the flows that it opens.
    pub fn judge(&self, from: &PortState, frame: &Frame, opens: &mut impl FnMut(FlowKey)) -> Verdict {
        let vlan = match self.config.learns(from, frame) {
            Ok(vlan) => vlan,
            Err(reason) => return Verdict::Drop(reason),
        };
        if frame.to.is_group() {
            let is_refused = from.settings.limits.reserved == Some(Reserved::Drop) && frame.to.is_reserved_group();
            return if is_refused { Verdict::Drop(DropReason::ReservedGroup) } else { self.flood(from, frame, vlan, opens) };
        }
        match self.config.pinned(from.segment, frame.to).or(self.behind) {
            Some(to) if to == from.life => Verdict::Drop(DropReason::SamePort),
            Some(to) => self.config.port(to).map_or(Verdict::To(to, 0), |to| self.to(from, to, frame, vlan, opens)),
            None => self.flood(from, frame, vlan, opens),
        }
    }

    /// The copies of a flooded frame that other workers meet later: its sender was checked before.
    pub fn judge_copies(&self, from: &PortState, frame: &Frame) -> Option<Verdict> {
        Some(self.flood(from, frame, from.vlan_of(frame.tag)?, &mut |_| {}))
    }

    fn to(&self, from: &PortState, to: &PortState, frame: &Frame, vlan: u16, opens: &mut impl FnMut(FlowKey)) -> Verdict {
        if from.settings.limits.isolated && to.settings.limits.isolated {
            return Verdict::Drop(DropReason::Isolated);
        }
        match to.tag_of(vlan) {
            None => Verdict::Drop(DropReason::VlanNotCarried),
            Some(_) if !self.passes(from, to, frame, vlan, opens) => Verdict::Drop(DropReason::PolicyDenied),
            Some(tag) => Verdict::To(to.life, tag),
        }
    }

    fn flood(&self, from: &PortState, frame: &Frame, vlan: u16, opens: &mut impl FnMut(FlowKey)) -> Verdict {
        let (mut reached, mut denied) = (Vec::new(), 0);
        for to in self.config.members(from.segment).filter(|to| to.life != from.life) {
            let limits = &to.settings.limits;
            let is_refused = limits.reserved == Some(Reserved::Drop) && frame.to.is_reserved_group();
            let is_apart = is_refused || limits.isolated && from.settings.limits.isolated;
            let Some(tag) = to.tag_of(vlan).filter(|_| !is_apart) else {
                continue;
            };
            let (passes, is_there) = (self.passes(from, to, frame, vlan, opens), to.receives && to.settings.enabled);
            if passes && is_there {
                reached.push((to.life, tag));
            }
            denied += u64::from(is_there && !passes);
        }
        Verdict::Flood(reached, denied)
    }

    /// Whether the policy rules let a unicast frame pass, or a copy of a flooded one.
    fn passes(&self, from: &PortState, to: &PortState, frame: &Frame, vlan: u16, opens: &mut impl FnMut(FlowKey)) -> bool {
        if matches!(frame.body, Body::Arp(..) | Body::Nd(_)) {
            return true;
        }
        let first = self.first(from, to, &Traffic::of(frame));
        let refuses = |port: &PortState| {
            let limits = &port.settings.limits;
            let own = |rule: &&PolicyRule| rule.is_default_of(&port.name, SEGMENTS[port.segment], &limits.groups);
            self.config.rules.iter().find(own).is_some_and(|rule| !rule.allows())
        };
        let has_default = refuses(from) || refuses(to);
        let packet = if let Body::Ip(packet) = &frame.body { Some(packet) } else { None };
        match first {
            Some(rule) if rule.allows() => {
                let flow = packet.filter(|_| has_default).and_then(|packet| FlowKey::opened(from.life, vlan, packet));
                flow.into_iter().for_each(opens);
                true
            }
            Some(_) => false,
            None => !has_default || packet.is_some_and(|packet| self.is_reply(from, to, packet, vlan)),
        }
    }

    /// Whether `packet` is a reply to a flow of its receiver which the rules allow.
    fn is_reply(&self, from: &PortState, to: &PortState, packet: &Packet, vlan: u16) -> bool {
        FlowKey::answered(to.life, vlan, packet).is_some_and(|flow| {
            let has_ports = matches!(flow.protocol, 6 | 17);
            let traffic = Traffic {
                destination: Some(flow.to.0),
                protocol: Some(packet.protocol),
                port: has_ports.then_some(flow.to.1),
                acknowledges: None,
                is_hidden: false,
                is_later: packet.is_later,
            };
            let is_allowed = self.first(to, from, &traffic).is_some_and(PolicyRule::allows);
            is_allowed && self.flows.is_open(&flow, self.now, self.lenient)
        })
    }

    /// Whether `ip` is an address of a DNS name of `rule` for a port.
    fn is_granted(&self, from: &PortState, rule: &PolicyRule, ip: IpAddr) -> bool {
        let holds = |pattern: String| self.granted.holds(from.life, &pattern, ip, self.now, self.grants);
        rule.destinations.iter().filter(|destination| destination.name().is_some()).any(|name| holds(name.to_string()))
    }

    /// The first rule that decides on frames from one port to another.
    fn first(&self, from: &PortState, to: &PortState, traffic: &Traffic) -> Option<&PolicyRule> {
        let names = |rule: &PolicyRule| {
            rule.from.has(&from.name, &from.settings.limits.groups) && rule.to.has(&to.name, &to.settings.limits.groups)
        };
        let decides = |rule: &&PolicyRule| matches!(rule.action, Some(Action::Allow | Action::Deny));
        self.config
            .rules
            .iter()
            .filter(decides)
            .find(|rule| names(rule) && traffic.meets(rule, |ip| self.is_granted(from, rule, ip)))
    }
}

/// The parts of a frame that rules read.
#[derive(Debug, Default)]
struct Traffic {
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    port: Option<u16>,
    acknowledges: Option<bool>,
    /// The packet is hidden.
    is_hidden: bool,
    is_later: bool,
}

impl Traffic {
    fn of(frame: &Frame) -> Self {
        match &frame.body {
            Body::Ip(packet) => {
                let is_tcp = packet.protocol == 6 && !packet.is_later;
                Self {
                    destination: Some(packet.to.0),
                    protocol: Some(packet.protocol),
                    port: (is_tcp || packet.protocol == 17 && !packet.is_later).then_some(packet.to.1),
                    acknowledges: is_tcp.then_some(packet.flags & 0x14 != 0),
                    is_hidden: false,
                    is_later: packet.is_later,
                }
            }
            Body::Hidden => Self { is_hidden: true, ..Self::default() },
            Body::Other | Body::Arp(..) | Body::Nd(_) => Self::default(),
        }
    }

    /// Whether `rule` decides; `is_granted` says whether an address is that of one of its DNS names. Parts that are hidden count against the frame, those of a later fragment for it.
    fn meets(&self, rule: &PolicyRule, is_granted: impl Fn(IpAddr) -> bool) -> bool {
        let unknown = rule.allows() == self.is_later;
        let is_there = match self.destination {
            Some(to) => {
                let has = |destination: &Destination| destination.prefix().is_some_and(|own| own.contains(to));
                rule.destinations.iter().any(has) || is_granted(to)
            }
            None => self.is_hidden && !rule.allows(),
        };
        if !rule.destinations.is_empty() && !is_there {
            return false;
        }
        let Some(protocol) = rule.protocol else { return true };
        if self.is_hidden {
            return unknown;
        }
        if self.protocol != Some(protocol.0) {
            return false;
        }
        let port =
            rule.ports.is_empty().then_some(true).or(self.port.map(|port| rule.ports.iter().any(|range| range.contains(port))));
        match (port, rule.established, self.acknowledges) {
            (Some(false), ..) | (_, true, Some(false)) => false,
            (Some(true), false, _) | (Some(true), true, Some(true)) => true,
            _ => unknown,
        }
    }
}
