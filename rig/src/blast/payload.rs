//! The payload's pattern: every eight bytes differ, so that a byte from a wrong frame, a wrong place or a wrong time shows.
//!
//! The word that covers bytes 8i to 8i+7 of a frame is `seed + i * STEP`, little endian. Buffer segments of a frame may begin and
//! end anywhere: each knows its offset in the frame.

/// Odd, with bits all over: neighbouring words share no byte by rule.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The seed of one frame.
#[inline]
pub fn seed(flow: u32, sequence: u64) -> u64 {
    (sequence ^ u64::from(flow) << 40).wrapping_mul(STEP) | 1
}

#[inline(always)]
fn word(seed: u64, index: usize) -> u64 {
    seed.wrapping_add((index as u64).wrapping_mul(STEP))
}

/// The eight pattern bytes from byte `offset` of a frame on.
#[inline(always)]
fn eight(seed: u64, offset: usize) -> [u8; 8] {
    let (first, shift) = (word(seed, offset / 8), 8 * (offset % 8) as u32);
    let second = first.wrapping_add(STEP);
    // Shifting by 64 is no shift in Rust: do it in two steps.
    (first >> shift | second << (63 - shift) << 1).to_le_bytes()
}

/// Writes the pattern into a buffer segment that starts at byte `offset` of its frame.
#[inline]
pub fn fill(iovec: &mut [u8], offset: usize, seed: u64) {
    let length = iovec.len();
    if length < 8 {
        return iovec.copy_from_slice(&eight(seed, offset)[..length]);
    }
    // The edges are written as whole words that overlap the body.
    iovec[..8].copy_from_slice(&eight(seed, offset));
    iovec[length - 8..].copy_from_slice(&eight(seed, offset + length - 8));
    let (start, end) = body(offset, length);
    dispatch_fill(&mut iovec[start..end], (offset + start) / 8, seed);
}

/// Whether a buffer segment that starts at byte `offset` of its frame holds the pattern.
#[inline]
pub fn holds(iovec: &[u8], offset: usize, seed: u64) -> bool {
    let length = iovec.len();
    if length < 8 {
        return iovec == &eight(seed, offset)[..length];
    }
    let (start, end) = body(offset, length);
    let edges = iovec[..8] == eight(seed, offset) && iovec[length - 8..] == eight(seed, offset + length - 8);
    edges && dispatch_holds(&iovec[start..end], (offset + start) / 8, seed)
}

/// Where the whole words of a buffer segment begin and end, in the segment.
#[inline(always)]
fn body(offset: usize, length: usize) -> (usize, usize) {
    let start = (offset.next_multiple_of(8) - offset).min(length);
    (start, start + (length - start) / 8 * 8)
}

#[inline(always)]
fn fill_words(body: &mut [u8], first: usize, seed: u64) {
    let mut value = word(seed, first);
    for chunk in body.chunks_exact_mut(8) {
        chunk.copy_from_slice(&value.to_le_bytes());
        value = value.wrapping_add(STEP);
    }
}

#[inline(always)]
fn words_hold(body: &[u8], first: usize, seed: u64) -> bool {
    let mut value = word(seed, first);
    let mut difference = 0;
    for chunk in body.chunks_exact(8) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        difference |= u64::from_le_bytes(bytes) ^ value;
        value = value.wrapping_add(STEP);
    }
    difference == 0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_words_wide(body: &mut [u8], first: usize, seed: u64) {
    fill_words(body, first, seed);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn words_hold_wide(body: &[u8], first: usize, seed: u64) -> bool {
    words_hold(body, first, seed)
}

#[inline]
fn dispatch_fill(body: &mut [u8], first: usize, seed: u64) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        return unsafe { fill_words_wide(body, first, seed) };
    }
    fill_words(body, first, seed);
}

#[inline]
fn dispatch_holds(body: &[u8], first: usize, seed: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        return unsafe { words_hold_wide(body, first, seed) };
    }
    words_hold(body, first, seed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However a frame is cut into buffer segments, their pattern is the frame's.
        #[test]
        fn iovecs_make_the_whole(cuts in prop::collection::vec(1usize..200, 1..8), offset in 0usize..70, seed: u64) {
            let length: usize = cuts.iter().sum();
            let mut whole = vec![0; length];
            fill(&mut whole, offset, seed);
            let mut at = 0;
            for cut in cuts {
                let mut iovec = vec![0; cut];
                fill(&mut iovec, offset + at, seed);
                prop_assert_eq!(&iovec, &whole[at..at + cut]);
                prop_assert!(holds(&iovec, offset + at, seed));
                at += cut;
            }
        }

        /// Any changed byte is noticed, and so is any other place or seed.
        #[test]
        fn changes_are_noticed(length in 1usize..300, at: prop::sample::Index, offset in 0usize..70, sequence: u64) {
            let seed = seed(3, sequence);
            let mut iovec = vec![0; length];
            fill(&mut iovec, offset, seed);
            let at = at.index(length);
            iovec[at] ^= 1;
            prop_assert!(!holds(&iovec, offset, seed));
            iovec[at] ^= 1;
            prop_assert!(length < 8 || !holds(&iovec, offset + 8, seed));
            prop_assert!(length < 8 || !holds(&iovec, offset, super::seed(3, sequence.wrapping_add(2))));
        }
    }
}
