//! A flooded frame (broadcast, multicast, unknown unicast) before its receivers: whether each gets a copy, and with which VLAN tag.

use super::answers::{self, Answers, Question};
use super::filter::FilteredFlood;
use crate::frame::Head;
use crate::id::PortId;
use crate::packet::TagChange;
use crate::policy::gate::{Entrance, Gate};
use crate::stats::DropReason;

/// How a flooded frame reaches one of the receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// The frame as it is.
    Same,
    /// With another VLAN tag.
    Retagged(TagChange),
    /// Not at all.
    None,
    /// The frame is dropped for this reason, which is counted there.
    Dropped(DropReason),
}

impl Passage {
    /// The passage of a frame with this `head` from a port in this gate, `filtered` by policy rules, if there are any; `entrance` tells how frames of a VLAN
    /// enter the port `to`.
    #[inline]
    pub(crate) fn by_gates(
        (is_gated, from): (bool, Gate<'_>),
        (to, entrance): (PortId, impl FnOnce(u16) -> Entrance),
        head: Head,
        filtered: Option<&FilteredFlood<'_>>,
    ) -> Self {
        let is_reserved = head.destination().is_reserved_group();
        if !is_gated && !is_reserved {
            return Self::Same;
        }
        let tag = head.vlan().0;
        let vlan = from.vlans.of_sent(tag);
        let entrance = entrance(vlan.unwrap_or(0));
        if entrance.drops_reserved && is_reserved {
            return Self::None;
        }
        if !is_gated {
            return Self::Same;
        }
        let is_denied = || filtered.is_some_and(|filtered| !filtered.passes(to));
        match vlan.map(|vlan| from.pass_into(entrance, vlan, tag)) {
            Some(Ok(_)) if is_denied() => Self::Dropped(DropReason::PolicyDenied),
            Some(Ok(None)) => Self::Same,
            Some(Ok(Some(change))) => Self::Retagged(change),
            Some(Err(_)) | None => Self::None,
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flooded<'f> {
    /// The frame's Ethernet header.
    pub head: Head,
    /// Whether gates decide in its segment.
    pub is_gated: bool,
    /// The gate of its sender.
    pub gate: Gate<'f>,
    /// The frame before policy rules, if there are any.
    pub filtered: Option<&'f FilteredFlood<'f>>,
    /// Bytes behind its Ethernet header, if they may be more than the way to a port carries.
    pub long: Option<u32>,
    /// The tape of the verdict.
    pub tape: Answers<'f>,
}

/// The properties of a receiver on which that depends.
pub(crate) trait Receiver {
    /// Whether it is in the audience of the frame.
    fn hears(&self) -> bool;
    /// How frames of `vlan` enter it.
    fn entrance(&self, vlan: u16) -> Entrance;
    /// The MTU of the way to it.
    fn mtu(&self) -> Option<u16>;
}

impl Flooded<'_> {
    /// The passage to the port `to`.
    pub(crate) fn passage(&self, to: PortId, receiver: &impl Receiver) -> Passage {
        // A request to a server is denied to no port that would not receive it.
        if !answers::is(self.tape, Question::Hears(to), || receiver.hears()) {
            return Passage::None;
        }
        let entrance = |vlan| answers::entrance(self.tape, (to, vlan), || receiver.entrance(vlan));
        let passage = Passage::by_gates((self.is_gated, self.gate), (to, entrance), self.head, self.filtered);
        if matches!(passage, Passage::None | Passage::Dropped(_)) {
            return passage;
        }
        let mtu = self.long.and_then(|length| Some((length, answers::mtu(self.tape, to, || receiver.mtu())?)));
        match mtu {
            Some((length, mtu)) if length > mtu.into() => Passage::Dropped(DropReason::TooLong),
            _ => passage,
        }
    }
}
