//! Holes of guest memory: pages that its file does not have yet.
//!
//! A guest that is restored lazily, or arrives by postcopy, has a file of holes, which its monitor fills page by page. To touch a hole
//! in an ordinary shared mapping fills it with zeros for good, and the guest's data never gets there. So each region is mapped
//! twice:
//!
//! - **For writing**, shared, as ever: a write fills a hole.
//! - **For reading**, private and registered with userfaultfd(2) for missing pages, which are reported as SIGBUS instead of being
//!   waited for (UFFD_FEATURE_SIGBUS). The handler ([`super::sigbus`]) **covers** the hole with zeros in this mapping only; the file
//!   keeps its hole, and the interrupted read ends with zeros.
//!
//! A cover hides data that the monitor fills in later, from all threads. So it lasts no longer than the operation that met the hole:
//! an operation on a guest's memory [begins](Look::begin), reads, and [asks](Look::is_clean) at its end whether any page of that memory
//! was covered meanwhile; one load at either end. If so it [settles](Look::settle) its own covers, and learns whether it met holes itself,
//! or may have read a page that another thread covered; then it is repeated, or reads the [file](super::Iovec::append_from_file) instead.
//!
//! Covers are counted for each guest's memory ([`Owner`]), so that holes of one guest cost no other guest a repeated read. A frame that is
//! copied from one guest to another is read from the sender's memory only: the receiver's is written.
//!
//! Without userfaultfd (a kernel, or the seccomp filter of a container, that refuses the system call) both mappings are one, and reads fill
//! holes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use super::owner::{MADE, NO_OWNER, ONE};
use super::sigbus;

pub use super::owner::Owner;
pub use super::sigbus::{check, prepare};

/// Covers that a thread has at a time: a further one ends the first.
const COVERS: usize = 8;

/// Memories of which a thread counts holes at a time, between two settlements.
const COUNTS: usize = 4;

/// A covered page, or several in a row: their address, their bytes, and the number of their owner.
type Page = (usize, usize, u32);

/// Covers of one thread. Without a destructor, so that a signal handler may use it.
struct Own {
    /// Holes met since the thread settled last, by owner.
    met: [Cell<(u32, u32)>; COUNTS],
    /// The same since it began, modulo 2^32: page faults of a receive buffer, transmit buffer or descriptor chain that the kernel does not count.
    all: Cell<u32>,
    /// End of the run that a [bulk](in_bulk) copy reads; 0 outside of one.
    bulk_end: Cell<usize>,
    count: Cell<usize>,
    pages: [Cell<Page>; COVERS],
    /// The covers of the last settlement that had some.
    last: [Cell<Page>; COVERS],
}

thread_local! {
    static OWN: Own = const {
        Own {
            met: [const { Cell::new((0, 0)) }; COUNTS],
            all: Cell::new(0),
            bulk_end: Cell::new(0),
            count: Cell::new(0),
            pages: [const { Cell::new((0, 0, 0)) }; COVERS],
            last: [const { Cell::new((0, 0, 0)) }; COVERS],
        }
    };
}

/// The beginning of an operation that reads guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    count: &'static AtomicU64,
    owner: Owner,
    before: u64,
}

/// Holes that an operation has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Bytes were read from holes.
    pub met_hole: bool,
    /// Zeros may have been read where another thread covered a page that was filled meanwhile.
    pub by_others: bool,
}

impl Torn {
    /// No hole.
    pub const NO: Self = Self { met_hole: false, by_others: false };
}

impl Look {
    /// An operation on the memory of `owner` begins.
    #[inline(always)]
    pub fn begin(owner: Owner) -> Self {
        let count = owner.count();
        Self { count, owner, before: count.load(Ordering::Acquire) }
    }

    /// Whether no page of this memory was covered since the beginning: all bytes were read as memory holds them.
    #[inline(always)]
    pub fn is_clean(self) -> bool {
        // The reads come before the load.
        fence(Ordering::Acquire);
        let now = self.count.load(Ordering::Relaxed);
        now == self.before && now as u32 == 0
    }

    /// Ends the covers of this thread, and tells of the holes that the operation met.
    #[cold]
    pub fn settle(self) -> Torn {
        let own = settle_of(self.owner);
        let now = self.count.load(Ordering::Acquire);
        let made = ((now >> 32) as u32).wrapping_sub((self.before >> 32) as u32);
        Torn { met_hole: own > 0, by_others: made != own || self.before as u32 != 0 || now as u32 != 0 }
    }

    /// Like [`Self::settle`], unless the operation [was clean](Self::is_clean).
    #[inline(always)]
    pub fn end(self) -> Torn {
        if self.is_clean() { Torn::NO } else { self.settle() }
    }
}

/// Ends the covers of this thread; returns the holes of `owner`'s memory that it has met since it did this last.
fn settle_of(owner: Owner) -> u32 {
    OWN.with(|own| {
        let count = own.count.replace(0);
        if count > 0 {
            let pages = own.pages.iter().map(Cell::get).take(count).chain(std::iter::repeat((0, 0, NO_OWNER)));
            own.last.iter().zip(pages).for_each(|(last, page)| last.set(page));
        }
        for page in own.pages.iter().take(count) {
            end(page.get());
        }
        let met = own.met.iter().map(|met| met.replace((0, 0)));
        met.filter(|&(of, _)| of == owner.number()).map(|(_, met)| met).sum()
    })
}

/// Addresses of pages of `owner`'s memory that this thread had covered when it settled last: holes that it has met.
pub(super) fn last_met(owner: Owner) -> impl Iterator<Item = usize> {
    let last = OWN.with(|own| own.last.each_ref().map(Cell::get));
    last.into_iter().filter(move |page| page.2 == owner.number() && owner != Owner::NONE).map(|page| page.0)
}

/// Ends the covers of this thread.
pub fn settle_all() {
    settle_of(Owner::NONE);
}

/// Whether this thread has covers: for a thread that settles from time to time.
#[inline]
pub fn has_covers() -> bool {
    OWN.with(|own| own.count.get() > 0)
}

/// Holes that this thread has met since it began, modulo 2^32.
pub(crate) fn all_met() -> u32 {
    OWN.with(|own| own.all.get())
}

/// Runs `copy`, which reads guest memory up to the address `end`. The first hole in it costs a trap, further ones none: its pages up to the end
/// are covered at once, holes or not, which is told as covers of others, so that the copy is repeated from the file.
#[inline]
pub(super) fn in_bulk(end: usize, copy: impl FnOnce()) {
    OWN.with(|own| own.bulk_end.set(end));
    // For the handler, which interrupts this thread.
    compiler_fence(Ordering::SeqCst);
    copy();
    compiler_fence(Ordering::SeqCst);
    OWN.with(|own| own.bulk_end.set(0));
}

/// End of the run that this thread reads as bulk; 0 if it does not. Async-signal-safe.
pub(super) fn bulk_end() -> usize {
    OWN.with(|own| own.bulk_end.get())
}

/// The cover that this thread has begun at `start` last reaches to `end`, over pages that may be no holes; false if there is none.
/// Async-signal-safe.
pub(super) fn extend_cover(start: usize, end: usize) -> bool {
    OWN.with(|own| {
        let last = own.pages.iter().take(own.count.get()).last().filter(|last| last.get().0 == start);
        if let Some(last) = last {
            let owner = last.get().2;
            last.set((start, end - start, owner));
            Owner::of(owner).count().fetch_add(MADE, Ordering::SeqCst);
        }
        last.is_some()
    })
}

/// The calling thread is about to cover `page`. Async-signal-safe.
pub(super) fn begin_cover(page: Page) {
    OWN.with(|own| {
        let mut count = own.count.get();
        if count == COVERS {
            // The first makes room. A repeated read meets its hole again.
            own.pages.iter().take(1).for_each(|first| end(first.get()));
            own.pages.iter().zip(own.pages.iter().skip(1)).for_each(|(to, from)| to.set(from.get()));
            count -= 1;
        }
        Owner::of(page.2).count().fetch_add(ONE, Ordering::SeqCst);
        own.pages.iter().skip(count).take(1).for_each(|place| place.set(page));
        own.count.set(count + 1);
        own.add(page.2, 1);
        own.all.set(own.all.get().wrapping_add(1));
    });
}

/// Takes [`begin_cover`] back: the page is no hole. Async-signal-safe.
pub(super) fn cancel_cover(page: Page) {
    OWN.with(|own| {
        own.count.set(own.count.get().saturating_sub(1));
        own.add(page.2, u32::MAX);
        own.all.set(own.all.get().wrapping_sub(1));
    });
    // The same as a cover of another thread: the operation is repeated.
    Owner::of(page.2).count().fetch_sub(1, Ordering::SeqCst);
}

impl Own {
    /// Counts holes of `owner`'s memory. Where more owners are counted than there is room for, holes are taken for those of other threads.
    fn add(&self, owner: u32, more: u32) {
        let has_room = |met: &&Cell<(u32, u32)>| [owner, NO_OWNER].contains(&met.get().0);
        if let Some(met) = self.met.iter().find(has_room) {
            met.set((owner, met.get().1.wrapping_add(more)));
        }
    }
}

fn end(page: Page) {
    let (start, length, owner) = page;
    sigbus::uncover(start, length, owner);
    Owner::of(owner).count().fetch_sub(1, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::sync::Arc;

    use nix::fcntl::{FallocateFlags, fallocate};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::memory::{Hint, MemoryMap, Region, RegionTable};

    const PAGES: u64 = 64;

    fn guest(page: u64, flags: MFdFlags) -> (File, MemoryMap) {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC | flags).unwrap());
        file.set_len(PAGES * page).unwrap();
        let table = RegionTable { guest_start: 0, length: PAGES * page, user_start: 0, file_offset: 0 };
        let map = MemoryMap::new(vec![Arc::new(Region::map(table, file.try_clone().unwrap()).unwrap())]).unwrap();
        (file, map)
    }

    fn read(map: &MemoryMap, address: u64, length: usize) -> (Vec<u8>, Torn) {
        let look = Look::begin(map.owner());
        let mut bytes = vec![7; length];
        map.iovec_to_read(address, length as u32, &mut Hint::default()).unwrap().copy_in(&mut bytes);
        (bytes, look.end())
    }

    /// Bytes that the file has allocated.
    fn filled(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_read_of_any_length_fills_no_hole_and_sees_what_is_filled_later() {
        let (file, map) = guest(4096, MFdFlags::empty());
        // All routines of the copy, the C library's included.
        for length in [1, 2, 8, 12, 16, 64, 100, 1500, 4096, 8200, 20_000, 40_000, 70_000, 200_000] {
            let (bytes, torn) = read(&map, 4096 - length as u64 % 4096, length);
            assert!(torn.met_hole && bytes.iter().all(|&byte| byte == 0), "{length}");
            assert_eq!(filled(&file), 0, "{length}");
        }
        file.write_all_at(&[9; 4096], 4096).unwrap();
        let (bytes, torn) = read(&map, 4096, 4096);
        assert!(!torn.met_hole && bytes.iter().all(|&byte| byte == 9));
        // The guest gives the page back (a balloon, free page reporting).
        fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 4096, 4096).unwrap();
        let (bytes, torn) = read(&map, 4096, 4096);
        assert!(torn.met_hole && bytes.iter().all(|&byte| byte == 0) && filled(&file) == 0);
        // A write fills it, and a read sees the write.
        map.iovec(4096, 4, &mut Hint::default()).unwrap().write(&[1, 2, 3, 4]);
        assert_eq!((read(&map, 4096, 4).0, filled(&file)), (vec![1, 2, 3, 4], 4096));
    }

    #[test]
    fn a_bulk_copy_takes_one_trap_however_many_holes_it_reads_and_is_told_to_repeat() {
        let ((file, map), (_, receiver)) = (guest(4096, MFdFlags::empty()), guest(4096, MFdFlags::empty()));
        // Every second page is a hole; those between were read before, or were not.
        for page in (1..16).step_by(2) {
            file.write_all_at(&[page as u8; 4096], page * 4096).unwrap();
        }
        for seen in [1, 5] {
            assert_eq!(read(&map, seen * 4096, 4096), (vec![seen as u8; 4096], Torn::NO));
        }
        let bulk = map.iovec_to_read(100, 15 * 4096, &mut Hint::default()).unwrap();
        let (look, before) = (Look::begin(map.owner()), all_met());
        bulk.copy_to(receiver.iovec(0, 15 * 4096, &mut Hint::default()).unwrap());
        assert_eq!((look.end(), all_met() - before), (Torn { met_hole: true, by_others: true }, 1));
        let mut bytes = Vec::new();
        bulk.append_from_file(&mut bytes);
        let wanted = (100..100 + 15 * 4096).map(|at| if at / 4096 % 2 == 1 { (at / 4096) as u8 } else { 0 });
        assert!(bytes.into_iter().eq(wanted), "as the file holds them");
        // No page stays covered, and none was filled.
        assert_eq!(read(&map, 3 * 4096, 4096), (vec![3; 4096], Torn::NO));
        assert!(read(&map, 4 * 4096, 4096).1.met_hole && filled(&file) == 8 * 4096);
        // What is no bulk is covered page by page, and nothing else with it.
        let look = Look::begin(map.owner());
        let header = map.iovec_to_read(2 * 4096 - 8, 4200, &mut Hint::default()).unwrap();
        header.copy_in(&mut [0; 4200]);
        assert_eq!(look.end(), Torn { met_hole: true, by_others: false });
    }

    #[test]
    fn a_cover_of_another_thread_is_told_and_ends_with_its_operation() {
        let (file, map) = guest(4096, MFdFlags::empty());
        let (covered, ready) = std::sync::mpsc::channel();
        let (go, settle) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let map = &map;
            scope.spawn(move || {
                assert_eq!(map.iovec_to_read(0, 1, &mut Hint::default()).unwrap().few::<1>(), [0]);
                covered.send(()).unwrap();
                settle.recv().unwrap();
                assert!(has_covers() && settle_of(map.owner()) == 1 && !has_covers());
            });
            ready.recv().unwrap();
            file.write_all_at(&[5], 0).unwrap();
            let (bytes, torn) = read(map, 0, 1);
            assert_eq!((bytes, torn), (vec![0], Torn { met_hole: false, by_others: true }), "stale, and known to be");
            go.send(()).unwrap();
        });
        assert_eq!(read(&map, 0, 1).0, [5]);
    }

    #[test]
    fn a_cover_costs_reads_of_no_other_guest_and_the_file_has_the_bytes_under_it() {
        let ((file, map), (other_file, other)) = (guest(4096, MFdFlags::empty()), guest(4096, MFdFlags::empty()));
        other_file.write_all_at(&[6; 64], 0).unwrap();
        let (covered, ready) = std::sync::mpsc::channel();
        let (go, settle) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let map = &map;
            scope.spawn(move || {
                // Holes of many guests between two settlements, and more pages than a thread covers at a time.
                let others: Vec<MemoryMap> = (0..2 * COUNTS).map(|_| guest(4096, MFdFlags::empty()).1).collect();
                let look = Look::begin(map.owner());
                for page in 0..2 * COVERS as u64 {
                    map.iovec_to_read(page * 4096, 1, &mut Hint::default()).unwrap().few::<1>();
                }
                for other in &others {
                    other.iovec_to_read(0, 1, &mut Hint::default()).unwrap().few::<1>();
                }
                map.iovec_to_read(5 * 4096, 1, &mut Hint::default()).unwrap().few::<1>();
                covered.send(()).unwrap();
                settle.recv().unwrap();
                assert!(look.end().met_hole && !has_covers());
                assert_eq!(others.iter().map(|other| read(other, 0, 64).1.by_others).collect::<Vec<_>>(), [false; 2 * COUNTS]);
            });
            ready.recv().unwrap();
            for _ in 0..100 {
                assert_eq!(read(&other, 0, 64), (vec![6; 64], Torn::NO));
            }
            file.write_all_at(&[5; 8192], 5 * 4096).unwrap();
            assert!(read(map, 5 * 4096, 100).1.by_others, "covered once more, and known to be");
            let mut bytes = Vec::new();
            map.iovec_to_read(5 * 4096 + 4000, 200, &mut Hint::default()).unwrap().append_from_file(&mut bytes);
            map.iovec_to_read(20 * 4096, 8, &mut Hint::default()).unwrap().append_from_file(&mut bytes);
            assert_eq!(bytes, [[5; 200].as_slice(), &[0; 8]].concat());
            assert_eq!(filled(&file), 8192);
            go.send(()).unwrap();
        });
        assert_eq!(read(&map, 5 * 4096, 4), (vec![5; 4], Torn::NO));
    }

    #[test]
    fn maps_of_one_guest_have_one_owner_and_no_region_is_of_two_guests() {
        let region = |start| {
            let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
            file.set_len(4096).unwrap();
            let table = RegionTable { guest_start: start, length: 4096, user_start: start, file_offset: 0 };
            Arc::new(Region::map(table, file).unwrap())
        };
        let (first, second, third) = (region(0), region(4096), region(8192));
        let map = |regions: &[&Arc<Region>]| MemoryMap::new(regions.iter().copied().map(Arc::clone).collect());
        let before = map(&[&first]).unwrap();
        let after = map(&[&second, &first]).unwrap();
        // A slot is removed, the first one too.
        let last = map(&[&second]).unwrap();
        assert!(before.owner() == after.owner() && after.owner() == last.owner());
        assert_ne!(map(&[&third]).unwrap().owner(), last.owner());
        assert_eq!(map(&[&third, &second]).unwrap_err(), crate::memory::RegionError::Owners);
        assert_eq!(MemoryMap::default().owner(), Owner::NONE);
        let look = Look::begin(before.owner());
        last.iovec_to_read(4096, 1, &mut Hint::default()).unwrap().few::<1>();
        assert!(look.end().met_hole, "a cover of a region that came later");
    }

    #[test]
    fn a_thread_that_settles_after_its_memory_is_gone_ends_nothing() {
        let (_, map) = guest(4096, MFdFlags::empty());
        map.iovec_to_read(0, 1, &mut Hint::default()).unwrap().few::<1>();
        let owner = map.owner();
        drop(map);
        // Most likely at the same address.
        let (file, map) = guest(4096, MFdFlags::empty());
        assert_ne!(map.owner(), owner, "a number with a cover is not given again");
        settle_all();
        assert_eq!((read(&map, 0, 1), filled(&file)), ((vec![0], Torn { met_hole: true, by_others: false }), 0));
    }

    #[test]
    fn huge_pages_have_holes_too() {
        // Huge pages of a gigabyte are pages of this machine, if it has them.
        let gigabyte = std::path::Path::new("/sys/kernel/mm/hugepages/hugepages-1048576kB").exists();
        let kinds = [(2 << 20, MFdFlags::empty()), (1 << 30, MFdFlags::MFD_HUGE_1GB)];
        for (page, kind) in kinds.into_iter().take(1 + usize::from(gigabyte)) {
            let (file, map) = guest(page, MFdFlags::MFD_HUGETLB | kind);
            for address in [0, 2 * page + (1 << 20), 3 * page - 4096] {
                let (bytes, torn) = read(&map, address, 8192);
                assert!(torn.met_hole && bytes.iter().all(|&byte| byte == 0) && filled(&file) == 0, "{page}");
            }
        }
        let (file, map) = guest(2 << 20, MFdFlags::MFD_HUGETLB);
        let info = std::fs::read_to_string("/proc/meminfo").unwrap();
        let free = info.lines().find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<u64>().ok()).unwrap();
        if free > 0 {
            map.iovec(4 << 20, 1, &mut Hint::default()).unwrap().write(&[3]);
            let (bytes, torn) = read(&map, 4 << 20, 1);
            assert!(bytes == [3] && !torn.met_hole && filled(&file) == 2 << 20);
        }
    }

    #[test]
    fn a_file_that_shrinks_is_lost_and_not_taken_for_a_hole() {
        let (file, map) = guest(4096, MFdFlags::empty());
        file.set_len(0).unwrap();
        let (bytes, torn) = read(&map, 8192, 64);
        assert!(bytes == [0; 64] && !torn.met_hole);
        assert_eq!(map.loss(), Some(crate::memory::Loss::Truncated));
    }
}
