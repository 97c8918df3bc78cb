//! Steps to the outcome of a frame in sentences, and the keys of the configuration that decide.

use std::fmt::Display;

use memlane_model::quantity::counted;
use memlane_model::refused::Refused;

use super::Forecast;
use crate::frame::ETHERNET;
use crate::grounds::{Grounds, PassageStep, ReceiverStep, Step};
use crate::id::PortId;
use crate::stats::DropReason;
use crate::table::Learned;
use crate::twin::Twin;
use crate::verdict::{Foreseen, Verdict};

const NOTHING_LEARNED: &str =
    "the address map learns nothing from it and gives no answer: it is malformed, or its source has no IP address yet";

/// Adds the steps of these `grounds` to `forecast`; `name_of` names ports.
pub(super) fn tell(forecast: &mut Forecast, grounds: &Grounds, name_of: &dyn Fn(PortId) -> String) {
    let teller = Teller { grounds, from: &name_of(grounds.from), name_of };
    for step in &grounds.steps {
        teller.tell_keys(forecast, step);
        forecast.steps.extend(teller.sentences(step));
    }
}

/// The key that states the VLANs of a port.
fn vlan_key(is_trunk: bool) -> &'static str {
    if is_trunk { "trunk" } else { "vlan" }
}

fn within(vlan: u16) -> String {
    if vlan == 0 { "without a VLAN tag".into() } else { format!("in VLAN {vlan}") }
}

/// The addresses of a twin, inside and outside.
fn addresses(twin: &Twin) -> String {
    fn pair<A: Display>((inside, outside): (A, A)) -> String {
        format!("{inside} inside for {outside}")
    }
    let pairs = twin.mac_pair().map(pair).into_iter().chain(twin.ip_pairs().into_iter().map(pair));
    pairs.collect::<Vec<_>>().join(", ")
}

struct Teller<'g> {
    grounds: &'g Grounds,
    /// Name of the sender.
    from: &'g str,
    name_of: &'g dyn Fn(PortId) -> String,
}

impl Teller<'_> {
    /// Notes the keys that decide by a step.
    fn tell_keys(&self, forecast: &mut Forecast, step: &Step) {
        match step {
            Step::Source(Foreseen { learned: Some(Learned::Pinned), behind: Some(owner), .. }) => {
                forecast.denied_by(&(self.name_of)(*owner), "mac");
            }
            Step::Refused { reason, refused, is_own } => {
                forecast.denied_by(self.from, "anti-spoof");
                refused.remedy_key(*reason, *is_own).into_iter().for_each(|key| forecast.allowed_by(self.from, key));
            }
            Step::VlanNotCarried { is_trunk } => forecast.denied_by(self.from, vlan_key(*is_trunk)),
            Step::ReservedGroup => forecast.denied_by(self.from, "reserved"),
            Step::Passage(to, PassageStep::Isolated) => {
                [self.from, &(self.name_of)(*to)].into_iter().for_each(|name| forecast.denied_by(name, "isolated"));
            }
            Step::Passage(to, PassageStep::VlanNotCarried { is_trunk }) => {
                forecast.denied_by(&(self.name_of)(*to), vlan_key(*is_trunk));
            }
            Step::Passage(_, PassageStep::Denied { line, .. }) => forecast.decided_by_rule(*line, false),
            Step::Passage(_, PassageStep::Allowed(_, line)) => forecast.decided_by_rule(*line, true),
            _ => {}
        }
    }

    /// A step in sentences: most have one.
    fn sentences(&self, step: &Step) -> Vec<String> {
        let from = self.from;
        vec![match step {
            Step::Runt(length) => {
                format!("the frame has {}, fewer than the {ETHERNET} of an Ethernet header", counted(*length, "byte"))
            }
            Step::Early(reason) => format!("the frame was dropped before a verdict: {}", reason.meaning()),
            Step::Disabled => format!("{from} is disabled: its frames stay in its transmit ring until it is enabled"),
            Step::Twin(twin) => format!("{from} is a twin, whose guest has {}", addresses(twin)),
            Step::TwinHeaders => "its headers are too long: its addresses cannot be exchanged".into(),
            Step::Source(foreseen) => return self.source(foreseen),
            Step::Refused { reason, refused, is_own } => {
                return self.refused(*reason, refused, *is_own).into_iter().collect();
            }
            Step::VlanNotCarried { .. } => {
                format!("the frame is in no VLAN of {from}: an access port sends without tags, a trunk with tags of its VLANs")
            }
            Step::ReservedGroup => {
                let destination = self.grounds.destination;
                format!("destination {destination} is a reserved group address, and {from} drops these (key reserved)")
            }
            Step::NothingLearned => NOTHING_LEARNED.into(),
            Step::Answered(mac) => {
                let answer = mac.map_or_else(|| "it".into(), |mac| format!("with {mac}"));
                format!("the switch answers {answer}, and no other port receives the question")
            }
            Step::Flooded(segment) => {
                let destination = self.grounds.destination;
                let what = if destination.is_group() { "is a group address" } else { "is unknown" };
                format!("destination {destination} {what}: the frame is flooded to segment {segment}")
            }
            Step::Storm => format!("{from} has used up its limit of flooded frames (storm) at this moment"),
            Step::Passage(to, step) => self.passage(&(self.name_of)(*to), step),
            Step::Receiver(to, step) => receiver(&(self.name_of)(*to), step),
        }]
    }

    /// The source of the frame.
    fn source(&self, foreseen: &Foreseen) -> Vec<String> {
        let (name, Foreseen { source, vlan, verdict, .. }) = (self.from, *foreseen);
        let vlan = if vlan == 0 { String::new() } else { format!(" in VLAN {vlan}") };
        let behind = foreseen.behind.map(self.name_of);
        let other = || behind.as_deref().unwrap_or("another port");
        let told = match foreseen.learned {
            None => self.refused_source(foreseen),
            Some(Learned::Known) => Some(format!("source {source}{vlan} is known behind {name}")),
            Some(Learned::Changed) => Some(match &behind {
                Some(other) => format!("source {source}{vlan} moves from {other} to {name}"),
                None => format!("source {source}{vlan} is new, and is learned behind {name}"),
            }),
            Some(Learned::NoRoom) => Some(format!(
                "source {source}{vlan} is new, but is not learned: {name} has reached the limit of MAC addresses per port"
            )),
            Some(Learned::Pinned) => Some(format!("source {source} is the mac of {}, and no other port may send from it", other())),
            Some(Learned::Held) => Some(format!("source {source}{vlan} moved too often, as in a loop, and is held at {}", other())),
        };
        let is_same = verdict == Verdict::Drop(DropReason::SamePort);
        let bridge = || format!("the destination is behind {name} too: the guest's own bridge delivers such frames");
        told.into_iter().chain(is_same.then(bridge)).collect()
    }

    /// A source that may not send the frame at all.
    fn refused_source(&self, Foreseen { source, verdict, .. }: &Foreseen) -> Option<String> {
        let name = self.from;
        Some(match verdict {
            Verdict::Drop(DropReason::SpoofedSource) => {
                format!("source {source} is not the mac of {name}, and anti-spoof allows no other")
            }
            Verdict::Drop(DropReason::SpoofedIp | DropReason::SpoofedArp | DropReason::NotAServer) => {
                format!("source {source} is a MAC address of {name}")
            }
            // The next step tells it.
            Verdict::Drop(DropReason::VlanNotCarried) => return None,
            _ => format!("source {source} is not a unicast address: all zeroes, or a group address"),
        })
    }

    /// The rule about addresses that refuses the frame.
    fn refused(&self, reason: DropReason, refused: &Refused, is_own: bool) -> Option<String> {
        let (name, mac) = (self.from, refused.mac);
        let claim = refused.ip.map_or_else(|| "an address that it hides".into(), |ip| ip.to_string());
        let rule = match reason {
            DropReason::SpoofedIp => format!("its IP source {claim} is not an address of {name} behind {mac}"),
            DropReason::SpoofedArp => {
                format!("it tells the segment that {claim} is at {mac}, and {name} has no such pair of addresses")
            }
            DropReason::NotAServer => {
                format!("it is a DHCP answer, a router advertisement or a redirect, and {name} may not serve them")
            }
            _ => return None,
        };
        Some(format!("anti-spoof = \"all\": {rule}; key that would allow it: {}", refused.remedy(reason, is_own)))
    }

    /// The passage to the port called `to`.
    fn passage(&self, to: &str, step: &PassageStep) -> String {
        let (from, destination) = (self.from, self.grounds.destination);
        match step {
            PassageStep::Behind(age) => {
                let age = age.map_or_else(String::new, |age| format!(", last heard {age} s ago"));
                format!("destination {destination} is behind {to}{age}")
            }
            PassageStep::OtherVlan { known, unknown } => {
                let (known, unknown) = (within(*known), within(*unknown));
                format!("destination {destination} is behind {to} {known}, and not {unknown}: the guests use different VLAN tags")
            }
            PassageStep::Probe => format!("it is a probe for an address that guests may make: it goes to the responder, {to}"),
            PassageStep::Owner(ip, source) => format!("IP address {ip} belongs to {to} ({})", source.name()),
            PassageStep::Isolated => format!("destination {destination} is behind {to}, and both ports are isolated"),
            PassageStep::VlanNotCarried { .. } => {
                format!("destination {destination} is behind {to}, which does not carry the VLAN")
            }
            PassageStep::Denied { rule, allowing, .. } => {
                format!("frames from {from} to {to} meet the rule {rule}; before it, this one would allow the frame: {allowing}")
            }
            PassageStep::Allowed(rule, _) => format!("frames from {from} to {to} meet the rule {rule}, which allows them"),
            PassageStep::NoRule => format!("no policy rule is about such frames from {from} to {to}, so they pass"),
            PassageStep::KeptApart => format!("{to} does not receive it: by isolated, vlan, trunk or reserved of {to} or {from}"),
            PassageStep::NoMember => {
                format!("{to} does not receive it: its guest has not reported the group (multicast = \"snoop\")")
            }
            PassageStep::NoServer => {
                format!("{to} does not receive it: memlane answers requests to servers (subnet), and the port has no may-serve")
            }
        }
    }
}

/// The frame at its receiver, called `name`.
fn receiver(name: &str, step: &ReceiverStep) -> String {
    match step {
        ReceiverStep::TagAdded(vlan) => format!("{name} carries VLAN {vlan} with a tag: it is added"),
        ReceiverStep::TagRemoved(vlan) => format!("{name} carries VLAN {vlan} without a tag: it is removed"),
        ReceiverStep::TooLong(mtu, is_told) => {
            let answer = if *is_told { ": its sender is told by ICMP" } else { ", and a flooded frame is not answered" };
            format!("the packet is longer than the MTU of {name} ({mtu}){answer}")
        }
        ReceiverStep::Disabled(state) => format!("{name} is disabled ({})", state.name()),
        ReceiverStep::NoQueue(state) => format!("{name} has no running receive queue ({})", state.name()),
        ReceiverStep::Twin(twin) => format!("{name} is a twin: its guest receives the frame with {}", addresses(twin)),
        ReceiverStep::Link(link) => format!("the emulated link of {name} is on the path, and may lose the frame: {link}"),
        ReceiverStep::Limit => {
            format!("the receive rate limit of {name} delays frames at this moment: the frame would wait")
        }
        ReceiverStep::Waiting(frames) => {
            let frames = counted(*frames, "frame");
            format!("{frames} waiting for {name} at this moment: the frame would wait behind, or be dropped as receiver-full")
        }
        ReceiverStep::LongForDriver(mtu) => {
            format!("the frame is longer than the MTU of {name} ({mtu}): its driver may refuse it")
        }
    }
}

#[cfg(test)]
mod tests;
