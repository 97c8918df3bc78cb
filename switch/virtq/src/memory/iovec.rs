//! A buffer segment (iovec): a run of memory that guests or other threads write, with all its operations.
//!
//! A buffer segment is made where a memory map vouches for it, or from a frame in the switch's own memory. The rule by which its
//! later use is sound: **every holder of a buffer segment belongs to a transmit queue or a receive queue that holds the map or the
//! buffer, and drops the segment before that is released** (only after that are chains completed, and rings moved or stopped). No
//! operation on a buffer segment reaches beyond it, for any argument.
//!
//! A buffer segment may also only **name** memory, that of another domain under Xen ([`Foreign`]). For code that needs an address
//! it has no bytes: only the hypervisor copies them, on request.

#![expect(unsafe_code, reason = "memory that others write is reached by address")]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::mapping::Mapping;
use super::{Foreign, Granted, Hint, MemoryMap, Region, holes, sigbus};
use crate::ablation;
use crate::copy::{self, Block};

/// An address in memory that guests or other threads write: an address, not an access.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct HostAddress(*mut u8);

// SAFETY: an address; the code that makes an access of it vouches for the memory there.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

impl HostAddress {
    /// No address.
    pub(crate) const NONE: Self = Self(std::ptr::null_mut());

    /// The address `place`.
    pub(crate) fn new(place: *mut u8) -> Self {
        Self(place)
    }

    /// The address.
    #[inline]
    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Iovec {
    place: HostAddress,
    /// Bytes at `place` in the low half; in the high half the bytes of named memory. One number, so that it is loaded as it was
    /// stored.
    extent: u64,
}

/// Bytes of the header that [`Iovec::header`] loads.
const HEADER: u32 = 12;
/// Bytes of a [`Block`].
const BLOCK: u32 = size_of::<Block>() as u32;

impl MemoryMap {
    /// The buffer segment of at most `most` bytes at guest address `address`, which ends at the end of its region. `hint` must have
    /// been used with this map only.
    #[inline]
    pub fn iovec(&self, address: u64, most: u32, hint: &mut Hint) -> Option<Iovec> {
        let (place, follow) = self.find(address, hint)?;
        // SAFETY: the map vouches for so many bytes there, see the module.
        Some(unsafe { Iovec::new(place, u64::from(most).min(follow) as u32) })
    }

    /// Like [`Self::iovec`], only to be read: a write there ends the process.
    #[inline]
    pub fn iovec_to_read(&self, address: u64, most: u32, hint: &mut Hint) -> Option<Iovec> {
        let (place, follow) = self.find_to_read(address, hint)?;
        // SAFETY: the map vouches for so many bytes there, see the module; all holders only read them.
        Some(unsafe { Iovec::new(place.cast_mut(), u64::from(most).min(follow) as u32) })
    }

    /// `iovec`, which is to be written, to be read.
    pub fn readable(&self, iovec: Iovec) -> Option<Iovec> {
        let place = self.to_read(iovec.as_ptr())?;
        // SAFETY: the same bytes of the same region, in its mapping for reading.
        Some(unsafe { Iovec::new(place.cast_mut(), iovec.length()) })
    }

    /// `iovec`, which is to be read, to be written.
    pub fn writable(&self, iovec: Iovec) -> Option<Iovec> {
        let place = self.to_write(iovec.as_ptr())?;
        // SAFETY: the same bytes of the same region, in its mapping for writing.
        Some(unsafe { Iovec::new(place, iovec.length()) })
    }
}

impl Region {
    /// Sets `bits` of its byte `offset`, atomically; nothing outside of it.
    #[inline]
    pub(super) fn set_bits(&self, offset: u64, bits: u8) {
        if offset < self.length() {
            let place = self.host_start().wrapping_add(offset as usize);
            // SAFETY: inside the mapping, which lives as long as the region; others may write there, and atomics may alias them.
            unsafe { AtomicU8::from_ptr(place) }.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// The byte at `offset`.
    pub(super) fn byte(&self, offset: u64) -> Option<&AtomicU8> {
        // SAFETY: inside the mapping, which lives as long as the region; others may write there, and atomics may alias them.
        self.place(offset).map(|place| unsafe { AtomicU8::from_ptr(place) })
    }

    /// The two bytes from `offset` on, if they are aligned.
    pub(super) fn half_word(&self, offset: u64) -> Option<&AtomicU16> {
        // SAFETY: as above, and aligned.
        self.place(offset).map(|place| unsafe { AtomicU16::from_ptr(place) })
    }

    /// The eight bytes from `offset` on, if they are aligned.
    pub(super) fn long_word(&self, offset: u64) -> Option<&AtomicU64> {
        // SAFETY: as above, and aligned.
        self.place(offset).map(|place| unsafe { AtomicU64::from_ptr(place) })
    }

    /// Address of a `T` at `offset`, if all of it is inside and aligned.
    fn place<T>(&self, offset: u64) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>() as u64)?;
        let place = self.host_start().wrapping_add(offset as usize).cast::<T>();
        (end <= self.length() && place.is_aligned()).then_some(place)
    }
}

impl Mapping {
    /// Reads the byte at `offset`, if there is one; waits for its page.
    pub(super) fn touch(&self, offset: usize) {
        if offset < self.length() {
            // SAFETY: inside the mapping, which is readable as long as it lives; others may write there, and atomics may alias them.
            std::hint::black_box(unsafe { AtomicU8::from_ptr(self.start().wrapping_add(offset)) }.load(Ordering::Relaxed));
        }
    }
}

impl Iovec {
    /// No bytes.
    pub const NONE: Self = Self { place: HostAddress::NONE, extent: 0 };

    /// The `length` bytes at `place`.
    ///
    /// # Safety
    /// The bytes must be readable, and writable if the buffer segment is written, as long as it or a part of it is in use. Guests and
    /// other threads may write there meanwhile.
    #[inline(always)]
    pub unsafe fn new(place: *mut u8, length: u32) -> Self {
        Self { place: HostAddress(place), extent: length as u64 }
    }

    /// A buffer segment that is never touched.
    #[cfg(test)]
    pub(crate) fn nowhere(address: usize, length: u32) -> Self {
        Self { place: HostAddress(std::ptr::without_provenance_mut(address)), extent: length.into() }
    }

    /// Bytes.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        self.extent as u32
    }

    /// A buffer segment that names `foreign`.
    pub fn naming(foreign: Foreign) -> Self {
        let Foreign { place, length } = foreign;
        let name = u64::from(place.reference) | u64::from(place.offset) << 32 | u64::from(place.domain) << 48;
        Self { place: HostAddress(std::ptr::without_provenance_mut(name as usize)), extent: u64::from(length) << 32 }
    }

    /// The named memory, if it has no bytes of its own.
    #[inline]
    pub fn named(&self) -> Option<Foreign> {
        let length = (self.extent >> 32) as u32;
        let name = self.place.0.addr() as u64;
        let place = Granted { reference: name as u32, offset: (name >> 32) as u16, domain: (name >> 48) as u16 };
        (length > 0).then_some(Foreign { place, length })
    }

    /// Address of the first byte.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.place.0
    }

    /// All but the first `bytes`.
    #[inline(always)]
    #[must_use]
    pub fn skip(self, bytes: u32) -> Self {
        let bytes = bytes.min(self.length());
        Self { place: HostAddress(self.place.0.wrapping_add(bytes as usize)), extent: (self.length() - bytes).into() }
    }

    /// The first `bytes`, or all.
    #[inline(always)]
    #[must_use]
    pub fn first(self, bytes: u32) -> Self {
        Self { extent: bytes.min(self.length()).into(), ..self }
    }

    /// The first `bytes`; `None` if there are fewer.
    #[inline(always)]
    pub fn exactly(self, bytes: u32) -> Option<Self> {
        (bytes <= self.length()).then_some(Self { extent: bytes.into(), ..self })
    }

    /// The first twelve bytes as two little-endian numbers, each loaded once; `None` if the buffer segment is shorter.
    #[inline(always)]
    pub fn header(&self) -> Option<(u64, u32)> {
        if self.length() < HEADER {
            return None;
        }
        #[cfg(fuzzing)]
        crate::probe::tell(crate::probe::Read::Bytes(HEADER as usize));
        // SAFETY: there are twelve bytes.
        let (first, last) = unsafe { (copy::load_once::<u64>(self.place.0), copy::load_once::<u32>(self.place.0.add(8))) };
        Some((u64::from_le(first), u32::from_le(last)))
    }

    /// The first eight bytes as a little-endian number, loaded once; `None` if there is no [header](Self::header).
    #[inline(always)]
    pub fn first_word(&self) -> Option<u64> {
        // SAFETY: there are eight bytes.
        (self.length() >= HEADER).then(|| u64::from_le(unsafe { copy::load_once::<u64>(self.place.0) }))
    }

    /// Writes a header as [`Self::header`] loads it; nothing if the buffer segment is shorter.
    #[inline(always)]
    pub fn write_header(&self, (first, last): (u64, u32)) {
        if self.length() >= HEADER {
            // SAFETY: there are twelve bytes.
            unsafe {
                self.place.0.cast::<u64>().write_unaligned(first.to_le());
                self.place.0.add(8).cast::<u32>().write_unaligned(last.to_le());
            }
        }
    }

    /// The first 64 bytes, each loaded once; `None` if there are fewer.
    #[inline(always)]
    pub fn block(&self) -> Option<Block> {
        // SAFETY: there are so many.
        (self.length() >= BLOCK).then(|| unsafe { Block::load(self.place.0) })
    }

    /// Writes `block`; nothing if the buffer segment is shorter.
    #[inline(always)]
    pub fn write_block(&self, block: &Block) {
        if self.length() >= BLOCK {
            // SAFETY: there is so much room.
            unsafe { block.store(self.place.0) };
        }
    }

    /// Copies its bytes to `to`, as many as fit, each byte once, for decisions.
    #[inline(always)]
    pub fn copy_in(&self, to: &mut [u8]) {
        // SAFETY: both have so many bytes.
        unsafe { copy::copy_in(to.as_mut_ptr(), self.place.0, to.len().min(self.length() as usize)) };
    }

    /// A copy of the first few bytes, at most 64, for decisions; zeros if there are fewer.
    #[inline(always)]
    pub fn few<const BYTES: usize>(&self) -> [u8; BYTES] {
        const { assert!(BYTES <= 64) };
        let mut few = [0; BYTES];
        if self.length() as usize >= BYTES {
            // SAFETY: both have so many bytes.
            unsafe { copy::copy_in_short(few.as_mut_ptr(), self.place.0, BYTES) };
        }
        few
    }

    /// Writes a few bytes, at most 64, if there is room for all.
    #[inline(always)]
    pub fn write_few<const BYTES: usize>(&self, few: &[u8; BYTES]) {
        const { assert!(BYTES <= 64) };
        if self.length() as usize >= BYTES {
            // SAFETY: both have so many bytes.
            unsafe { copy::copy_short(self.place.0, few.as_ptr(), BYTES) };
        }
    }

    /// Copies its bytes to the buffer segment `to`, elsewhere, as many as fit.
    #[inline(always)]
    pub fn copy_to(&self, to: Iovec) {
        if !ablation::ONE_COPY {
            return super::second_copy::copy_twice(*self, to);
        }
        let length = self.length().min(to.length()) as usize;
        // SAFETY: both have so many bytes. A guest that has both in one place spoils its own memory.
        let copy = || unsafe { copy::copy(to.place.0, self.place.0, length) };
        if length < copy::LONG { copy() } else { holes::in_bulk(self.place.0.addr() + length, copy) }
    }

    /// Appends its bytes to `to`.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        let length = self.length() as usize;
        to.reserve(length);
        // SAFETY: so much room was reserved behind the vector's bytes.
        holes::in_bulk(self.place.0.addr() + length, || unsafe { copy::copy(to.as_mut_ptr().add(to.len()), self.place.0, length) });
        // SAFETY: all of it was written.
        unsafe { to.set_len(to.len() + length) };
    }

    /// Appends its bytes to `to`, read from its file, where a hole is zeros and stays one under every cover ([`super::holes`]). Bytes
    /// that are in no mapping for reading are copied.
    #[cold]
    pub fn append_from_file(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.resize(start + self.length() as usize, 0);
        let place = to.get_mut(start..).unwrap_or_default();
        if !sigbus::read_file(self.as_ptr().addr(), place) {
            self.copy_in(place);
        }
    }

    /// Writes the `bytes` that fit.
    #[inline(always)]
    pub fn write(&self, bytes: &[u8]) {
        // SAFETY: both have so many bytes.
        unsafe { copy::copy(self.place.0, bytes.as_ptr(), bytes.len().min(self.length() as usize)) };
    }

    /// Reads a byte of each page, so that holes among them are met ([`super::holes`]).
    #[cold]
    pub fn touch(&self) {
        const PAGE: usize = 4096;
        let (start, end) = (self.place.0.addr(), self.place.0.addr() + self.length() as usize);
        let mut at = start;
        while at < end {
            std::hint::black_box(self.skip((at - start) as u32).few::<1>());
            at = (at / PAGE + 1) * PAGE;
        }
    }

    /// The first four bytes as a number of this machine, loaded before anything that is loaded later; `None` if there are fewer, or they are not
    /// aligned.
    #[inline]
    pub fn load_number(&self) -> Option<u32> {
        // SAFETY: the place is aligned and has so many bytes; others access them as a whole only.
        self.number().map(|place| unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Acquire))
    }

    /// Stores the first four bytes after everything that was stored before; nothing if there are fewer, or they are not aligned.
    #[inline]
    pub fn store_number(&self, number: u32) {
        if let Some(place) = self.number() {
            // SAFETY: as in `load_number`.
            unsafe { AtomicU32::from_ptr(place) }.store(number, Ordering::Release);
        }
    }

    fn number(&self) -> Option<*mut u32> {
        let place = self.place.0.cast::<u32>();
        (self.length() >= 4 && place.is_aligned()).then_some(place)
    }

    /// The sum of its bytes, as [`copy::sum`] has it.
    #[inline]
    pub fn sum(&self) -> u64 {
        // SAFETY: there are so many bytes.
        unsafe { copy::sum_words(self.place.0, self.length() as usize) }
    }
}

/// A page that other domains or devices write, mapped from a file: a device's or one in memory. Unmapped when dropped.
#[derive(Debug)]
pub struct SharedPage(Mapping);

impl SharedPage {
    /// Bytes.
    pub const SIZE: u32 = 4096;

    /// Maps the page of `file` that begins at `offset`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map(file: &std::fs::File, offset: u64) -> std::io::Result<Self> {
        Mapping::shared(file, offset, Self::SIZE as usize).map(Self)
    }

    /// All of it. Every holder of the buffer segment, or a part of it, holds the page.
    #[inline]
    pub fn iovec(&self) -> Iovec {
        // SAFETY: so much is mapped, readable and writable, see the module.
        unsafe { Iovec::new(self.0.start(), Self::SIZE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_comes_back_and_cannot_be_reached() {
        let place = Granted { domain: u16::MAX, reference: u32::MAX - 5, offset: 4095 };
        let foreign = Foreign { place, length: 1 };
        let iovec = Iovec::naming(foreign);
        assert_eq!(iovec.named(), Some(foreign));
        assert_eq!((iovec.length(), iovec.first(9).length(), iovec.skip(0).named()), (0, 0, None));
        let mut seen = [7; 4];
        iovec.copy_in(&mut seen);
        iovec.write(&[1, 2, 3]);
        assert!(iovec.header().is_none() && iovec.block().is_none() && iovec.load_number().is_none() && seen == [7; 4]);
    }

    #[test]
    fn nothing_that_is_asked_leaves_the_iovec() {
        let mut bytes: Vec<u8> = (0..200).collect();
        // SAFETY: the vector outlives the buffer segment and is long enough.
        let (short, long) = unsafe { (Iovec::new(bytes.as_mut_ptr(), 11), Iovec::new(bytes.as_mut_ptr().wrapping_add(20), 100)) };
        assert!(short.header().is_none() && short.first_word().is_none() && short.block().is_none());
        short.write_header((u64::MAX, u32::MAX));
        short.write_block(&long.block().unwrap());
        assert_eq!((short.skip(12).length(), short.skip(4).first(9).length(), short.first(20).length()), (0, 7, 11));
        assert!(short.exactly(12).is_none() && short.exactly(11).is_some_and(|iovec| iovec.length() == 11));
        let mut seen = [99; 20];
        short.copy_in(&mut seen);
        assert_eq!((&seen[..11], seen[11]), (&(0..11).collect::<Vec<u8>>()[..], 99));
        short.write_few(&[9; 12]);
        assert_eq!((short.few::<12>(), short.few::<3>()), ([0; 12], [0, 1, 2]), "all of it or nothing");
        short.write(&[7; 20]);
        long.copy_to(short.skip(9));
        assert_eq!(bytes[..13], [7, 7, 7, 7, 7, 7, 7, 7, 7, 20, 21, 11, 12]);
        let mut all = vec![1];
        short.append_to(&mut all);
        assert_eq!((all.len(), all[10], short.first(4).sum()), (12, 20, 2 * 0x0707));
    }

    #[test]
    fn a_second_copy_brings_the_same_bytes_whatever_their_number() {
        let mut buffers = super::super::second_copy::Buffers::new(200_000);
        for length in [1, 1500, 2048, 16_384, 40_000, 65_535, 65_536, 65_537, 300_000] {
            let mut from: Vec<u8> = (0..length).map(|n: u32| (n * 7 + length) as u8).collect();
            let mut to = vec![0; from.len() + 1];
            for _ in 0..5 {
                to.fill(0);
                // SAFETY: the vectors outlive the buffer segments.
                let [source, target] =
                    [&mut from, &mut to].map(|bytes| unsafe { Iovec::new(bytes.as_mut_ptr(), bytes.len() as u32) });
                buffers.copy(source, target);
                assert_eq!((&to[..from.len()], to[from.len()]), (&from[..], 0), "{length}");
            }
        }
    }
}
