//! Reading of a frame: its first bytes, with a record of the bits that a verdict read, from which the match mask is made.

#![expect(clippy::indexing_slicing, reason = "a length cut to that of the array")]

use std::ops::Range;

use super::answers::Answers;
use crate::frame::{FurtherMask, Head, MacAddress, MatchMask, SHORT_START, START};
use crate::packet::Packet;

/// The first bytes of a frame, on which a verdict decides.
#[derive(Clone, Copy, Debug)]
pub struct Start<'f> {
    head: Head,
    bytes: &'f [u8],
    /// The tape of the verdict, if it is recorded or replayed.
    tape: Answers<'f>,
}

impl<'f> Start<'f> {
    /// The frame that begins with `start`, of which the first `length` bytes are its own.
    #[inline]
    pub fn new(start: &'f [u8; START], length: usize) -> Self {
        Self { head: Head::of(start), bytes: &start[..length.min(START)], tape: None }
    }

    /// The same, with the tape of the verdict.
    #[must_use]
    pub(crate) fn on(self, tape: Answers<'f>) -> Self {
        Self { tape, ..self }
    }

    /// The tape of the verdict.
    #[inline]
    pub(crate) fn tape(self) -> Answers<'f> {
        self.tape
    }

    /// Ethernet addresses and type.
    #[inline]
    pub fn head(self) -> Head {
        self.head
    }

    /// The first bytes, as far as they were copied.
    #[inline]
    pub fn bytes(self) -> &'f [u8] {
        self.bytes
    }
}

impl<'f> From<&'f Packet> for Start<'f> {
    #[inline]
    fn from(packet: &'f Packet) -> Self {
        Self::new(&packet.start, packet.start_length as usize)
    }
}

impl From<Head> for Start<'_> {
    /// A frame of which no more than this is known.
    fn from(head: Head) -> Self {
        Self { head, bytes: &[], tape: None }
    }
}

/// A frame's first bytes, with a record of the bits that were read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'f> {
    pub start: Start<'f>,
    mask: u128,
    further: FurtherMask,
    /// The verdict depends on bytes that no match mask holds.
    once: bool,
}

impl<'f> Reading<'f> {
    pub(super) fn new(start: Start<'f>) -> Self {
        Self { start, mask: 0, further: FurtherMask::default(), once: false }
    }

    pub(super) fn source(&mut self) -> MacAddress {
        self.mask |= Head::SOURCE;
        self.start.head.source()
    }

    pub(super) fn destination(&mut self) -> MacAddress {
        self.mask |= Head::DESTINATION;
        self.start.head.destination()
    }

    pub(super) fn vlan(&mut self) -> u16 {
        let (vlan, read) = self.start.head.vlan();
        self.mask |= read;
        vlan
    }

    /// The verdict depends on these bytes.
    pub(super) fn mark(&mut self, bytes: Range<usize>) {
        bytes.for_each(|at| self.mark_bits(at, u8::MAX));
    }

    /// The verdict holds for frames of at least `length` bytes.
    pub(super) fn reach_to(&mut self, length: usize) {
        self.further.reach_to(length);
        self.once |= length > SHORT_START;
    }

    /// The verdict depends on the bits of `mask` of the byte at `at`.
    pub(super) fn mark_bits(&mut self, at: usize, mask: u8) {
        if at < 16 {
            self.mask |= u128::from(mask) << (8 * at);
        } else {
            let byte = self.start.bytes.get(at);
            self.once |= !byte.is_some_and(|&byte| self.further.add(at, byte, mask));
        }
    }

    /// The verdict depends on the bits of `mask` of the 16-bit number at `at`.
    pub(super) fn mark_number(&mut self, at: usize, mask: u16) {
        let [high, low] = mask.to_be_bytes();
        self.mark_bits(at, high);
        self.mark_bits(at + 1, low);
    }

    /// Whether the 16-bit number at `at` is `number`, as it stands in the frame, or `other`. If they differ, only the highest bit in
    /// which they do is read.
    pub(super) fn is_number(&mut self, at: usize, number: u16, other: u16) -> bool {
        let apart = number ^ other;
        self.mark_number(at, 0x8000_u16.checked_shr(apart.leading_zeros()).unwrap_or(u16::MAX));
        apart == 0
    }

    /// The verdict holds for this frame only.
    pub(super) fn once(&mut self) {
        self.once = true;
    }

    /// The masks of the bits that were read; `None` if the verdict holds for this frame only.
    pub(super) fn masks(&self) -> Option<(MatchMask, FurtherMask)> {
        (!self.once).then(|| (self.match_mask(), self.further))
    }

    /// The part of the mask that covers the head.
    pub(super) fn match_mask(&self) -> MatchMask {
        MatchMask::new(self.mask, self.start.head)
    }
}
