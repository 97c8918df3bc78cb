//! Gates: whether frames pass between two ports of a segment, by isolation, VLANs, reserved groups and policy rules, and in which form.
//!
//! A port without VLAN keys carries frames as they are: those with a tag in its VLAN, those without in no VLAN. An access port has
//! one VLAN and frames without tags; a trunk carries tagged frames of its VLANs, and those of its native VLAN without a tag
//! (IEEE 802.1Q, section 8.6.2 and 8.8).

#![expect(clippy::indexing_slicing, reason = "all of a list, and a VLAN modulo the number of bits")]

use memlane_model::limits::PortLimits;

use crate::packet::TagChange;
use crate::policy::filter::Filtered;
use crate::stats::DropReason;

/// Words of a set of VLANs.
const WORDS: usize = 4096 / 64;

/// VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlans {
    /// All, as they are.
    #[default]
    Any,
    /// One, without tags.
    Access(u16),
    /// A trunk.
    Trunk {
        /// VLAN of frames without a tag; 0 for none.
        native: u16,
        /// VLANs of frames with a tag.
        tagged: Box<[u64; WORDS]>,
    },
}

impl Vlans {
    /// The limits by these settings.
    pub fn of(limits: &PortLimits) -> Self {
        match (limits.vlan, &limits.trunk[..]) {
            (None, []) => Self::Any,
            (Some(vlan), []) => Self::Access(vlan),
            (native, ranges) => {
                let mut tagged = Box::new([0; WORDS]);
                for vlan in ranges.iter().flat_map(|range| range.vlans()) {
                    tagged[usize::from(vlan % 4096) / 64] |= 1 << (vlan % 64);
                }
                Self::Trunk { native: native.unwrap_or(0), tagged }
            }
        }
    }

    /// Whether a set of VLANs has this one.
    pub(crate) fn has(tagged: &[u64; WORDS], vlan: u16) -> bool {
        tagged[usize::from(vlan % 4096) / 64] >> (vlan % 64) & 1 != 0
    }

    /// The VLAN of a frame that the port sends with a tag of VLAN `tag`, 0 for none; `None` if the port does not carry it.
    #[inline]
    pub fn of_sent(&self, tag: u16) -> Option<u16> {
        match self {
            Self::Any => Some(tag),
            Self::Access(vlan) => (tag == 0).then_some(*vlan),
            Self::Trunk { native: 0, .. } if tag == 0 => None,
            Self::Trunk { native, .. } if tag == 0 => Some(*native),
            Self::Trunk { tagged, .. } => Self::has(tagged, tag).then_some(tag),
        }
    }

    /// Whether the port receives frames of `vlan` with a tag; `None` if it does not carry them.
    fn is_tagged(&self, vlan: u16) -> Option<bool> {
        match self {
            Self::Any => Some(vlan != 0),
            Self::Access(own) => (vlan == *own).then_some(false),
            Self::Trunk { native, .. } if vlan == *native && vlan != 0 => Some(false),
            Self::Trunk { tagged, .. } => Self::has(tagged, vlan).then_some(true),
        }
    }
}

/// How frames of a VLAN enter a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// The port exchanges frames only with ports that are not isolated.
    pub isolated: bool,
    /// The port drops frames to reserved groups.
    pub drops_reserved: bool,
    /// Whether they enter with a tag; `None` if the port does not carry the VLAN.
    pub is_tagged: Option<bool>,
}

impl Entrance {
    /// The gate's number in recordings: bit 0 for an isolated port, bit 1 for one that drops reserved groups, and above it 0 for no entrance, 1 without a
    /// tag, 2 with one.
    pub(crate) fn number(self) -> u16 {
        let form = self.is_tagged.map_or(0, |is_tagged| 1 + u16::from(is_tagged));
        u16::from(self.isolated) | u16::from(self.drops_reserved) << 1 | form << 2
    }

    /// The gate with this number.
    pub(crate) fn of_number(number: u16) -> Self {
        let is_tagged = match number >> 2 {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        };
        Self { isolated: number & 1 != 0, drops_reserved: number & 2 != 0, is_tagged }
    }
}

/// See the module: of one port.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'p> {
    /// The port exchanges frames only with ports that are not isolated.
    pub isolated: bool,
    /// The port drops frames to reserved groups.
    pub drops_reserved: bool,
    /// VLANs of the port.
    pub vlans: &'p Vlans,
    /// Policy rules about its frames, if there are any.
    pub filtered: Option<Filtered<'p>>,
}

impl Gate<'static> {
    /// A port without any rule.
    pub const OPEN: Self = Self { isolated: false, drops_reserved: false, vlans: &Vlans::Any, filtered: None };
}

impl Gate<'_> {
    /// Whether senders of unicast frames must look at it.
    pub fn is_restricted(&self) -> bool {
        self.isolated || *self.vlans != Vlans::Any
    }

    /// The change of the tag of a frame in `vlan` from this port to `receiver`; the frame has a tag of VLAN `tag`, 0 for none.
    ///
    /// # Errors
    /// The frame does not pass, for this reason.
    #[inline]
    pub fn pass(&self, receiver: &Gate<'_>, vlan: u16, tag: u16) -> Result<Option<TagChange>, DropReason> {
        self.pass_into(receiver.entrance(vlan), vlan, tag)
    }

    /// How frames of `vlan` enter the port.
    #[inline]
    pub fn entrance(&self, vlan: u16) -> Entrance {
        Entrance { isolated: self.isolated, drops_reserved: self.drops_reserved, is_tagged: self.vlans.is_tagged(vlan) }
    }

    /// Like [`Self::pass`], into a port with this `entrance`.
    ///
    /// # Errors
    /// The errors of [`Self::pass`].
    #[inline]
    pub fn pass_into(&self, entrance: Entrance, vlan: u16, tag: u16) -> Result<Option<TagChange>, DropReason> {
        if self.isolated && entrance.isolated {
            return Err(DropReason::Isolated);
        }
        let is_tagged = entrance.is_tagged.ok_or(DropReason::VlanNotCarried)?;
        Ok(match (tag != 0, is_tagged) {
            (true, false) => Some(TagChange::Pop),
            (false, true) => Some(TagChange::Push(vlan)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlans(vlan: Option<u16>, trunk: &[&str]) -> Vlans {
        let trunk = trunk.iter().map(|range| range.parse().unwrap()).collect();
        Vlans::of(&PortLimits { vlan, trunk, ..PortLimits::default() })
    }

    #[test]
    fn a_frame_is_in_the_vlan_of_its_port() {
        let (any, access, trunk) = (vlans(None, &[]), vlans(Some(10), &[]), vlans(None, &["20", "100-199"]));
        let native = vlans(Some(10), &["20"]);
        let of_sent = |tag| [&any, &access, &trunk, &native].map(|vlans| vlans.of_sent(tag));
        assert_eq!(of_sent(0), [Some(0), Some(10), None, Some(10)]);
        assert_eq!(of_sent(10), [Some(10), None, None, None]);
        assert_eq!(of_sent(20), [Some(20), None, Some(20), Some(20)]);
        assert_eq!(of_sent(199), [Some(199), None, Some(199), None]);
        assert_eq!(of_sent(200), [Some(200), None, None, None]);
    }

    #[test]
    fn a_frame_passes_in_the_form_that_its_receiver_carries() {
        let ports =
            [vlans(None, &[]), vlans(Some(10), &[]), vlans(Some(20), &[]), vlans(None, &["10-20"]), vlans(Some(10), &["20"])];
        let gates = ports.each_ref().map(|vlans| Gate { vlans, ..Gate::OPEN });
        let pass = |from: usize, tag| {
            let vlan = ports[from].of_sent(tag).unwrap();
            gates.map(|to| gates[from].pass(&to, vlan, tag))
        };
        let (keep, push, pop) = (Ok(None), |vlan| Ok(Some(TagChange::Push(vlan))), Ok(Some(TagChange::Pop)));
        let no = Err(DropReason::VlanNotCarried);
        assert_eq!(pass(0, 0), [keep, no, no, no, no], "without a tag, between ports without keys");
        assert_eq!(pass(0, 10), [keep, pop, no, keep, pop]);
        assert_eq!(pass(1, 0), [push(10), keep, no, push(10), keep]);
        assert_eq!(pass(3, 20), [keep, no, pop, keep, keep]);
        assert_eq!(pass(4, 0), [push(10), keep, no, push(10), keep], "of the native VLAN");
        assert_eq!(pass(0, 4000), [keep, no, no, no, no]);
    }

    /// The rules of the bridge's `isolated`.
    #[test]
    fn isolated_ports_reach_those_that_are_not() {
        let gate = |isolated| Gate { isolated, ..Gate::OPEN };
        for (from, to, passes) in [(false, false, true), (false, true, true), (true, false, true), (true, true, false)] {
            assert_eq!(gate(from).pass(&gate(to), 0, 0).is_ok(), passes, "{from} to {to}");
        }
    }
}
