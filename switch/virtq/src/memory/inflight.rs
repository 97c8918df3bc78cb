//! Inflight region: the shared buffer in which a device records the descriptor chains that it has taken and not completed, so that the
//! next process serves them again after a crash (vhost-user, "Inflight I/O tracking").
//!
//! The front end keeps its file and may change any byte at any time. So an index that is read here is compared with the size of the
//! table, and a walk is bounded by the size of the ring. A front end that falsifies its region misleads its own virtqueues only.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use thiserror::Error;

use super::region::{Quota, Region, RegionError, RegionTable};
use crate::id::MAX_SIZE;
use crate::message::counted;

/// Bytes of the head of a queue's part: features, version, desc_num, last_batch_head, used_idx.
const HEAD: u64 = 16;
/// Bytes of an entry: inflight, padding, next, counter.
const ENTRY: u64 = 16;
/// Alignment of the parts: a cache line, as in libvhost-user and DPDK.
const ALIGNMENT: u64 = 64;
/// The version of the layout; 0 is a part that was never used.
const VERSION: u16 = 1;

/// Offsets in a part and in an entry.
mod offset {
    pub(super) const VERSION: u64 = 8;
    pub(super) const ENTRIES: u64 = 10;
    pub(super) const LAST_BATCH_HEAD: u64 = 12;
    pub(super) const USED_INDEX: u64 = 14;
    pub(super) const NEXT: u64 = 6;
    pub(super) const COUNTER: u64 = 8;
}

/// Why a front end's inflight region was refused.
#[derive(Debug, Error)]
pub enum InflightError {
    /// No virtqueues, or a queue size that no virtqueue has.
    #[error("an inflight region for {} of {}", counted(*.0, "virtqueue"), counted(*.1, "descriptor"))]
    Shape(u16, u16),
    /// The area is shorter than its virtqueues need.
    #[error("an inflight region of {} where {} are needed", counted(*.0, "byte"), .1)]
    Short(u64, u64),
    /// The area's offset is no multiple of eight.
    #[error("an inflight region at offset {0}, which is not aligned")]
    Unaligned(u64),
    /// The area cannot be mapped.
    #[error("the inflight region cannot be mapped: {0}")]
    Region(#[from] RegionError),
    /// The kernel refuses a file for it.
    #[error("no file for an inflight region: {0}")]
    File(#[from] io::Error),
}

/// See the module. Unmapped when dropped.
#[derive(Debug)]
pub struct InflightRegion {
    region: Region,
    queues: u16,
    size: u16,
}

impl InflightRegion {
    /// Bytes of a region for `queues` virtqueues of `size` descriptors.
    pub fn bytes(queues: u16, size: u16) -> u64 {
        u64::from(queues) * Self::stride(size)
    }

    fn stride(size: u16) -> u64 {
        (HEAD + ENTRY * u64::from(size)).next_multiple_of(ALIGNMENT)
    }

    /// A new region, of a file that cannot be resized (GET_INFLIGHT_FD).
    ///
    /// # Errors
    /// An [`InflightError`].
    pub fn create(queues: u16, size: u16, quota: &Quota) -> Result<Self, InflightError> {
        Self::check(queues, size)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create("memlane-inflight", flags).map_err(io::Error::from)?);
        let length = Self::bytes(queues, size);
        file.set_len(length)?;
        let seals = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(io::Error::from)?;
        Self::map(file, 0, length, (queues, size), quota)
    }

    /// Maps the region of `length` bytes at `offset` of `file`, if `quota` has so much left, for `queues` virtqueues of `size`
    /// descriptors (SET_INFLIGHT_FD).
    ///
    /// # Errors
    /// An [`InflightError`].
    pub fn map(file: File, offset: u64, length: u64, (queues, size): (u16, u16), quota: &Quota) -> Result<Self, InflightError> {
        Self::check(queues, size)?;
        let needed = Self::bytes(queues, size);
        if length < needed {
            return Err(InflightError::Short(length, needed));
        }
        if !offset.is_multiple_of(8) {
            return Err(InflightError::Unaligned(offset));
        }
        let table = RegionTable { guest_start: 0, length: needed, user_start: 0, file_offset: offset };
        Ok(Self { region: Region::map_within(table, file, quota, &[])?, queues, size })
    }

    fn check(queues: u16, size: u16) -> Result<(), InflightError> {
        if queues > 0 && (1..=MAX_SIZE).contains(&size) { Ok(()) } else { Err(InflightError::Shape(queues, size)) }
    }

    /// The part of virtqueue `index`, if the region has one for a ring of `size` entries.
    pub fn part(self: &Arc<Self>, index: u32, size: u16) -> Option<InflightPart> {
        let start = u64::from(index) * Self::stride(self.size);
        (index < self.queues.into() && size <= self.size).then(|| InflightPart { region: Arc::clone(self), start })
    }

    /// Virtqueues, and descriptors of each.
    pub fn shape(&self) -> (u16, u16) {
        (self.queues, self.size)
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.region.length()
    }

    /// Offset of the area in its file.
    pub fn offset(&self) -> u64 {
        self.region.table().file_offset
    }

    /// File of the inflight area, for the front end or for a process that continues with it.
    pub fn file(&self) -> Option<&File> {
        self.region.file()
    }
}

/// The part of one virtqueue (QueueRegionSplit). A head outside of the table is ignored.
///
/// All stores are release stores: a process that is killed leaves them in their order.
#[derive(Clone, Debug)]
pub struct InflightPart {
    region: Arc<InflightRegion>,
    start: u64,
}

impl InflightPart {
    fn load(&self, offset: u64) -> u16 {
        self.region.region.half_word(self.start + offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u16) {
        if let Some(word) = self.region.region.half_word(self.start + offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Offset of the entry of `head`.
    fn entry(&self, head: u16) -> Option<u64> {
        (head < self.region.size).then(|| HEAD + ENTRY * u64::from(head))
    }

    /// True if the part was used before, by a device with this layout.
    pub fn is_used(&self) -> bool {
        (self.load(offset::VERSION), self.load(offset::ENTRIES)) == (VERSION, self.region.size)
    }

    /// Makes it a part without chains in flight, at the used index `used`.
    pub fn clear_all(&self, used: u16) {
        (0..self.region.size).for_each(|head| self.clear(head));
        self.store(offset::LAST_BATCH_HEAD, 0);
        self.set_used_index(used);
        self.store(offset::ENTRIES, self.region.size);
        self.store(offset::VERSION, VERSION);
    }

    /// The used index up to which entries are right (used_idx).
    pub fn used_index(&self) -> u16 {
        self.load(offset::USED_INDEX)
    }

    /// Sets [`Self::used_index`].
    pub fn set_used_index(&self, used: u16) {
        self.store(offset::USED_INDEX, used);
    }

    /// The chain of the last batch that was completed last.
    pub fn last_of_batch(&self) -> u16 {
        self.load(offset::LAST_BATCH_HEAD)
    }

    /// The chain of the last batch that was completed before that of `head`.
    pub fn before(&self, head: u16) -> u16 {
        self.entry(head).map_or(0, |entry| self.load(entry + offset::NEXT))
    }

    /// Adds the chain of `head` to the last batch.
    pub fn add_to_batch(&self, head: u16) {
        if let Some(entry) = self.entry(head) {
            self.store(entry + offset::NEXT, self.last_of_batch());
            self.store(offset::LAST_BATCH_HEAD, head);
        }
    }

    /// The counter of the chain of `head` if it is in flight.
    pub fn in_flight(&self, head: u16) -> Option<u64> {
        let entry = self.start + self.entry(head)?;
        let region = &self.region.region;
        let is_in_flight = region.byte(entry)?.load(Ordering::Acquire) == 1;
        is_in_flight.then_some(region.long_word(entry + offset::COUNTER)?.load(Ordering::Relaxed))
    }

    /// The chain of `head` is in flight, the `counter`th that was taken.
    pub fn mark(&self, head: u16, counter: u64) {
        let Some(entry) = self.entry(head).map(|entry| self.start + entry) else { return };
        if let Some(word) = self.region.region.long_word(entry + offset::COUNTER) {
            word.store(counter, Ordering::Release);
        }
        self.set_in_flight(entry, 1);
    }

    /// The chain of `head` is not in flight.
    pub fn clear(&self, head: u16) {
        if let Some(entry) = self.entry(head) {
            self.set_in_flight(self.start + entry, 0);
        }
    }

    fn set_in_flight(&self, entry: u64, value: u8) {
        if let Some(byte) = self.region.region.byte(entry) {
            byte.store(value, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_region_has_the_layout_of_the_specification() {
        let region = Arc::new(InflightRegion::create(3, 5, &Quota::default()).unwrap());
        // 16 + 5 * 16 bytes, and the rest of two cache lines.
        assert_eq!((region.length(), region.shape(), region.offset()), (3 * 128, (3, 5), 0));
        let part = region.part(1, 4).unwrap();
        assert!(!part.is_used() && region.part(3, 4).is_none() && region.part(0, 8).is_none());
        part.clear_all(0x0807);
        assert!(part.is_used());
        part.mark(2, 0x0102_0304_0506_0708);
        part.add_to_batch(4);
        part.add_to_batch(3);
        // Outside of the table.
        part.mark(5, 1);
        part.add_to_batch(u16::MAX);
        part.clear(u16::MAX);
        let mut bytes = vec![0; 3 * 128];
        region.file().unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..128].iter().chain(&bytes[256..]).all(|&byte| byte == 0));
        let part_bytes = &bytes[128..256];
        assert_eq!(part_bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 3, 0, 7, 8]);
        let entry = |head: usize| &part_bytes[16 + 16 * head..][..16];
        assert_eq!(entry(2), [1, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(entry(3), [0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((part.in_flight(2), part.in_flight(3), part.in_flight(5)), (Some(0x0102_0304_0506_0708), None, None));
        assert_eq!((part.last_of_batch(), part.before(3), part.before(4)), (3, 4, 0));
        part.clear(2);
        assert_eq!(part.in_flight(2), None);
    }

    #[test]
    fn a_region_that_does_not_hold_its_queues_is_refused() {
        let file = || {
            let file = File::from(memfd_create("inflight", MFdFlags::MFD_CLOEXEC).unwrap());
            file.set_len(4096).unwrap();
            file
        };
        for (offset, length, shape) in [
            (0, 4096, (0, 1)),
            (0, 4096, (1, 0)),
            (0, u64::MAX, (u16::MAX, u16::MAX)),
            (0, 4096, (1, 32769)),
            (0, 127, (1, 5)),
            (4, 4092, (1, 5)),
            (4096 - 64, 128, (1, 5)),
            (u64::MAX - 7, 128, (1, 5)),
            (0, u64::MAX, (2, 32768)),
        ] {
            let mapped = InflightRegion::map(file(), offset, length, shape, &Quota::default());
            assert!(mapped.is_err(), "{length} bytes at {offset} for {shape:?}");
        }
        assert!(InflightRegion::map(file(), 4096 - 128, 128, (1, 5), &Quota::default()).is_ok());
        assert!(InflightRegion::create(0, 1, &Quota::default()).is_err());
    }

    #[test]
    fn a_region_that_is_truncated_records_nothing_any_more() {
        let file = File::from(memfd_create("inflight", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(4096).unwrap();
        let region = InflightRegion::map(file.try_clone().unwrap(), 0, 4096, (1, 5), &Quota::default());
        let part = Arc::new(region.unwrap()).part(0, 4).unwrap();
        part.clear_all(7);
        file.set_len(0).unwrap();
        part.mark(1, 1);
        part.set_used_index(9);
        let _ = (part.in_flight(1), part.is_used());
        // Another one cannot be truncated.
        let region = InflightRegion::create(1, 5, &Quota::default()).unwrap();
        assert!(region.file().unwrap().set_len(0).is_err());
    }
}
