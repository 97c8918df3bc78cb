//! Grounds of a verdict, step by step: MAC learning, FDB entries, VLANs, anti-spoofing and policy rules that led to the unicast receiver or the drop
//! reason. `memlane why` tells them of a frame that is not sent, `memlane replay` of a recorded one; the sentences are the daemon's.

use std::net::IpAddr;

use memlane_model::impairment::Impairment;
use memlane_model::refused::Refused;

use crate::address_map::Source;
use crate::frame::{Head, MacAddress};
use crate::id::PortId;
use crate::packet::TagChange;
use crate::policy::gate::Vlans;
use crate::port::PortState;
use crate::port::refused::{REASONS, refused};
use crate::stats::DropReason;
use crate::twin::Twin;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::{Foreseen, Verdict};

/// The outcome of a frame, and the steps that lead to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Grounds {
    /// The sender.
    pub from: PortId,
    /// The destination of the frame; zeroes if the frame ends before it.
    pub destination: MacAddress,
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// Ports to which the frame is delivered.
    pub receivers: Vec<PortId>,
    /// Drops: the port where each is counted, and its reason.
    pub drops: Vec<(PortId, DropReason)>,
    /// The port for which the switch answers the frame: an ARP request, or a neighbour solicitation.
    pub answered_for: Option<PortId>,
}

/// A step to the outcome of a frame: about the frame and its sender, or about another port.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The frame has so many bytes, fewer than an Ethernet header.
    Runt(usize),
    /// The frame was dropped before a verdict: a malformed descriptor chain or offload.
    Early(DropReason),
    /// The sender is disabled: its frames stay in its transmit ring.
    Disabled,
    /// The sender is a twin.
    Twin(Twin),
    /// The headers are too long for an exchange of a twin's addresses.
    TwinHeaders,
    /// The source, MAC learning of it, and the verdict.
    Source(Foreseen),
    /// Anti-spoofing refuses the frame.
    Refused {
        /// The drop reason.
        reason: DropReason,
        /// The addresses that the frame claims.
        refused: Refused,
        /// The MAC address that it claims is the `mac` of the sender.
        is_own: bool,
    },
    /// The sender does not carry the VLAN.
    VlanNotCarried {
        /// The sender is a trunk.
        is_trunk: bool,
    },
    /// The sender drops frames to reserved group addresses.
    ReservedGroup,
    /// The address map does not learn from the frame: malformed, or without a source address.
    NothingLearned,
    /// The switch answers the question with this MAC address, if that is known.
    Answered(Option<MacAddress>),
    /// The frame is flooded to the segment of this name.
    Flooded(String),
    /// The sender has used up its limit of flooded frames.
    Storm,
    /// Whether the frame passes to this port.
    Passage(PortId, PassageStep),
    /// How the frame fares at this port, to which it passes.
    Receiver(PortId, ReceiverStep),
}

/// A step about the passage of a frame to a port.
#[derive(Clone, Debug, PartialEq)]
pub enum PassageStep {
    /// The destination is behind the port, and was heard of last so many seconds ago.
    Behind(Option<u32>),
    /// The destination is unknown in the VLAN of the frame, and behind the port in another; VLAN 0 is none.
    OtherVlan {
        /// VLAN of the destination.
        known: u16,
        /// VLAN of the frame.
        unknown: u16,
    },
    /// The port is the responder, and the frame a probe for an address that guests may make.
    Probe,
    /// The IP address in a question belongs to the port, by this source.
    Owner(IpAddr, Source),
    /// The port is isolated, and the sender too.
    Isolated,
    /// The port does not carry the VLAN.
    VlanNotCarried {
        /// The port is a trunk.
        is_trunk: bool,
    },
    /// A policy rule denies the frame.
    Denied {
        /// The rule in words, with its place.
        rule: String,
        /// The line of the rule in the network's file; 0 if that is not known.
        line: usize,
        /// A rule that would allow the frame, as the network's file would state it before the other.
        allowing: String,
    },
    /// A policy rule allows the frame: the rule in words, and its line.
    Allowed(String, usize),
    /// No policy rule is about the frame.
    NoRule,
    /// Isolation, VLANs or reserved groups keep the flooded frame from the port.
    KeptApart,
    /// The port is no member of the group of the flooded frame.
    NoMember,
    /// The port is no server for the request in the flooded frame.
    NoServer,
}

/// A step about the port that receives a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiverStep {
    /// The port carries this VLAN with a tag, which is added.
    TagAdded(u16),
    /// The port carries this VLAN without a tag, which is removed.
    TagRemoved(u16),
    /// The packet is longer than this MTU of the way to the port; whether ICMP tells its sender.
    TooLong(u16, bool),
    /// The port is disabled, in this state.
    Disabled(PortState),
    /// The port has no running receive queue, in this state.
    NoQueue(PortState),
    /// The port is a twin.
    Twin(Twin),
    /// Link emulation is on the path to the port.
    Link(Impairment),
    /// The receive rate limit of the port delays frames.
    Limit,
    /// So many frames wait for the port.
    Waiting(u64),
    /// The frame is longer than this MTU of the port's driver.
    LongForDriver(u16),
}

impl Grounds {
    /// Of a frame from `from` that begins with `start`, without steps.
    pub(crate) fn new(from: PortId, start: &[u8]) -> Self {
        let destination = MacAddress::new(start.first_chunk().copied().unwrap_or_default());
        Self { from, destination, steps: Vec::new(), receivers: Vec::new(), drops: Vec::new(), answered_for: None }
    }

    /// Adds a step.
    pub(crate) fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Adds a step about the passage to a port.
    pub(crate) fn passage(&mut self, to: PortId, step: PassageStep) {
        self.step(Step::Passage(to, step));
    }

    /// Adds a step about a receiver.
    pub(crate) fn receiver(&mut self, to: PortId, step: ReceiverStep) {
        self.step(Step::Receiver(to, step));
    }

    /// Adds a drop that is counted at `port`.
    pub(crate) fn drop_at(&mut self, port: PortId, reason: DropReason) {
        self.drops.push((port, reason));
    }

    /// The gate that the frame with this `head` does not pass, from a port with the VLANs `vlans` to the `receiver` with its VLANs.
    pub(crate) fn gates(&mut self, vlans: &Vlans, reason: DropReason, receiver: Option<(PortId, &Vlans)>, head: Head) {
        let is_trunk = |vlans: &Vlans| matches!(vlans, Vlans::Trunk { .. });
        match (reason, receiver) {
            (DropReason::Isolated, Some((to, _))) => self.passage(to, PassageStep::Isolated),
            (DropReason::VlanNotCarried, Some((to, theirs))) if vlans.of_sent(head.vlan().0).is_some() => {
                self.passage(to, PassageStep::VlanNotCarried { is_trunk: is_trunk(theirs) });
            }
            (DropReason::VlanNotCarried, _) => self.step(Step::VlanNotCarried { is_trunk: is_trunk(vlans) }),
            (DropReason::ReservedGroup, _) => self.step(Step::ReservedGroup),
            _ => {}
        }
    }

    /// The rule about addresses that refuses the frame, which begins with `start`; `is_own` tells if a MAC address is the sender's `mac`.
    pub(crate) fn anti_spoof(&mut self, reason: DropReason, start: &[u8], is_own: impl FnOnce(MacAddress) -> bool) {
        if REASONS.contains(&reason) {
            let refused = refused(start);
            self.step(Step::Refused { reason, refused, is_own: is_own(refused.mac) });
        }
    }

    /// The policy rule that denies the frame from the port called `from` to another, and one that would allow it.
    pub(crate) fn denial(&mut self, filtered: &FilteredFlood<'_>, from: &str, (to, name): (PortId, &str)) {
        let Some(rule) = filtered.denying(to) else { return };
        let allowing = filtered.target().allowing(from, Some(name), filtered.filter().limits_destinations());
        self.passage(to, PassageStep::Denied { rule: rule.text(), line: rule.line(), allowing: allowing.stated() });
    }

    /// The policy rule that allows the frame to the port `to`, if one does; else it passes because no rule is about it.
    pub(crate) fn allowing_rule(&mut self, filtered: &FilteredFlood<'_>, to: PortId) {
        let rule = filtered.deciding(to).filter(|rule| rule.allows());
        self.passage(to, rule.map_or(PassageStep::NoRule, |rule| PassageStep::Allowed(rule.text(), rule.line())));
    }

    /// A change of the VLAN tag of a frame in `vlan`.
    pub(crate) fn tag(&mut self, verdict: Verdict, vlan: u16) {
        match verdict {
            Verdict::Retagged(to, TagChange::Push(vlan)) => self.receiver(to, ReceiverStep::TagAdded(vlan)),
            Verdict::Retagged(to, TagChange::Pop) => self.receiver(to, ReceiverStep::TagRemoved(vlan)),
            _ => {}
        }
    }

    /// The packet is longer than the MTU of the way to the port `to`; whether ICMP tells its sender.
    pub(crate) fn too_long(&mut self, to: PortId, mtu: u16, is_told: bool) {
        self.receiver(to, ReceiverStep::TooLong(mtu, is_told));
        self.drop_at(to, DropReason::TooLong);
    }
}
