//! The fast path: frames from a transmit queue straight into a receive queue, without a packet in between.
//!
//! The fast path takes the most frequent kind of frame only: behind a header without offloads, at least [`SHORT_START`] bytes long and within the
//! receiver's MTU, in one buffer on either side, and fitting the match mask ([`MatchMask`]) of the flow cache, which holds the verdict on the frame
//! before. Every other frame is left in the transmit queue, for the general path. The rules are the same: each byte of the headers
//! is read once, and the bytes that were checked are those that are delivered.

use super::ahead::Opened;
use super::{ReceiveQueue, TransmitQueue};
use crate::copy::Block;
use crate::frame::{FurtherMask, MatchMask, NetHeader, SHORT_START};
use crate::memory::holes;

const HEADER: u32 = NetHeader::SIZE as u32;
/// Bytes after which the caller reads the clock.
const ENOUGH: u64 = 1 << 16;

/// Whether frames may take the fast path between these queues now: it marks no written pages, so it stays out while the receiver's
/// are logged, and it waits for no memory.
#[inline]
pub fn may_carry(from: &TransmitQueue, to: &ReceiveQueue) -> bool {
    let headers = [from.ring.options.header_length, to.ring.options.header_length];
    let is_filling = from.ring.memory().is_filling() | to.ring.memory().is_filling();
    headers == [NetHeader::SIZE as u8; 2] && from.is_orderly() && !to.ring.is_logged() && !is_filling
}

/// Carries up to `most` frames of `from` to `to`, as far as they are of the frequent kind, fit the match mask `match_mask`, and were
/// read ahead in both rings; returns how many, and their bytes. `sized` is called with each length and its number of frames. The
/// caller has checked [`may_carry`].
#[inline]
pub fn carry(
    from: &mut TransmitQueue,
    to: &mut ReceiveQueue,
    match_mask: MatchMask,
    most: u16,
    sized: impl FnMut(u32, u16),
) -> (u16, u64) {
    carry_if(from, to, |start, _| match_mask.fits_block(start), most, sized)
}

/// Like [`carry`], for a verdict that depends on bytes behind the Ethernet header too.
pub fn carry_narrowly(
    from: &mut TransmitQueue,
    to: &mut ReceiveQueue,
    (match_mask, further): (MatchMask, &FurtherMask),
    most: u16,
    sized: impl FnMut(u32, u16),
) -> (u16, u64) {
    carry_if(from, to, |start, _| match_mask.fits_block(start) && further.fits_block(start), most, sized)
}

/// Like [`carry`], as far as `fits` takes them: it is called with the first bytes of a frame and its length.
#[inline(always)]
pub fn carry_if(
    from: &mut TransmitQueue,
    to: &mut ReceiveQueue,
    mut fits: impl FnMut(&Block, u32) -> bool,
    most: u16,
    mut sized: impl FnMut(u32, u16),
) -> (u16, u64) {
    let known = most.min(from.ring.known()).min(to.ring.known());
    let (mut count, mut bytes) = (0, 0);
    // Mostly all frames have the same length, and are counted together.
    let first = from.ring.known_chain(0).first.length();
    let (mut differences, longest) = (0, HEADER + to.longest);
    // Bytes are read from the sender's memory only.
    let (look, before) = (from.ring.begin_look(), (from.ring.next_used, from.ring.last_unwritten, to.ring.next_used));
    while count < known && bytes < ENOUGH {
        let (frame, room) = (*from.ring.known_chain(count), *to.ring.known_chain(count));
        if from.is_in_flight(frame.head) {
            break;
        }
        let Some(length) = carry_one(&frame, &room, longest, &mut fits) else { break };
        to.ring.complete(room.head, length);
        from.ring.complete_unwritten(frame.head);
        bytes += u64::from(length - HEADER);
        differences |= length ^ first;
        count += 1;
    }
    if !look.is_clean() {
        // Some of them may be zeros of holes. Nothing was published, so the general path takes them again.
        look.settle();
        (from.ring.next_used, from.ring.last_unwritten, to.ring.next_used) = before;
        return (0, 0);
    }
    if differences == 0 && count > 0 {
        sized(first - HEADER, count);
    } else {
        (0..count).for_each(|place| sized(from.ring.known_chain(place).first.length() - HEADER, 1));
    }
    to.ring.advance(count);
    from.ring.advance(count);
    (count, bytes)
}

/// Copies one frame; returns its bytes, header included, or `None` if it is of another kind, has more than `longest` bytes, or lies in a hole.
#[inline(always)]
fn carry_one(frame: &Opened, room: &Opened, longest: u32, fits: &mut impl FnMut(&Block, u32) -> bool) -> Option<u32> {
    let source = frame.single()?;
    let length = source.length();
    if length < HEADER + SHORT_START as u32 || length > longest {
        return None;
    }
    let target = room.single()?.exactly(length)?;
    let plain = NetHeader::from_words((source.first_word()?, 0)).is_plain();
    let (from, to) = (source.skip(HEADER), target.skip(HEADER));
    let start = from.block()?;
    if !plain || !fits(&start, from.length()) {
        return None;
    }
    target.write_header(NetHeader::default().in_buffers(1).words());
    to.write_block(&start);
    if from.length() > SHORT_START as u32 {
        from.skip(SHORT_START as u32).copy_to(to.skip(SHORT_START as u32));
        if holes::has_covers() {
            return None;
        }
    }
    Some(length)
}
