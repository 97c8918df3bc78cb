//! Grounds of a verdict in words: MAC learning, FDB entries, VLANs, anti-spoofing and policy rules that led to the unicast receiver or the drop reason.
//! `memlane why` tells them of a frame that is not sent, `memlane replay` of a recorded one.

use memlane_model::forecast::Forecast;

use crate::frame::{Head, MacAddress};
use crate::id::PortId;
use crate::packet::TagChange;
use crate::policy::gate::Vlans;
use crate::port::refused::{REASONS, Refused};
use crate::stats::DropReason;
use crate::table::Learned;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::{Foreseen, Verdict};

/// A port in these words: its name and its VLANs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'p> {
    pub name: &'p str,
    pub vlans: &'p Vlans,
}

impl Named<'_> {
    /// The key that states its VLANs.
    fn vlan_key(&self) -> &'static str {
        if matches!(self.vlans, Vlans::Trunk { .. }) { "trunk" } else { "vlan" }
    }
}

/// The source of a frame from the port called `name`, as `foreseen`; `name_of` names ports.
pub(crate) fn tell_source(forecast: &mut Forecast, name: &str, foreseen: &Foreseen, name_of: impl Fn(PortId) -> String) {
    let Foreseen { source, vlan, .. } = *foreseen;
    let vlan = if vlan == 0 { String::new() } else { format!(" in VLAN {vlan}") };
    let behind = |unknown: &str| foreseen.behind.map_or_else(|| unknown.to_owned(), &name_of);
    forecast.step(match (foreseen.learned, foreseen.verdict) {
        (None, Verdict::Drop(DropReason::SpoofedSource)) => {
            format!("source {source} is not the mac of {name}, and anti-spoof allows no other")
        }
        (None, Verdict::Drop(DropReason::SpoofedIp | DropReason::SpoofedArp | DropReason::NotAServer)) => {
            format!("source {source} is a MAC address of {name}")
        }
        (None, Verdict::Drop(DropReason::VlanNotCarried)) => {
            format!("the frame is in no VLAN of {name}: an access port sends without tags, a trunk with tags of its VLANs")
        }
        (None, _) => format!("source {source} is not a unicast address: all zeroes, or a group address"),
        (Some(Learned::Known), _) => format!("source {source}{vlan} is known behind {name}"),
        (Some(Learned::Changed), _) => match foreseen.behind {
            Some(other) => format!("source {source}{vlan} moves from {} to {name}", name_of(other)),
            None => format!("source {source}{vlan} is new, and is learned behind {name}"),
        },
        (Some(Learned::NoRoom), _) => {
            format!("source {source}{vlan} is new, but is not learned: {name} has reached the limit of MAC addresses per port")
        }
        (Some(Learned::Pinned), _) => {
            format!("source {source} is the mac of {}, and no other port may send from it", behind("another port"))
        }
        (Some(Learned::Held), _) => {
            format!("source {source}{vlan} moved too often, as in a loop, and is held at {}", behind("another port"))
        }
    });
    if let (Some(Learned::Pinned), Some(owner)) = (foreseen.learned, foreseen.behind) {
        forecast.denied_by(&name_of(owner), "mac");
    }
    if foreseen.verdict == Verdict::Drop(DropReason::SamePort) {
        forecast.step(format!("the destination is behind {name} too: the guest's own bridge delivers such frames"));
    }
}

/// The gate that the frame does not pass, from one port to the other.
pub(crate) fn tell_gates(forecast: &mut Forecast, port: Named<'_>, reason: DropReason, receiver: Option<Named<'_>>, head: Head) {
    let (name, destination) = (port.name, head.destination());
    match (reason, receiver) {
        (DropReason::Isolated, Some(to)) => {
            forecast.step(format!("destination {destination} is behind {}, and both ports are isolated", to.name));
            [name, to.name].into_iter().for_each(|name| forecast.denied_by(name, "isolated"));
        }
        (DropReason::VlanNotCarried, Some(to)) if port.vlans.of_sent(head.vlan().0).is_some() => {
            forecast.step(format!("destination {destination} is behind {}, which does not carry the VLAN", to.name));
            forecast.denied_by(to.name, to.vlan_key());
        }
        (DropReason::ReservedGroup, _) => {
            forecast.step(format!("destination {destination} is a reserved group address, and {name} drops these (key reserved)"));
            forecast.denied_by(name, "reserved");
        }
        (DropReason::VlanNotCarried, _) => forecast.denied_by(name, port.vlan_key()),
        _ => {}
    }
}

/// The rule about addresses that refuses a frame of the port called `name`, and the key that would allow it. `is_own` tells if the claimed MAC address is
/// the port's `mac`.
pub(crate) fn tell_refused(forecast: &mut Forecast, name: &str, reason: DropReason, refused: &Refused, is_own: bool) {
    let claim = refused.ip.map_or_else(|| "an address that it hides".into(), |ip| ip.to_string());
    let mac = refused.mac;
    if REASONS.contains(&reason) {
        forecast.denied_by(name, "anti-spoof");
        refused.remedy_key(reason, is_own).into_iter().for_each(|key| forecast.allowed_by(name, key));
    }
    let rule = match reason {
        DropReason::SpoofedIp => format!("its IP source {claim} is not an address of {name} behind {mac}"),
        DropReason::SpoofedArp => {
            format!("it tells the segment that {claim} is at {mac}, and {name} has no such pair of addresses")
        }
        DropReason::NotAServer => {
            format!("it is a DHCP answer, a router advertisement or a redirect, and {name} may not serve them")
        }
        _ => return,
    };
    forecast.step(format!("anti-spoof = \"all\": {rule}; key that would allow it: {}", refused.remedy(reason, is_own)));
}

/// The policy rule that denies a frame from one port to another, and one that would allow it.
pub(crate) fn tell_denial(forecast: &mut Forecast, filtered: &FilteredFlood<'_>, (from, to): (&str, (PortId, &str))) {
    let Some(rule) = filtered.denying(to.0) else { return };
    let allowing = filtered.target().allowing(from, Some(to.1), filtered.filter().limits_destinations());
    forecast.decided_by_rule(rule.line(), false);
    forecast.step(format!(
        "frames from {from} to {} meet the rule {}; before it, this one would allow the frame: {}",
        to.1,
        rule.text(),
        allowing.stated()
    ));
}

/// The policy rule that allows a frame from one port to another, if one does; else it passes because no rule is about it.
pub(crate) fn tell_allowing_rule(forecast: &mut Forecast, filtered: &FilteredFlood<'_>, (from, to): (&str, (PortId, &str))) {
    match filtered.deciding(to.0).filter(|rule| rule.allows()) {
        Some(rule) => {
            forecast.decided_by_rule(rule.line(), true);
            forecast.step(format!("frames from {from} to {} meet the rule {}, which allows them", to.1, rule.text()));
        }
        None => forecast.step(format!("no policy rule is about such frames from {from} to {}, so they pass", to.1)),
    }
}

/// A change of the VLAN tag of a frame in `vlan` to the port called `name`.
pub(crate) fn tell_tag(forecast: &mut Forecast, verdict: Verdict, vlan: u16, name: &str) {
    match verdict {
        Verdict::Retagged(_, TagChange::Push(vlan)) => forecast.step(format!("{name} carries VLAN {vlan} with a tag: it is added")),
        Verdict::Retagged(_, TagChange::Pop) => forecast.step(format!("{name} carries VLAN {vlan} without a tag: it is removed")),
        _ => {}
    }
}

/// The packet is longer than the MTU of the way to the port called `name`.
pub(crate) fn tell_too_long(forecast: &mut Forecast, name: &str, mtu: u16) {
    forecast.step(format!("the packet is longer than the MTU of {name} ({mtu}): its sender is told by ICMP"));
    forecast.drop_at(name, DropReason::TooLong);
}

/// A frame is flooded to the segment of this name.
pub(crate) fn tell_flood(forecast: &mut Forecast, head: Head, segment: &str) {
    let destination = head.destination();
    let what = if destination.is_group() { "is a group address" } else { "is unknown" };
    forecast.step(format!("destination {destination} {what}: the frame is flooded to segment {segment}"));
}

/// Why a port does not get a frame for the members of a group, or for servers.
pub(crate) fn not_heard(head: Head) -> &'static str {
    if head.destination() == MacAddress::BROADCAST { NO_SERVER } else { NO_MEMBER }
}

/// Why a port that is no member of a group does not get its frames.
pub(crate) const NO_MEMBER: &str = "its guest has not reported the group (multicast = \"snoop\")";
/// Why a port that is no server does not get requests.
pub(crate) const NO_SERVER: &str = "memlane answers requests to servers (subnet), and the port has no may-serve";

/// Gates keep a flooded frame from the port `from` from the port `to`.
pub(crate) fn tell_kept_apart(forecast: &mut Forecast, from: &str, to: &str) {
    let keys = "isolated, vlan, trunk or reserved";
    forecast.step(format!("{to} does not receive it: by {keys} of {to} or {from}"));
}
