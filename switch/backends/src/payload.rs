//! A packet's bytes, for receive ends that write frames to a file or socket instead of a guest's receive queue.

#![expect(clippy::indexing_slicing, reason = "offsets were checked on transmit, lengths are cut to the shorter of both")]

use crate::memory::Iovec;
use crate::packet::{Iovecs, Packet};

/// The buffer segments that hold bytes `from..from + length` of `iovecs`.
pub(super) fn range(iovecs: Iovecs<'_>, from: u32, length: u32) -> impl Iterator<Item = Iovec> {
    let cut = |(skip, left): &mut (u32, u32), part: Iovec| {
        let run = part.skip(*skip).first(*left);
        (*skip, *left) = (skip.saturating_sub(part.length()), *left - run.length());
        Some(run)
    };
    iovecs.scan((from, length), cut).filter(|part| part.length() > 0)
}

/// Appends bytes `from..from + length` of the frame in `packet` to `to`.
pub(super) fn append(packet: &Packet, from: u32, length: u32, to: &mut Vec<u8>) {
    let start = packet.start();
    let own = start.get(from as usize..).unwrap_or_default();
    let own = &own[..own.len().min(length as usize)];
    to.extend_from_slice(own);
    let after = (from + own.len() as u32).saturating_sub(start.len() as u32);
    for iovec in range(packet.rest(), after, length - own.len() as u32) {
        iovec.append_to(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::NetHeader;

    #[test]
    fn every_range_of_a_frame_is_its_bytes() {
        let mut bytes: Vec<u8> = (0..3000_u32).map(|n| (n * 7) as u8).collect();
        let whole = bytes.clone();
        let mut packet = Packet::default();
        packet.set_frame(NetHeader::default(), &mut bytes);
        for (from, to) in [(0, 3000), (0, 10), (30, 100), (63, 64), (64, 64), (1000, 3000), (2999, 3000)] {
            let mut seen = vec![9];
            append(&packet, from, to - from, &mut seen);
            assert_eq!(seen[1..], whole[from as usize..to as usize], "{from} to {to}");
        }
    }
}
