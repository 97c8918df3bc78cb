//! Captures beside the fast path: frames that no capture selects need not leave it.
//!
//! A filter's run records the bytes that it read ([`memlane_observe::bpf::Reads`]). If it rejects a frame by bytes that a match mask holds, that mask is
//! kept for the frame's source, and frames that fit it are rejected without a run. Otherwise the filter runs on the first bytes of each frame, in
//! place. Frames on which it needs more, and frames that it selects, are left to the general path, where captures see them.

#![expect(
    clippy::indexing_slicing,
    reason = "an assertion about constants, evaluated by the compiler; a number modulo the length of the list, bytes of the first 64, and all of an array"
)]

use memlane_observe::bpf::{self, Reads};

use super::{Sight, Tap, Taps};
use crate::copy::Block;
use crate::frame::{FurtherMask, Head, MatchMask, SHORT_START, START};
use crate::id::PortId;
use crate::verdict::Masks;

const _: () = assert!(SHORT_START as u32 == bpf::RECORDED);

/// The bits of frames, on the Ethernet header and behind it.
type Mask = (MatchMask, FurtherMask);

/// Masks that a tap keeps of the frames that its filter rejects: sources share them by their numbers.
const KEPT: usize = 64;

/// Frames that a filter rejects, by their source: the mask of the last one.
#[derive(Debug)]
pub(super) struct Rejected(Box<[Option<Mask>]>);

impl Default for Rejected {
    fn default() -> Self {
        Self(vec![None; KEPT].into())
    }
}

impl Rejected {
    fn of(&self, source: PortId) -> Option<&Mask> {
        self.0[source.index() % KEPT].as_ref()
    }

    /// Whether a frame of `source` that begins with `start` is known to be rejected.
    #[inline]
    pub(super) fn has(&self, source: PortId, start: &Block) -> bool {
        self.of(source).is_some_and(|mask| fits(mask, start))
    }

    /// The filter rejected a frame of `source` that begins with `start`, by these `reads`.
    pub(super) fn add(&mut self, source: PortId, start: &[u8; SHORT_START], reads: Reads) {
        if !reads.beyond && !reads.length {
            self.0[source.index() % KEPT] = mask(start, reads.bytes);
        }
    }
}

#[inline(always)]
fn fits((head, further): &Mask, start: &Block) -> bool {
    head.fits_block(start) && (further.is_empty() || further.fits_block(start))
}

/// The mask of these `bytes` of a frame that begins with `start`.
fn mask(start: &[u8; SHORT_START], bytes: u64) -> Option<Mask> {
    let (mut head, mut further) = (0, FurtherMask::default());
    let mut left = bytes;
    while left != 0 {
        let at = left.trailing_zeros() as usize;
        left &= left - 1;
        if at < size_of::<u128>() {
            head |= 0xff << (8 * at);
        } else if !further.add(at, start[at], u8::MAX) {
            return None;
        }
    }
    let mut longer = [0; START];
    longer[..SHORT_START].copy_from_slice(start);
    Some((MatchMask::new(head, Head::of(&longer)), further))
}

/// The mask of the frames that fit both.
fn both(one: Option<Mask>, other: Option<&Mask>) -> Option<Mask> {
    let ((head, further), (other_head, other_further)) = (one?, other?);
    Some((head.and(*other_head)?, further.and(other_further)?))
}

/// The first bytes of a longer frame.
struct Beginning {
    bytes: [u8; SHORT_START],
    length: u32,
}

impl bpf::Frame for Beginning {
    fn length(&self) -> u32 {
        self.length
    }

    fn read(&self, from: u32, to: &mut [u8]) -> bool {
        self.bytes[..].read(from, to)
    }
}

/// Captures that see frames from one port to another.
#[derive(Debug)]
pub(crate) enum Watch<'t> {
    /// None.
    Off,
    /// Taps with filters.
    Filtered(Filters<'t>),
}

/// The filters of captures that see frames from one port to another.
#[derive(Debug)]
pub(crate) struct Filters<'t> {
    taps: &'t mut [Tap],
    /// The taps that see the frames, one bit each.
    watching: u8,
    source: PortId,
    /// Frames that fit the verdict's masks, and that every filter is known to reject.
    known: Option<Mask>,
}

impl Taps {
    /// The captures that see frames from `source` to `port` that fit `masks`; `None` if one of them selects every frame.
    pub(crate) fn watch(&mut self, source: PortId, port: PortId, masks: Masks<'_>) -> Option<Watch<'_>> {
        let (mut watching, mut known) = (0, Some((masks.head, *masks.further)));
        for (index, tap) in self.taps.iter().enumerate() {
            if tap.takes(source, Sight::Transmit) || tap.takes(port, Sight::Receive) {
                tap.shared.order.filter.as_ref()?;
                watching |= 1 << index;
                known = both(known, tap.rejected.of(source));
            }
        }
        let filters = Filters { taps: &mut self.taps, watching, source, known };
        Some(if watching == 0 { Watch::Off } else { Watch::Filtered(filters) })
    }
}

impl Watch<'_> {
    /// Whether a frame of `length` bytes that begins with `start` fits `masks`, and no capture selects it.
    #[inline]
    pub(crate) fn pass(&mut self, masks: Masks<'_>, start: &Block, length: u32) -> bool {
        match self {
            Self::Off => masks.head.fits_block(start) && (masks.further.is_empty() || masks.further.fits_block(start)),
            Self::Filtered(filters) => filters.pass(masks, start, length),
        }
    }
}

impl Filters<'_> {
    /// Whether a frame of `length` bytes that begins with `start` fits `masks`, and no filter selects it.
    #[inline(always)]
    pub(crate) fn pass(&mut self, masks: Masks<'_>, start: &Block, length: u32) -> bool {
        if self.known.as_ref().is_some_and(|known| fits(known, start)) {
            return true;
        }
        masks.head.fits_block(start) && masks.further.fits_block(start) && self.reject(start, length)
    }

    #[inline(never)]
    fn reject(&mut self, start: &Block, length: u32) -> bool {
        let (watching, source) = (self.watching, self.source);
        let mut taps = self.taps.iter_mut().enumerate();
        taps.all(|(index, tap)| watching & 1 << index == 0 || tap.rejects(source, start, length))
    }
}

impl Tap {
    /// Whether the filter rejects a frame of `source`, of `length` bytes, that begins with `start`; false too if more bytes decide.
    fn rejects(&mut self, source: PortId, start: &Block, length: u32) -> bool {
        let Some(filter) = self.shared.order.filter.as_ref() else { return false };
        if self.rejected.has(source, start) {
            return true;
        }
        let bytes = start.bytes();
        let (selected, reads) = filter.trace(&Beginning { bytes, length });
        let rejects = selected == 0 && !reads.beyond;
        if rejects {
            self.rejected.add(source, &bytes, reads);
        }
        rejects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;
    use crate::stats::DropReason;
    use crate::tap::{CaptureOrder, TapReader, capture};

    /// The masks of a verdict on every frame.
    fn open() -> Mask {
        (MatchMask::new(0, Head::default()), FurtherMask::default())
    }

    fn taps(orders: Vec<CaptureOrder>) -> (Taps, Vec<TapReader>) {
        let mut taps = Taps::default();
        let readers = orders.into_iter().enumerate().map(|(number, order)| {
            let (mut made, reader) = capture(number as u64, order, 1);
            taps.add(made.remove(0), 0);
            reader
        });
        let readers = readers.collect();
        (taps, readers)
    }

    fn order(program: &[(u16, u8, u8, u32)]) -> CaptureOrder {
        let program: Vec<_> = program.iter().map(|&instruction| instruction.into()).collect();
        CaptureOrder { snaplen: 1, filter: Some(bpf::Program::new(&program).unwrap()), ..CaptureOrder::default() }
    }

    /// Whether a frame from port 0 to port 1 stays on the fast path.
    fn stays(taps: &mut Taps, frame: &[u8]) -> bool {
        let (head, further) = open();
        let masks = Masks { head, further: &further };
        let start = Block::of(frame.first_chunk().unwrap());
        match taps.watch(PortId(0), PortId(1), masks) {
            None => false,
            Some(Watch::Off) => true,
            Some(Watch::Filtered(mut filters)) => filters.pass(masks, &start, frame.len() as u32),
        }
    }

    const ARP: [(u16, u8, u8, u32); 4] = [(0x28, 0, 0, 12), (0x15, 0, 1, 0x0806), (6, 0, 0, 20), (6, 0, 0, 0)];

    #[test]
    fn frames_that_a_capture_may_want_leave_the_fast_path() {
        let ip = [7; 64];
        let arp = [[7; 12].as_slice(), &[8, 6], &[7; 50]].concat();
        assert!(stays(&mut taps(vec![]).0, &ip));
        assert!(!stays(&mut taps(vec![CaptureOrder::default()]).0, &ip), "without a filter");
        assert!(stays(&mut taps(vec![CaptureOrder { drops_only: true, ..CaptureOrder::default() }]).0, &arp));
        let (mut filtered, _readers) = taps(vec![order(&ARP), order(&[(6, 0, 0, 0)])]);
        for _ in 0..3 {
            assert!(stays(&mut filtered, &ip) && !stays(&mut filtered, &arp));
        }
        let payload = order(&[(0x30, 0, 0, 64), (6, 0, 0, 0)]);
        assert!(!stays(&mut taps(vec![payload]).0, &[7; 65]), "by bytes that are not looked at there");
        let length = order(&[(0x80, 0, 0, 0), (0x25, 1, 0, 80), (6, 0, 0, 0), (6, 0, 0, 9)]);
        let (mut by_length, _readers) = taps(vec![length]);
        for _ in 0..3 {
            assert!(stays(&mut by_length, &[7; 80]) && !stays(&mut by_length, &[7; 81]));
        }
    }

    #[test]
    fn a_capture_of_one_port_leaves_the_frames_of_others_alone() {
        let of = |name: &str| CaptureOrder { ports: Some(vec![name.into()]), ..CaptureOrder::default() };
        for (name, expected) in [("a", false), ("b", false), ("c", true)] {
            let (mut taps, readers) = taps(vec![of(name)]);
            ["a", "b", "c"].iter().zip(0..).for_each(|(name, number)| readers[0].follower().follow(PortId(number), name));
            assert_eq!(stays(&mut taps, &[7; 64]), expected, "{name}");
        }
    }

    /// Few values and places, so that frames repeat, and programs decide on them.
    fn program(parts: &[(u8, u8, u8)]) -> Vec<(u16, u8, u8, u32)> {
        let body = parts.iter().flat_map(|&(what, at, value)| {
            let at = u32::from(at) % 70;
            let load = match what % 6 {
                0 => (0x28, 0, 0, at),
                1 => (0x80, 0, 0, 0),
                2 => (0x50, 0, 0, at),
                3 => (0xb1, 0, 0, at),
                _ => (0x30, 0, 0, at),
            };
            // A frame that differs is rejected, or the next test decides.
            [
                load,
                if value % 2 == 0 { (0x45, 1, 0, 1 + u32::from(value) % 3) } else { (0x15, 1, 0, u32::from(value) % 3) },
                (6, 0, 0, 0),
            ]
        });
        body.chain([(6, 0, 0, 1)]).collect()
    }

    #[test]
    fn the_same_frames_are_selected_with_and_without_masks() {
        bolero::check!().with_type::<(Vec<(u8, u8, u8)>, Vec<(u8, u8, u8)>)>().for_each(|(parts, changes)| {
            let order = order(&program(&parts[..parts.len().min(8)]));
            let filter = order.filter.clone().unwrap();
            let (mut taps, mut readers) = taps(vec![order]);
            let mut frame = [0; 70];
            for &(at, value, length) in changes {
                frame[usize::from(at) % 70] = value % 3;
                let frame = &frame[..64 + usize::from(length) % 7];
                let selected = filter.run(frame) > 0;
                assert!(!(selected && stays(&mut taps, frame)));
                taps.dropped(&Packet::from_bytes(PortId(0), frame), PortId(1), DropReason::Storm);
                let mut seen = 0;
                readers[0].read(usize::MAX, u64::MAX, |_, _| seen += 1);
                assert_eq!(seen == 1, selected);
            }
        });
    }
}
