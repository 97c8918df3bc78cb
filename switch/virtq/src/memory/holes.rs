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
//! an operation [begins](Look::begin), reads, and [asks](Look::is_clean) at its end whether any page was covered meanwhile; one load
//! at either end. If so it [settles](Look::settle) its own covers, and learns whether it met holes itself, or may have read a page that another
//! thread covered; then it is repeated.
//!
//! Without userfaultfd (Linux before 5.11, or a kernel without it) both mappings are one, and reads fill holes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::sigbus;

pub use super::sigbus::prepare;

/// Covers that a thread has at a time: a further one ends the first.
const COVERS: usize = 8;

/// Covers that exist in the low half; in the high half those that were ever made, modulo 2^32.
static COVERED: AtomicU64 = AtomicU64::new(0);
const ONE: u64 = 1 << 32 | 1;

/// A covered page: its address and its bytes.
type Page = (usize, usize);

/// Covers of one thread. Without a destructor, so that a signal handler may use it.
struct Own {
    /// Holes met since the thread settled last.
    met: Cell<u32>,
    /// The same since it began, modulo 2^32: page faults that the kernel does not count for a receive buffer or transmit buffer.
    all: Cell<u32>,
    count: Cell<usize>,
    pages: [Cell<Page>; COVERS],
}

thread_local! {
    static OWN: Own = const {
        Own { met: Cell::new(0), all: Cell::new(0), count: Cell::new(0), pages: [const { Cell::new((0, 0)) }; COVERS] }
    };
}

/// The beginning of an operation that reads guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Look(u64);

/// Holes that an operation has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Bytes were read from holes.
    pub met_hole: bool,
    /// Zeros may have been read where another thread covered a page that was filled meanwhile.
    pub by_others: bool,
}

impl Look {
    /// An operation begins.
    #[inline(always)]
    pub fn begin() -> Self {
        Self(COVERED.load(Ordering::Acquire))
    }

    /// Whether no page of any guest was covered since the beginning: all bytes were read as memory holds them.
    #[inline(always)]
    pub fn is_clean(self) -> bool {
        // The reads come before the load.
        fence(Ordering::Acquire);
        let now = COVERED.load(Ordering::Relaxed);
        now == self.0 && now as u32 == 0
    }

    /// Ends the covers of this thread, and tells of the holes that the operation met.
    #[cold]
    pub fn settle(self) -> Torn {
        let own = settle_all();
        let now = COVERED.load(Ordering::Acquire);
        let made = ((now >> 32) as u32).wrapping_sub((self.0 >> 32) as u32);
        Torn { met_hole: own > 0, by_others: made != own || self.0 as u32 != 0 || now as u32 != 0 }
    }
}

/// Ends the covers of this thread; returns the holes that it has met since it did this last.
pub fn settle_all() -> u32 {
    OWN.with(|own| {
        let count = own.count.replace(0);
        for page in own.pages.iter().take(count) {
            end(page.get());
        }
        own.met.replace(0)
    })
}

/// Runs `read`, which looks at guest memory beside the data path, and settles; also returns whether it met a hole.
pub fn settled<R>(read: impl FnOnce() -> R) -> (R, bool) {
    let result = read();
    (result, settle_all() > 0)
}

/// Whether this thread has covers: for a thread that settles from time to time.
#[inline]
pub fn has_covers() -> bool {
    OWN.with(|own| own.count.get() > 0)
}

/// Holes that this thread has met since it began, modulo 2^32.
pub(super) fn all_met() -> u32 {
    OWN.with(|own| own.all.get())
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
        COVERED.fetch_add(ONE, Ordering::SeqCst);
        own.pages.iter().skip(count).take(1).for_each(|place| place.set(page));
        own.count.set(count + 1);
        own.met.set(own.met.get().wrapping_add(1));
        own.all.set(own.all.get().wrapping_add(1));
    });
}

/// Takes [`begin_cover`] back: the page is no hole. Async-signal-safe.
pub(super) fn cancel_cover() {
    OWN.with(|own| {
        own.count.set(own.count.get().saturating_sub(1));
        own.met.set(own.met.get().wrapping_sub(1));
        own.all.set(own.all.get().wrapping_sub(1));
    });
    // As a cover of another thread: the operation is repeated.
    COVERED.fetch_sub(1, Ordering::SeqCst);
}

fn end(page: Page) {
    sigbus::uncover(page);
    COVERED.fetch_sub(1, Ordering::SeqCst);
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
        let look = Look::begin();
        let mut bytes = vec![7; length];
        map.iovec_to_read(address, length as u32, &mut Hint::default()).unwrap().copy_in(&mut bytes);
        let torn = if look.is_clean() { Torn { met_hole: false, by_others: false } } else { look.settle() };
        (bytes, torn)
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
                assert!(has_covers() && settle_all() == 1 && !has_covers());
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
    fn huge_pages_have_holes_too() {
        let (file, map) = guest(2 << 20, MFdFlags::MFD_HUGETLB);
        for address in [0, 5 << 20] {
            let (bytes, torn) = read(&map, address, 8192);
            assert!(torn.met_hole && bytes.iter().all(|&byte| byte == 0) && filled(&file) == 0);
        }
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
