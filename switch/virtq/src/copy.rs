//! The one payload copy, and the few other accesses of guest memory.
//!
//! Guest memory may change at any moment, so it is only ever copied, through raw pointers, into or out of the switch's own memory
//! or from guest to guest; no Rust reference to it exists. Decisions are made on a copy, and the functions that make such copies
//! ([`load_once`], [`Block::load`], [`copy_in`]) cannot be repeated by the compiler, which could otherwise load memory again that
//! it takes for unchanged.
//!
//! The copy routine depends on the length (figures in `docs/adr/0003-copy-routine.md`): short runs by fixed-width moves, medium
//! ones by a loop over the widest registers, long ones by the C library, which knows the machine's caches, and the longest with
//! stores past the caches.

#![expect(unsafe_code, reason = "memory that guests write is copied through raw pointers")]
#![expect(clippy::indexing_slicing, reason = "an array of fixed length, by numbers that callers have as constants")]

use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// From this length on the C library's copy is as fast as this module's or faster.
pub(crate) const LONG: usize = 8192;
/// From this length on stores go past the caches: a receiver that posts such buffers has a receive ring of them that no cache
/// holds, and frames on an emulated link are read much later, so that each line would be fetched from memory only to be
/// overwritten.
const VAST: usize = 32768;

/// Copies `length` bytes. Each source byte is read at least once and nothing outside the two ranges is touched.
///
/// # Safety
/// `from` must be readable and `to` writable for `length` bytes for the whole call, and the ranges must not overlap. Guests and
/// other threads may write either meanwhile: the bytes copied are then some mixture, for which the callers are prepared.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    #[cfg(fuzzing)]
    crate::probe::tell(crate::probe::Read::Bytes(length));
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if length <= 64 {
            copy_short(to, from, length);
        } else if length < LONG {
            copy_middling(to, from, length);
        } else if length < VAST {
            ptr::copy_nonoverlapping(from, to, length);
        } else {
            copy_vast(to, from, length);
        }
    }
}

/// Copies `length` bytes to memory of the switch, for decisions: from here on only the copy counts.
///
/// # Safety
/// The conditions of [`copy`].
#[inline]
pub unsafe fn copy_in(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { copy(to, from, length) };
    // Later code must read the copy, not the original again.
    compiler_fence(Ordering::SeqCst);
}

#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned<T>(T);

/// Loads a number or a register at `from`, of any alignment, once: volatile, so that the compiler neither repeats nor divides it.
///
/// # Safety
/// There are as many readable bytes at `from` as a `T` has, each bit pattern of which is a valid `T`. Other threads may write there
/// meanwhile.
#[inline(always)]
pub unsafe fn load_once<T: Copy>(from: *const u8) -> T {
    // SAFETY: the caller's promise.
    unsafe { from.cast::<Unaligned<T>>().read_volatile().0 }
}

/// 64 bytes, loaded once, so that the bytes that were checked are those that are stored.
#[derive(Clone, Copy, Debug)]
pub struct Block([Lane; 4]);

#[cfg(target_arch = "x86_64")]
type Lane = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Lane = u128;

impl Block {
    /// Zeros.
    // SAFETY: every pattern is a block.
    pub const ZERO: Self = unsafe { std::mem::zeroed() };

    /// Loads the block at `from`, each byte once.
    ///
    /// # Safety
    /// 64 readable bytes at `from`. Other threads may write there meanwhile.
    #[inline(always)]
    pub unsafe fn load(from: *const u8) -> Self {
        #[cfg(fuzzing)]
        crate::probe::tell(crate::probe::Read::Bytes(64));
        const LANE: usize = size_of::<Lane>();
        // SAFETY: the caller's promise; every pattern is a value of a lane.
        unsafe { Self([load_once(from), load_once(from.add(LANE)), load_once(from.add(2 * LANE)), load_once(from.add(3 * LANE))]) }
    }

    /// The block of these bytes.
    #[inline(always)]
    pub fn of(bytes: &[u8; 64]) -> Self {
        // SAFETY: 64 bytes without padding, of which every pattern is a block.
        unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() }
    }

    /// Stores the block at `to`.
    ///
    /// # Safety
    /// 64 writable bytes at `to`.
    #[inline(always)]
    pub unsafe fn store(&self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self>().write_unaligned(*self) }
    }

    /// Bytes of the block.
    #[inline]
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        self.store_in(&mut bytes);
        bytes
    }

    /// Stores the block in `to`.
    #[inline(always)]
    pub fn store_in(&self, to: &mut [u8; 64]) {
        // SAFETY: 64 bytes in an array of the switch.
        unsafe { self.store(to.as_mut_ptr()) }
    }

    /// The 16 bytes from `16 * lane` on, as a little-endian number.
    #[inline(always)]
    pub fn lane(&self, lane: usize) -> u128 {
        // SAFETY: a lane is 16 bytes without padding, of which every pattern is a number.
        u128::from_le(unsafe { std::mem::transmute::<Lane, u128>(self.0[lane]) })
    }

    /// A block of ones in the first `count` bytes, and zeros behind.
    pub fn ones(count: usize) -> Self {
        let mut bytes = [0; 64];
        bytes.iter_mut().take(count).for_each(|byte| *byte = 0xff);
        Self::of(&bytes)
    }

    /// Whether it is the same as `other` where `mask` has ones.
    #[inline(always)]
    pub fn is_same(&self, other: &Self, mask: &Self) -> bool {
        are_same(&self.0, &other.0, &mask.0)
    }

    /// Whether the first 16 bytes, as a little-endian number, have these `bits` where `mask` has ones.
    #[inline(always)]
    pub fn begins_with(&self, mask: u128, bits: u128) -> bool {
        // SAFETY: both are 16 bytes without padding, and every pattern is a value of either.
        let [mask, bits] = [mask, bits].map(|number| unsafe { std::mem::transmute::<u128, Lane>(number.to_le()) });
        masked_equal(self.0[0], mask, bits)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn are_same(one: &[Lane; 4], other: &[Lane; 4], mask: &[Lane; 4]) -> bool {
    use std::arch::x86_64::{_mm_and_si128, _mm_or_si128, _mm_setzero_si128, _mm_xor_si128};
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        let differing = |lane: usize| _mm_and_si128(_mm_xor_si128(one[lane], other[lane]), mask[lane]);
        let all = _mm_or_si128(_mm_or_si128(differing(0), differing(1)), _mm_or_si128(differing(2), differing(3)));
        masked_equal(all, all, _mm_setzero_si128())
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn are_same(one: &[Lane; 4], other: &[Lane; 4], mask: &[Lane; 4]) -> bool {
    (0..4).all(|lane| (one[lane] ^ other[lane]) & mask[lane] == 0)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn masked_equal(lane: Lane, mask: Lane, bits: Lane) -> bool {
    use std::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8};
    // SAFETY: every x86-64 has SSE2.
    unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(lane, mask), bits)) == 0xffff }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn masked_equal(lane: Lane, mask: Lane, bits: Lane) -> bool {
    lane & mask == bits
}

/// Copies up to 64 bytes: two moves that may overlap each other, never leaving the ranges.
///
/// # Safety
/// The conditions of [`copy`], and `length <= 64`.
#[inline]
pub unsafe fn copy_short(to: *mut u8, from: *const u8, length: usize) {
    debug_assert!(length <= 64);
    // SAFETY: every access lies within `length` bytes of the two starts.
    unsafe {
        match length {
            33.. => two::<[u8; 32]>(to, from, length),
            17.. => two::<[u8; 16]>(to, from, length),
            9.. => two::<[u8; 8]>(to, from, length),
            5.. => two::<[u8; 4]>(to, from, length),
            3.. => two::<[u8; 2]>(to, from, length),
            2 => one::<[u8; 2]>(to, from),
            1 => one::<u8>(to, from),
            0 => {}
        }
    }
}

/// Copies up to 64 bytes to memory of the switch, for decisions: [`copy_in`] for a length that the compiler knows.
///
/// # Safety
/// The conditions of [`copy_short`].
#[inline(always)]
pub unsafe fn copy_in_short(to: *mut u8, from: *const u8, length: usize) {
    #[cfg(fuzzing)]
    crate::probe::tell(crate::probe::Read::Bytes(length));
    // SAFETY: the caller's promise, passed on.
    unsafe { copy_short(to, from, length) };
    // The fence of `copy_in`.
    compiler_fence(Ordering::SeqCst);
}

/// The first and the last `T` of a range that is between one and two `T` long; both loads come before both stores.
#[inline(always)]
unsafe fn two<T: Copy>(to: *mut u8, from: *const u8, length: usize) {
    let rest = length - size_of::<T>();
    // SAFETY: `size_of::<T>() <= length`, so both windows lie inside the ranges.
    unsafe {
        let first = from.cast::<T>().read_unaligned();
        let last = from.add(rest).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(first);
        to.add(rest).cast::<T>().write_unaligned(last);
    }
}

#[inline(always)]
unsafe fn one<T: Copy>(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's ranges hold a `T`.
    unsafe { to.cast::<T>().write_unaligned(from.cast::<T>().read_unaligned()) }
}

/// The sum of `bytes` as words of 16 or 32 bits in our order of bytes, the last one filled up with zero: the same once it is folded to 16 bits
/// (RFC 1071).
pub fn sum(bytes: &[u8]) -> u64 {
    // SAFETY: the slice is readable for its length.
    unsafe { sum_words(bytes.as_ptr(), bytes.len()) }
}

/// Like [`sum`], of the `length` bytes at `place`.
///
/// # Safety
/// `place` must be readable for `length` bytes. Other threads may write there meanwhile: the sum is then that of some mixture.
#[inline]
pub unsafe fn sum_words(place: *const u8, length: usize) -> u64 {
    const LANES: usize = 8;
    let mut lanes = [0_u64; LANES];
    let mut at = 0;
    // SAFETY: every read ends at or before `length`.
    unsafe {
        while at + 4 * LANES <= length {
            let words = place.add(at).cast::<[u32; LANES]>().read_unaligned();
            lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane += u64::from(word));
            at += 4 * LANES;
        }
        let mut sum: u64 = lanes.iter().sum();
        while at + 2 <= length {
            sum += u64::from(place.add(at).cast::<u16>().read_unaligned());
            at += 2;
        }
        if at < length {
            sum += u64::from(u16::from_ne_bytes([place.add(at).read(), 0]));
        }
        sum
    }
}

/// Prefetches the cache line of `place`, which may be any address.
#[inline]
pub fn prefetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches no memory that the program can see and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Like [`prefetch`], for a line that will be written.
#[inline]
pub fn prefetch_to_write(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`. Where the CPU lacks the instruction it is a no-op (Intel SDM and AMD APM, PREFETCHW).
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_middling(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise; each routine runs only where its instructions exist.
    unsafe {
        if is_x86_feature_detected!("avx512f") {
            x86::copy_avx512(to, from, length);
        } else if is_x86_feature_detected!("avx2") {
            x86::copy_avx2(to, from, length);
        } else {
            ptr::copy_nonoverlapping(from, to, length);
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn copy_vast(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise; the routine runs only where its instructions exist.
    unsafe {
        if is_x86_feature_detected!("avx512f") {
            let skew = to.align_offset(64);
            copy_short(to, from, skew);
            let (to, from, whole) = (to.add(skew), from.add(skew), (length - skew) & !255);
            x86::stream_avx512(to, from, whole);
            copy(to.add(whole), from.add(whole), length - skew - whole);
        } else {
            ptr::copy_nonoverlapping(from, to, length);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_vast(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, length) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn copy_middling(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, length) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256, _mm512_loadu_si512, _mm512_storeu_si512,
        _mm512_stream_si512,
    };

    macro_rules! copy_by {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
            /// Four registers at a time, then one at a time, then the last one again, ending at the end.
            ///
            /// # Safety
            /// The conditions of [`super::copy`]; `length` at least one register; the feature must be there.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(to: *mut u8, from: *const u8, length: usize) {
                const WIDTH: usize = size_of::<$vector>();
                debug_assert!(length >= WIDTH);
                let mut at = 0;
                // SAFETY: every access ends at or before `length`.
                unsafe {
                    while at + 4 * WIDTH <= length {
                        let a = $load(from.add(at).cast());
                        let b = $load(from.add(at + WIDTH).cast());
                        let c = $load(from.add(at + 2 * WIDTH).cast());
                        let d = $load(from.add(at + 3 * WIDTH).cast());
                        $store(to.add(at).cast(), a);
                        $store(to.add(at + WIDTH).cast(), b);
                        $store(to.add(at + 2 * WIDTH).cast(), c);
                        $store(to.add(at + 3 * WIDTH).cast(), d);
                        at += 4 * WIDTH;
                    }
                    while at + WIDTH <= length {
                        $store(to.add(at).cast(), $load(from.add(at).cast()));
                        at += WIDTH;
                    }
                    if at < length {
                        let last = length - WIDTH;
                        $store(to.add(last).cast(), $load(from.add(last).cast()));
                    }
                }
            }
        };
    }
    copy_by!(copy_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512);
    copy_by!(copy_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256);

    /// Four registers at a time, past the caches; ordered before later stores.
    ///
    /// # Safety
    /// The conditions of [`super::copy`]; `to` aligned to 64 bytes, `length` a multiple of 256; the feature must be there.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn stream_avx512(to: *mut u8, from: *const u8, length: usize) {
        let mut at = 0;
        // SAFETY: every access ends at or before `length`.
        unsafe {
            while at < length {
                let a = _mm512_loadu_si512(from.add(at).cast());
                let b = _mm512_loadu_si512(from.add(at + 64).cast());
                let c = _mm512_loadu_si512(from.add(at + 128).cast());
                let d = _mm512_loadu_si512(from.add(at + 192).cast());
                _mm512_stream_si512(to.add(at).cast(), a);
                _mm512_stream_si512(to.add(at + 64).cast(), b);
                _mm512_stream_si512(to.add(at + 128).cast(), c);
                _mm512_stream_si512(to.add(at + 192).cast(), d);
                at += 256;
            }
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Block;

    #[test]
    fn bytes_that_differ_are_told() {
        let mut one = [0; 64];
        for place in 0..64 {
            let mut other = one;
            other[place] ^= 0x80;
            let [before, other] = [one, other].map(|bytes| Block::of(&bytes));
            let same: Vec<usize> = (0..=64).filter(|&count| before.is_same(&other, &Block::ones(count))).collect();
            assert_eq!(same, (0..=place).collect::<Vec<_>>());
            one[place] = place as u8;
        }
        assert!(Block::of(&one).is_same(&Block::of(&one), &Block::ones(64)));
    }

    #[test]
    fn copies_every_length_exactly() {
        let from: Vec<u8> = (0..70_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        for length in (0..700).chain([1500, 4095, 4096, 8191, 8192, 8193, 19_000, 32_768, 32_800, 65_549]) {
            let mut to = vec![0xee_u8; length + 16];
            // SAFETY: both vectors are longer than `length` from the given offsets.
            unsafe { super::copy(to.as_mut_ptr().add(8), from.as_ptr().add(3), length) };
            assert_eq!(&to[8..8 + length], &from[3..3 + length], "length {length}");
            assert!(to[..8].iter().chain(&to[8 + length..]).all(|&b| b == 0xee), "length {length} wrote outside");
        }
    }
}
