//! Guest memory: the memory that a front end shares with the switch, and the only way to find an address in it.
//!
//! - A **region** is one part of a guest's memory, mapped from a file descriptor that the front end sent ([`Region`]).
//! - A **memory map** is the set of a port's regions at one moment; it never changes, a new memory table makes a new map
//!   ([`MemoryMap`]). Every holder of pointers into a map holds the map.
//! - A mapping may lose its file at any time, when the guest truncates it or no page is left for it; [`sigbus`] turns that into a
//!   lost region instead of a dead daemon.
//! - A region is mapped twice: reads go through a mapping of its own, in which a **hole** of the file, which a monitor may still fill, is
//!   met without filling it ([`holes`]).
//! - A **dirty log** is the bitmap of pages that the switch has written, for the front end's live migration ([`DirtyLog`]).
//! - An **inflight region** is the buffer in which the switch records the chains that it has taken, for the process after it
//!   ([`InflightRegion`]).
//! - Under Xen, guests share single pages, by **grants**: memory that is only named that way is [`Foreign`].
//!
//! Addresses come in two kinds (vhost-user, "Memory region description"): *guest addresses* inside descriptors, and *user
//! addresses* (of the front end's own process) for the virtqueues themselves.

#![expect(clippy::indexing_slicing, reason = "windows of two, and the span before a partition point that is not the first")]

mod dirty_log;
pub mod faults;
mod foreign;
pub mod holes;
mod inflight;
mod iovec;
mod mapping;
mod owner;
pub mod postcopy;
#[cfg(test)]
pub(crate) mod proofs;
mod region;
mod second_copy;
pub mod sigbus;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holes::{Look, Torn};
use owner::{Owner, OwnerPermit};
use postcopy::Postcopy;

pub use dirty_log::{DirtyLog, LOG_PAGE, LogLoss};
pub use foreign::{Fetch, Foreign, Granted};
pub use inflight::{InflightError, InflightPart, InflightRegion};
pub(crate) use iovec::HostAddress;
pub use iovec::{Iovec, SharedPage};
pub use region::{Loss, Quota, Region, RegionError, RegionTable};

/// Attempts to read memory off the data path while other threads cover pages of it.
const ATTEMPTS: u32 = 1000;

/// How long a queue waits for a page that the guest's monitor is still to fill: a slow network storage may need seconds for one.
pub const FILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Pages of shared files that a process has mapped and touched, in one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One region as the data path needs it: three numbers in one place.
#[derive(Clone, Copy, Debug)]
struct Span {
    guest_start: u64,
    length: u64,
    host_start: HostAddress,
    /// Bytes from there to the same byte for reading.
    to_readable: u64,
}

/// A port's whole memory, immutable. At most [`MemoryMap::MAX_REGIONS`] regions that do not overlap.
#[derive(Debug, Default)]
pub struct MemoryMap {
    /// Sorted by guest address.
    spans: Vec<Span>,
    regions: Vec<Arc<Region>>,
    /// The guest's memory, of which this is the map at one moment.
    owner: Owner,
    /// Holes are still to be filled, see [`Self::note_filling`].
    filling: AtomicBool,
    /// The front end's configuration says so, or the front end itself: however full the file is.
    declared: AtomicBool,
    /// By which pages are fetched that a queue waits for.
    postcopy: Option<Arc<Postcopy>>,
    /// How long a queue waits for a page that is still to be filled.
    fill_timeout: Option<Duration>,
}

/// The span of one map that was used last, so that the common case is one comparison.
#[derive(Clone, Copy, Debug)]
pub struct Hint(Span);

impl Default for Hint {
    fn default() -> Self {
        Self(Span { guest_start: 0, length: 0, host_start: HostAddress::NONE, to_readable: 0 })
    }
}

impl MemoryMap {
    /// Memory slots that a front end may use (QEMU offers up to 509 to a guest).
    pub const MAX_REGIONS: usize = 512;

    /// A map of these regions, some of which may be in earlier maps of the same guest's memory.
    ///
    /// # Errors
    /// [`RegionError::TooMany`] above [`Self::MAX_REGIONS`], [`RegionError::Overlap`] where two regions share a guest address,
    /// [`RegionError::Owners`] where they are in maps of two guests' memory.
    pub fn new(regions: Vec<Arc<Region>>) -> Result<Self, RegionError> {
        if regions.len() > Self::MAX_REGIONS {
            return Err(RegionError::TooMany);
        }
        let mut regions = regions;
        regions.sort_by_key(|region| region.guest_start());
        if regions.windows(2).any(|pair| pair[0].guest_end() > pair[1].guest_start()) {
            return Err(RegionError::Overlap);
        }
        let spans = regions
            .iter()
            .map(|r| Span {
                guest_start: r.guest_start(),
                length: r.length(),
                host_start: HostAddress::new(r.host_start()),
                to_readable: r.to_readable() as u64,
            })
            .collect();
        let filling = AtomicBool::new(regions.iter().any(|region| region.is_filling()));
        let owner = Self::owner_of(&regions)?;
        Ok(Self { spans, regions, owner, filling, declared: AtomicBool::new(false), postcopy: None, fill_timeout: None })
    }

    /// The guest's memory that `regions` are of: those that are in no map yet join the others.
    fn owner_of(regions: &[Arc<Region>]) -> Result<Owner, RegionError> {
        if regions.is_empty() {
            return Ok(Owner::NONE);
        }
        let known = regions.iter().find_map(|region| region.owner());
        let owner = known.map_or_else(OwnerPermit::take, Arc::clone);
        if regions.iter().all(|region| region.join(&owner)) { Ok(owner.owner()) } else { Err(RegionError::Owners) }
    }

    /// The guest's memory, of which an operation [looks](holes::Look) for holes.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Runs `read`, which looks at this memory beside the data path, until no other thread covers pages meanwhile; also returns whether it
    /// met a hole, or that cannot be told.
    pub fn settled<R>(&self, mut read: impl FnMut() -> R) -> (R, bool) {
        let mut attempt = || {
            let look = Look::begin(self.owner);
            let result = read();
            (result, look.end())
        };
        let mut last = attempt();
        for _ in 0..ATTEMPTS {
            if !last.1.by_others {
                break;
            }
            std::thread::yield_now();
            last = attempt();
        }
        (last.0, last.1 != Torn::NO)
    }

    /// The same with `declared` holes: the configuration says that they are still to be filled. A queue waits for a page for
    /// `fill_timeout`, [`FILL_TIMEOUT`] where that is `None`.
    #[must_use]
    pub fn with_holes(mut self, declared: bool, fill_timeout: Option<Duration>) -> Self {
        *self.filling.get_mut() |= declared;
        (self.declared, self.fill_timeout) = (AtomicBool::new(declared), fill_timeout);
        self
    }

    /// The same with a front end that fetches pages from another host.
    #[must_use]
    pub fn with_postcopy(self, postcopy: Option<Arc<Postcopy>>) -> Self {
        Self { postcopy, ..self }
    }

    /// Asks the front end for the pages in whose place this thread has met holes last, if it fetches them.
    #[cold]
    pub fn fetch(&self) {
        if let Some(postcopy) = &self.postcopy {
            holes::last_met(self.owner).for_each(|page| postcopy.ask(page));
        }
    }

    /// All memory is there: the front end says so.
    pub fn end_filling(&self) {
        self.declared.store(false, Ordering::Relaxed);
        self.filling.store(false, Ordering::Relaxed);
        self.regions.iter().for_each(|region| region.set_filling(false));
    }

    /// How long a queue waits for a page that is still to be filled.
    pub fn fill_timeout(&self) -> Duration {
        self.fill_timeout.unwrap_or(FILL_TIMEOUT)
    }

    /// Whether holes are still to be filled, by the guest's monitor: neither are they read as zeros then, nor written.
    #[inline(always)]
    pub fn is_filling(&self) -> bool {
        self.filling.load(Ordering::Relaxed)
    }

    /// Evidence came that holes are still to be filled: memory that the guest must have written is a hole.
    #[cold]
    pub fn note_filling(&self) {
        self.filling.store(true, Ordering::Relaxed);
        self.regions.iter().for_each(|region| region.set_filling(true));
    }

    /// Notes that no hole is left, if that is so. A system call for each region while memory [is filled](Self::is_filling).
    #[cold]
    pub fn check_filled(&self) {
        if self.is_filling() && !self.declared.load(Ordering::Relaxed) && self.regions.iter().all(|region| region.is_full()) {
            self.filling.store(false, Ordering::Relaxed);
            self.regions.iter().for_each(|region| region.set_filling(false));
        }
    }

    /// Marks regions as lost if their file has ended before them: for holes that may be none.
    #[cold]
    pub fn check_length(&self) {
        self.regions.iter().for_each(|region| region.check_length());
    }

    /// Like [`Self::find`], to read there: nothing may be written at the address.
    #[inline]
    pub fn find_to_read(&self, address: u64, hint: &mut Hint) -> Option<(*const u8, u64)> {
        let (place, follow) = self.find(address, hint)?;
        Some((place.wrapping_add(hint.0.to_readable as usize), follow))
    }

    /// Like [`Self::find_user`], to read there: nothing may be written at the address.
    pub fn find_user_to_read(&self, address: u64, length: u64) -> Option<*const u8> {
        let place = |region: &Arc<Region>| Some(region.place_user(address, length)?.wrapping_add(region.to_readable()));
        self.regions.iter().find_map(|region| place(region).map(<*mut u8>::cast_const))
    }

    /// The address at which the byte is read that is written at `place`; `None` outside of the map.
    pub fn to_read(&self, place: *const u8) -> Option<*const u8> {
        self.spans.iter().find_map(|span| {
            let offset = (place.addr() as u64).wrapping_sub(span.host_start.get().addr() as u64);
            (offset < span.length).then(|| place.wrapping_add(span.to_readable as usize))
        })
    }

    /// The address at which the byte may be written that is read at `place`; `None` outside of the map.
    pub fn to_write(&self, place: *const u8) -> Option<*mut u8> {
        self.spans.iter().find_map(|span| {
            let start = span.host_start.get();
            let offset = (place.addr() as u64).wrapping_sub(start.addr() as u64).wrapping_sub(span.to_readable);
            (offset < span.length).then(|| start.wrapping_add(offset as usize))
        })
    }

    /// The host address of guest address `address`, and how many bytes follow it in the same region (at least 1). `hint` must have
    /// been used with this map only.
    #[inline]
    pub fn find(&self, address: u64, hint: &mut Hint) -> Option<(*mut u8, u64)> {
        hint.0.place(address).or_else(|| self.find_elsewhere(address, hint))
    }

    #[cold]
    fn find_elsewhere(&self, address: u64, hint: &mut Hint) -> Option<(*mut u8, u64)> {
        let after = self.spans.partition_point(|span| span.guest_start <= address);
        let span = self.spans[after.checked_sub(1)?];
        let place = span.place(address)?;
        hint.0 = span;
        Some(place)
    }

    /// The host address of `length` bytes at the front end's own address `address`: for virtqueues, which must lie in one region.
    pub fn find_user(&self, address: u64, length: u64) -> Option<*mut u8> {
        self.regions.iter().find_map(|region| region.place_user(address, length))
    }

    /// The guest address of the byte at host address `place`; `None` outside of the map.
    pub fn guest_address(&self, place: *const u8) -> Option<u64> {
        self.spans.iter().find_map(|span| {
            let offset = (place.addr() as u64).wrapping_sub(span.host_start.get().addr() as u64);
            (offset < span.length).then(|| span.guest_start + offset)
        })
    }

    /// The reason why a region of this map lost its memory (see [`sigbus`]), if one did: bytes that were read since are worthless.
    pub fn loss(&self) -> Option<Loss> {
        self.regions.iter().find_map(|region| region.loss())
    }

    /// Change of the bytes that this process has touched in it since the last check, at most, see [`Region::look_at_touched`].
    pub fn look_at_touched(&self, all: &[Touched]) -> i64 {
        self.regions.iter().map(|region| region.look_at_touched(all)).sum()
    }

    /// Bytes in all regions.
    pub fn length(&self) -> u64 {
        self.regions.iter().map(|region| region.length()).sum()
    }

    /// The regions, sorted by guest address.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }
}

impl Span {
    #[inline]
    fn place(&self, address: u64) -> Option<(*mut u8, u64)> {
        let offset = address.wrapping_sub(self.guest_start);
        if offset < self.length { Some((self.host_start.get().wrapping_add(offset as usize), self.length - offset)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(ranges: &[(u64, u64)]) -> Result<MemoryMap, RegionError> {
        let regions = ranges.iter().map(|&(start, length)| Arc::new(Region::anonymous(start, length).unwrap())).collect();
        MemoryMap::new(regions)
    }

    #[test]
    fn finds_the_first_and_last_byte_of_each_region_and_nothing_in_the_gap() {
        let map = map(&[(0x4000, 0x1000), (0, 0x2000)]).unwrap();
        let mut hint = Hint::default();
        let found: Vec<_> = [0, 0x1fff, 0x2000, 0x3fff, 0x4000, 0x4fff, 0x5000, u64::MAX]
            .iter()
            .map(|&a| map.find(a, &mut hint).map(|p| p.1))
            .collect();
        assert_eq!(found, [Some(0x2000), Some(1), None, None, Some(0x1000), Some(1), None, None]);
    }

    #[test]
    fn a_host_address_leads_back_to_its_guest_address() {
        let map = map(&[(0x4000, 0x1000), (0, 0x2000)]).unwrap();
        for address in [0, 0x1fff, 0x4000, 0x4fff] {
            let (place, _) = map.find(address, &mut Hint::default()).unwrap();
            assert_eq!(map.guest_address(place), Some(address));
        }
        assert_eq!(map.guest_address(std::ptr::null()), None);
    }

    #[test]
    fn refuses_overlapping_regions_but_not_neighbours() {
        assert_eq!(map(&[(0, 0x2000), (0x1000, 0x1000)]).unwrap_err(), RegionError::Overlap);
        assert!(map(&[(0, 0x1000), (0x1000, 0x1000)]).is_ok());
    }

    #[test]
    fn an_empty_map_has_no_place_for_anything() {
        let map = MemoryMap::default();
        assert!(map.find(0, &mut Hint::default()).is_none());
        assert!(map.find_user(0, 1).is_none());
    }
}
