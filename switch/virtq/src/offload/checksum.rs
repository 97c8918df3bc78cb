//! Checksum offload: the Internet checksum (RFC 1071) over memory that other threads and guests may write meanwhile.

#![expect(clippy::indexing_slicing, reason = "the frame has the checksum's two bytes, which lie behind the start: checked before")]

use crate::copy;
use crate::memory::Iovec;

/// A running ones' complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sum of native-endian words; the order of bytes does not matter until the end (RFC 1071, section 2(B)).
    words: u64,
    /// Whether an odd number of bytes was added.
    odd: bool,
}

impl Sum {
    /// Adds `bytes`.
    pub fn add(&mut self, bytes: &[u8]) {
        self.add_sum(copy::sum(bytes), bytes.len());
    }

    /// Adds the bytes of `iovec`. Other threads may write there meanwhile: the sum is then that of some mixture.
    pub fn add_iovec(&mut self, iovec: Iovec) {
        self.add_sum(iovec.sum(), iovec.length() as usize);
    }

    /// Adds `length` bytes of this sum.
    fn add_sum(&mut self, sum: u64, length: usize) {
        let sum = fold(sum);
        self.words += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= length % 2 == 1;
    }

    /// The checksum as its two bytes in network order.
    pub fn finish(self) -> [u8; 2] {
        (!fold(self.words)).to_ne_bytes()
    }

    /// The sum itself, not complemented, as a partial checksum field holds it.
    pub fn partial(self) -> [u8; 2] {
        fold(self.words).to_ne_bytes()
    }
}

/// The checksum over `parts`, one after another; zero over a message that has a right one, with its pseudo-header.
pub fn over(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = Sum::default();
    parts.iter().for_each(|part| sum.add(part));
    sum.finish()
}

/// Sums `frame` from `start` on, the partial sum at `field` included, and stores the checksum there (RFC 1071). False, and nothing is changed, if
/// the frame has no such field.
pub fn complete(frame: &mut [u8], start: usize, field: usize) -> bool {
    let mut sum = Sum::default();
    if start > field || frame.get(field..field + 2).is_none() {
        return false;
    }
    sum.add(&frame[start..]);
    let checksum = match sum.finish() {
        // Zero means "no checksum" in UDP (RFC 768); to TCP both zeroes are alike.
        [0, 0] => [0xff, 0xff],
        other => other,
    };
    frame[field..field + 2].copy_from_slice(&checksum);
    true
}

fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    #[test]
    fn example_of_rfc_1071() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.partial(), [0xdd, 0xf2]);
    }

    #[test]
    fn a_checksum_is_completed_in_the_frame_or_not_at_all() {
        let mut frame = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        for (start, field) in [(0, 7), (8, 8), (4, 2), (usize::MAX - 2, usize::MAX - 2)] {
            assert!(!complete(&mut frame, start, field));
        }
        assert!(complete(&mut frame, 2, 6));
        assert_eq!(frame[..6], [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5]);
        assert_eq!(frame[6..], slow(&[0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]));
        // A sum of all ones is a checksum of zero.
        let mut frame = [0xff, 0xff, 0, 0];
        assert!(complete(&mut frame, 0, 2));
        assert_eq!(frame, [0xff; 4]);
    }

    proptest::proptest! {
        #[test]
        fn any_split_gives_the_same_sum(bytes: Vec<u8>, cuts: [u16; 3]) {
            let mut cuts = cuts.map(|cut| usize::from(cut) % (bytes.len() + 1));
            cuts.sort_unstable();
            let mut sum = Sum::default();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                sum.add(&bytes[from..cut]);
                from = cut;
            }
            proptest::prop_assert_eq!(sum.finish(), slow(&bytes));
        }
    }
}
