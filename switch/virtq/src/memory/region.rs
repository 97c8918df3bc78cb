//! One region of guest memory: checked, mapped, and watched for the loss of its file.

#![expect(clippy::indexing_slicing, reason = "from a partition point of the same list on")]

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use thiserror::Error;

use super::HostAddress;
use super::Touched;
use super::mapping::Mapping;
use super::owner::OwnerPermit;
use super::sigbus;
use crate::budget::{Account, Budget, Permit};
use crate::message::counted;

/// Bytes of a page of a file that is not on hugetlbfs.
const PAGE: usize = 4096;

/// Description of one region by the front end: SET_MEM_TABLE and ADD_MEM_REG, "Memory region description".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionTable {
    /// Guest address.
    pub guest_start: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Address of the region in the front end's own process.
    pub user_start: u64,
    /// Offset of the region in the file.
    pub file_offset: u64,
}

/// Reason why a region was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RegionError {
    /// Length zero.
    #[error("a memory region has length 0")]
    Empty,
    /// An address range that wraps past 2^64, or is not addressable here.
    #[error("the address range of a memory region overflows")]
    Overflow,
    /// The file ends before the region does.
    #[error("a memory region ends at byte {wanted} of a file of {}", counted(*.length, "byte"))]
    PastEnd {
        /// End of the region in the file.
        wanted: u64,
        /// End of the file.
        length: u64,
    },
    /// Two regions share a guest address.
    #[error("memory regions overlap")]
    Overlap,
    /// Regions of the memory of two guests.
    #[error("memory regions of two guests")]
    Owners,
    /// More regions than slots.
    #[error("more than {} memory regions", super::MemoryMap::MAX_REGIONS)]
    TooMany,
    /// The port's or all ports' limit of mappings is reached.
    #[error("too many memory regions: this port may map {0} more; use fewer memory devices in the guest")]
    NoSlot(u64),
    /// The port may hold no more descriptors.
    #[error("no file descriptor is left for another memory file")]
    Descriptors,
    /// Pages of the file may be slow or impossible to get, so a guest could stop the worker.
    #[error(
        "guest memory must lie in RAM-backed shared memory (memfd, tmpfs or hugetlbfs): with QEMU use -object memory-backend-memfd,share=on"
    )]
    NotMemory,
    /// The port's limit of mapped memory is reached.
    #[error(
        "{} GiB of guest memory are more than the {} GiB that one port may map: raise port-memory-gib",
        gibibytes(*wanted, f64::ceil),
        gibibytes(*most, f64::floor)
    )]
    TooMuchForPort {
        /// Bytes of the port's mappings including this region.
        wanted: u64,
        /// The port's limit.
        most: u64,
    },
    /// All ports' limit of mapped memory is reached, of which a port's quota is no more than is left to the others.
    #[error(
        "a memory region of {} GiB is more than the {} GiB left to this port of the limit of all ports: raise guest-memory-gib",
        gibibytes(*wanted, f64::ceil),
        gibibytes(*most, f64::floor)
    )]
    TooMuch {
        /// Bytes of the region.
        wanted: u64,
        /// Bytes that this port may map in addition.
        most: u64,
    },
    /// mmap refused.
    #[error("guest memory cannot be mapped: {0}")]
    Map(String),
}

/// `bytes` in GiB, with two decimal places, `rounded` so that more than a limit is never shown as equal to it.
fn gibibytes(bytes: u64, rounded: fn(f64) -> f64) -> f64 {
    rounded(bytes as f64 * 100.0 / (1_u64 << 30) as f64) / 100.0
}

/// Quotas of a port's regions, shared fairly with other ports.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Bytes that are mapped.
    pub bytes: Arc<Account>,
    /// Mappings, each of which has a place in the table of the SIGBUS handler.
    pub mappings: Arc<Account>,
    /// Descriptors, one for each file.
    pub descriptors: Arc<Account>,
}

impl Default for Quota {
    /// A quota without bounds, for tests and benches.
    fn default() -> Self {
        let whole = || Account::new(&Budget::new(u64::MAX));
        Self { bytes: whole(), mappings: whole(), descriptors: whole() }
    }
}

/// Reason why a region lost its memory: the kernel could not provide a page of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The file ends before the page.
    Truncated,
    /// The file is on hugetlbfs, and its pool is empty.
    NoHugePage,
    /// The file is on a tmpfs without free blocks.
    Full,
    /// The file is unchanged.
    Other,
}

impl fmt::Display for Loss {
    /// With the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the guest truncated its memory file",
            Self::NoHugePage => {
                "no huge page was left for guest memory: raise vm.nr_hugepages, and let the front end take all pages first (QEMU: prealloc=on)"
            }
            Self::Full => {
                "the tmpfs of the guest's memory file is full: enlarge it (mount -o remount,size=...) or use a memfd, and let the front end take \
                 all pages first (QEMU: prealloc=on)"
            }
            Self::Other => "the kernel could not provide a page of guest memory: a memory error of the hardware, or a limit; dmesg tells more",
        })
    }
}

/// The file of regions, kept open to find the reason of a later loss.
#[derive(Debug)]
struct Backing {
    file: File,
    _permit: Permit,
}

/// Counters of a region's memory at the last check, in bytes.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes that this process has touched.
    touched: AtomicU64,
    /// Bytes that the file has allocated.
    allocated: AtomicU64,
}

/// A mapped region; unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    table: RegionTable,
    /// The mapped file, shared by its regions; `None` for private memory.
    file: Option<Arc<Backing>>,
    /// Host address of `table.guest_start`.
    host_start: HostAddress,
    /// Declared before the mapping: the watch must end before the address range can be reused.
    watch: sigbus::Watch,
    mapping: Mapping,
    seen: Seen,
    /// Holes of it are still to be filled.
    filling: AtomicBool,
    /// The guest's memory that it is of, once it is in a memory map.
    owner: OnceLock<Arc<OwnerPermit>>,
    /// Permits of the quotas.
    _permits: [Option<Permit>; 2],
}

impl Region {
    /// Maps the region that `table` describes from `file`, without a bound on its length: for tests and benches.
    ///
    /// # Errors
    /// The errors of [`Region::map_within`].
    pub fn map(table: RegionTable, file: File) -> Result<Self, RegionError> {
        Self::map_within(table, file, &Quota::default(), &[])
    }

    /// Maps the region that `table` describes from `file`, if `quota` has so much left. Where one of `others` has the same file, its descriptor
    /// is used, and `file` is closed.
    ///
    /// # Errors
    /// A [`RegionError`] for every description that does not fit the file, the quota or the address space.
    pub fn map_within(table: RegionTable, file: File, quota: &Quota, others: &[Arc<Self>]) -> Result<Self, RegionError> {
        table.check()?;
        check_is_memory(&file)?;
        let meta = file.metadata().map_err(|e| RegionError::Map(e.to_string()))?;
        let (start, length, block) = file_window(&table, &meta)?;
        let (bytes, mappings) = (&quota.bytes, &quota.mappings);
        let permit = bytes.take(length).ok_or_else(|| RegionError::TooMuch { wanted: length, most: bytes.quota() })?;
        let place = mappings.take(1).ok_or_else(|| RegionError::NoSlot(mappings.quota()))?;
        let offset_in_window = (table.file_offset - start) as usize;
        // Without a second mapping reads go through the first.
        let twice = sigbus::prepare();
        let mapping = Mapping::of_file_twice(&file, start, length, block, twice).map_err(|e| RegionError::Map(e.to_string()))?;
        let (readable, covers) = (mapping.start() as usize + mapping.to_readable(), mapping.length());
        let mapping = if twice && !sigbus::report_holes(readable, covers) {
            // A file of ramfs, of which the kernel does not tell holes.
            drop(mapping);
            Mapping::of_file(&file, start, length, block).map_err(|e| RegionError::Map(e.to_string()))?
        } else {
            mapping
        };
        let file = match others.iter().find_map(|other| other.file_if(&meta)) {
            Some(known) => known,
            None => Arc::new(Backing { file, _permit: quota.descriptors.take(1).ok_or(RegionError::Descriptors)? }),
        };
        let region = Self::watched(table, mapping, offset_in_window)?;
        if region.to_readable() > 0 {
            let is_huge = fstatfs(&file.file).is_ok_and(|stat| stat.filesystem_type() == HUGETLBFS_MAGIC);
            let page = if is_huge { block as usize } else { PAGE };
            region.watch.set_readable(region.to_readable(), page, &file.file, start);
        }
        region.seen.allocated.store(allocated(&meta), Ordering::Relaxed);
        Ok(Self { file: Some(file), _permits: [Some(permit), Some(place)], ..region })
    }

    /// File of the region, if that has the metadata `meta`.
    fn file_if(&self, meta: &Metadata) -> Option<Arc<Backing>> {
        let backing = self.file.as_ref()?;
        let own = backing.file.metadata().ok()?;
        ((own.dev(), own.ino()) == (meta.dev(), meta.ino())).then(|| Arc::clone(backing))
    }

    /// A region of private memory, for tests and benches that have no front end.
    ///
    /// # Errors
    /// The errors of [`Region::map`].
    pub fn anonymous(guest_start: u64, length: u64) -> Result<Self, RegionError> {
        let table = RegionTable { guest_start, length, user_start: guest_start, file_offset: 0 };
        table.check()?;
        let mapping = Mapping::anonymous(length as usize).map_err(|e| RegionError::Map(e.to_string()))?;
        Self::watched(table, mapping, 0)
    }

    fn watched(table: RegionTable, mapping: Mapping, offset: usize) -> Result<Self, RegionError> {
        let watch = sigbus::Watch::new(mapping.start() as usize, mapping.whole_length()).ok_or(RegionError::NoSlot(0))?;
        let host_start = HostAddress::new(mapping.start().wrapping_add(offset));
        Ok(Self {
            table,
            file: None,
            host_start,
            watch,
            mapping,
            seen: Seen::default(),
            filling: AtomicBool::new(false),
            owner: OnceLock::new(),
            _permits: [None, None],
        })
    }

    /// First guest address.
    pub fn guest_start(&self) -> u64 {
        self.table.guest_start
    }

    /// One past the last guest address.
    pub fn guest_end(&self) -> u64 {
        self.table.guest_start + self.table.length
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.table.length
    }

    /// Host address of the first byte.
    pub fn host_start(&self) -> *mut u8 {
        self.host_start.get()
    }

    /// Bytes from an address in it to the address of the same byte for reading; zero if both are one.
    pub fn to_readable(&self) -> usize {
        self.mapping.to_readable()
    }

    /// Address of the first byte of its mapping for reading.
    pub(super) fn readable_start(&self) -> usize {
        self.mapping.start().addr() + self.mapping.to_readable()
    }

    /// Offset of its first byte in its mappings, which begin with a page.
    pub(super) fn offset_in_mapping(&self) -> usize {
        self.host_start().addr() - self.mapping.start().addr()
    }

    /// Maps its part of its file once more.
    pub(super) fn map_again(&self) -> Result<Mapping, RegionError> {
        let refused = |error: io::Error| RegionError::Map(error.to_string());
        let file = self.file().ok_or(RegionError::NotMemory)?;
        let (start, length, block) = file_window(&self.table, &file.metadata().map_err(refused)?)?;
        Mapping::of_file(file, start, length, block).map_err(refused)
    }

    /// Whether holes of it are still to be filled.
    pub(super) fn is_filling(&self) -> bool {
        self.filling.load(Ordering::Relaxed)
    }

    pub(super) fn set_filling(&self, filling: bool) {
        self.filling.store(filling, Ordering::Relaxed);
    }

    /// The guest's memory that it is of, if it is in a memory map.
    pub(super) fn owner(&self) -> Option<&Arc<OwnerPermit>> {
        self.owner.get()
    }

    /// Makes it one of `owner`'s memory; false if it is one of another's.
    pub(super) fn join(&self, owner: &Arc<OwnerPermit>) -> bool {
        let joined = self.owner.get_or_init(|| {
            self.watch.set_owner(owner.owner().number());
            Arc::clone(owner)
        });
        Arc::ptr_eq(joined, owner)
    }

    /// Whether its file has no hole, as far as its number of blocks tells.
    pub(super) fn is_full(&self) -> bool {
        let meta = self.file.as_ref().and_then(|backing| backing.file.metadata().ok());
        meta.is_none_or(|meta| allocated(&meta) >= meta.size())
    }

    /// Marks it as lost if its file has ended before it.
    pub(super) fn check_length(&self) {
        let meta = self.file.as_ref().and_then(|backing| backing.file.metadata().ok());
        if meta.is_some_and(|meta| meta.size() < self.table.file_offset + self.table.length) {
            self.watch.lose();
        }
    }

    /// Writes `byte` to every byte that is mapped.
    pub fn fill(&self, byte: u8) {
        self.mapping.fill(byte);
    }

    /// Checks the bytes that this process has touched of it, and returns their change since the last check, at most: an increase
    /// counts as far as bytes were both touched and allocated, and likewise a decrease. `all` is the touched memory of the process,
    /// by address.
    pub fn look_at_touched(&self, all: &[Touched]) -> i64 {
        let (start, end) = (self.mapping.start() as u64, self.mapping.start() as u64 + self.mapping.length() as u64);
        let own = &all[all.partition_point(|touched| touched.start < start)..];
        let touched = own.iter().take_while(|touched| touched.end <= end).map(|touched| touched.bytes).sum();
        let meta = self.file.as_ref().and_then(|backing| backing.file.metadata().ok());
        let change = |seen: &AtomicU64, now: u64| now.wrapping_sub(seen.swap(now, Ordering::Relaxed)) as i64;
        let touched = change(&self.seen.touched, touched);
        let allocated = change(&self.seen.allocated, meta.as_ref().map_or(0, allocated));
        if touched.signum() == allocated.signum() { touched.signum() * touched.abs().min(allocated.abs()) } else { 0 }
    }

    /// File of the region; none for private memory.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref().map(|backing| &backing.file)
    }

    /// The front end's description of it.
    pub fn table(&self) -> &RegionTable {
        &self.table
    }

    /// The host address of `length` bytes at the front end's address `address`, if all of them are in this region.
    pub fn place_user(&self, address: u64, length: u64) -> Option<*mut u8> {
        Some(self.host_start().wrapping_add(self.table.offset_of_user(address, length)? as usize))
    }

    /// True once the kernel could not provide a page of the region.
    pub fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

    /// The reason of the loss, by the present state of its file; `None` if it was not lost.
    pub fn loss(&self) -> Option<Loss> {
        let file = self.file.as_ref().filter(|_| self.is_lost()).map(|backing| &backing.file)?;
        let ends = file.metadata().map_or(0, |meta| meta.size());
        if ends < self.table.file_offset + self.table.length {
            return Some(Loss::Truncated);
        }
        let Ok(stat) = fstatfs(file) else { return Some(Loss::Other) };
        Some(match stat.filesystem_type() {
            HUGETLBFS_MAGIC => Loss::NoHugePage,
            _ if stat.blocks() > 0 && stat.blocks_available() == 0 => Loss::Full,
            _ => Loss::Other,
        })
    }
}

impl RegionTable {
    /// The offset in the region of `length` bytes at the front end's address `address`, if all of them are in it.
    pub(super) fn offset_of_user(&self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(self.user_start)?;
        (offset.checked_add(length)? <= self.length).then_some(offset)
    }

    pub(super) fn check(&self) -> Result<(), RegionError> {
        if self.length == 0 {
            return Err(RegionError::Empty);
        }
        let fits = |start: u64| start.checked_add(self.length).is_some_and(|end| end <= i64::MAX as u64 || start == 0);
        let addressable = usize::try_from(self.length).is_ok() && self.length <= i64::MAX as u64;
        let guest_fits = self.guest_start.checked_add(self.length).is_some();
        let user_fits = self.user_start.checked_add(self.length).is_some();
        if addressable && guest_fits && user_fits && fits(self.file_offset) { Ok(()) } else { Err(RegionError::Overflow) }
    }
}

/// The part of the file to map: from the block of the region's start to the end of the region, in whole blocks, because hugetlbfs
/// maps and unmaps only whole huge pages. Returns its offset, its bytes, and the size of a block.
fn file_window(table: &RegionTable, meta: &Metadata) -> Result<(u64, u64, u64), RegionError> {
    let wanted = table.file_offset + table.length;
    if wanted > meta.size() {
        return Err(RegionError::PastEnd { wanted, length: meta.size() });
    }
    let block = meta.blksize().max(4096).next_power_of_two();
    let start = table.file_offset & !(block - 1);
    let end = wanted.checked_next_multiple_of(block).map_or(wanted, |end| end.min(meta.size()));
    Ok((start, end - start, block))
}

/// Allocated bytes of a file, less than its length where it is sparse.
fn allocated(meta: &Metadata) -> u64 {
    meta.blocks() * 512
}

/// Refuses other filesystems: their pages come whenever their server provides them (FUSE, NFS), so a fault could hold the worker
/// for ever.
fn check_is_memory(file: &File) -> Result<(), RegionError> {
    const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
    let stat = fstatfs(file).map_err(|error| RegionError::Map(error.to_string()))?;
    if [TMPFS_MAGIC, HUGETLBFS_MAGIC, RAMFS_MAGIC].contains(&stat.filesystem_type()) { Ok(()) } else { Err(RegionError::NotMemory) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Hint, MemoryMap};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn memfd(length: u64) -> File {
        let file = vmm_sys_util::tempfile::TempFile::new_in(std::path::Path::new("/dev/shm/")).unwrap().into_file();
        file.set_len(length).unwrap();
        file
    }

    fn table(length: u64, file_offset: u64) -> RegionTable {
        RegionTable { guest_start: 0x10000, length, user_start: 0x7f00_0000_0000, file_offset }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        assert_eq!(Region::map(table(0, 0), memfd(4096)).unwrap_err(), RegionError::Empty);
        assert_eq!(Region::map(table(4096, 4096), memfd(4096)).unwrap_err(), RegionError::PastEnd { wanted: 8192, length: 4096 });
        assert_eq!(Region::map(table(4096, u64::MAX - 100), memfd(4096)).unwrap_err(), RegionError::Overflow);
        let wraps = RegionTable { guest_start: u64::MAX - 10, ..table(4096, 0) };
        assert_eq!(Region::map(wraps, memfd(4096)).unwrap_err(), RegionError::Overflow);
        assert_eq!(Region::map(table(u64::MAX, 0), memfd(4096)).unwrap_err(), RegionError::Overflow);
    }

    #[test]
    fn refuses_what_is_more_than_may_be_mapped_and_counts_what_goes() {
        let all = Budget::new(64 << 20);
        let quota = Quota { bytes: Account::new(&all), ..Quota::default() };
        let map = |length| Region::map_within(table(length, 0), memfd(1 << 50), &quota, &[]);
        assert_eq!(map(100 << 40).unwrap_err(), RegionError::TooMuch { wanted: 100 << 40, most: 32 << 20 });
        let region = map(32 << 20).unwrap();
        assert!(map(4096).is_err());
        drop(region);
        assert!(map(32 << 20).is_ok() && all.held() == 0);
    }

    #[test]
    fn limits_on_memory_are_told_in_gib_with_the_key_that_raises_them() {
        let told = RegionError::TooMuchForPort { wanted: (1 << 30) + 1, most: 1 << 30 }.to_string();
        assert_eq!(told, "1.01 GiB of guest memory are more than the 1 GiB that one port may map: raise port-memory-gib");
        let told = RegionError::TooMuch { wanted: 3 << 29, most: (1 << 30) - 1 }.to_string();
        assert_eq!(
            told,
            "a memory region of 1.5 GiB is more than the 0.99 GiB left to this port of the limit of all ports: raise guest-memory-gib"
        );
    }

    #[test]
    fn mappings_are_shared_fairly() {
        let all = Budget::new(64);
        let quota = || Quota { mappings: Account::new(&all), ..Quota::default() };
        let file = memfd(4096);
        let map = |quota: &Quota| Region::map_within(table(4096, 0), file.try_clone().unwrap(), quota, &[]);
        let greedy: Vec<Quota> = (0..7).map(|_| quota()).collect();
        let taken: Vec<Vec<Region>> = greedy.iter().map(|quota| std::iter::from_fn(|| map(quota).ok()).collect()).collect();
        assert!(taken[0].len() == 32 && matches!(map(&greedy[0]), Err(RegionError::NoSlot(0))));
        assert!(map(&quota()).is_err(), "all but one have taken all that they may");
        drop(taken);
        let (one, other) = (quota(), quota());
        let _taken: Vec<Region> = std::iter::from_fn(|| map(&one).ok()).collect();
        assert_eq!(std::iter::from_fn(|| map(&other).ok()).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn regions_of_one_file_share_a_descriptor() {
        let file = memfd(8192);
        let first = Arc::new(Region::map(table(4096, 0), file.try_clone().unwrap()).unwrap());
        let regions = [Arc::clone(&first)];
        let second = Region::map_within(table(4096, 4096), file, &Quota::default(), &regions).unwrap();
        assert!(Arc::ptr_eq(first.file.as_ref().unwrap(), second.file.as_ref().unwrap()));
        let other = Region::map_within(table(4096, 0), memfd(4096), &Quota::default(), &regions).unwrap();
        assert!(!Arc::ptr_eq(first.file.as_ref().unwrap(), other.file.as_ref().unwrap()));
    }

    #[test]
    fn an_empty_pool_is_told_from_a_truncated_file() {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap();
        let number = |key: &str| -> u64 {
            info.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok()).unwrap()
        };
        // One page more than there are.
        let length = (number("HugePages_Free:") + 1) * (number("Hugepagesize:") << 10);
        let huge = File::from(memfd_create(c"huge", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB).unwrap());
        huge.set_len(length).unwrap();
        let region = Region::map(table(length, 0), huge).unwrap();
        assert_eq!(region.loss(), None);
        region.fill(1);
        assert_eq!(region.loss(), Some(Loss::NoHugePage));
        let file = memfd(4096);
        let truncated = Region::map(table(4096, 0), file.try_clone().unwrap()).unwrap();
        file.set_len(0).unwrap();
        truncated.fill(1);
        assert_eq!(truncated.loss(), Some(Loss::Truncated));
    }

    #[test]
    fn refuses_files_that_are_not_memory() {
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!(Region::map(table(4096, 0), file).unwrap_err(), RegionError::NotMemory);
    }

    #[test]
    fn maps_a_window_that_starts_inside_a_page() {
        use std::os::unix::fs::FileExt;
        let file = memfd(3 * 4096);
        file.write_at(b"here", 5000).unwrap();
        let region = Region::map(table(4096, 5000), file).unwrap();
        let map = MemoryMap::new(vec![Arc::new(region)]).unwrap();
        let mut seen = [0; 4];
        map.iovec(0x10000, 4, &mut Hint::default()).unwrap().copy_in(&mut seen);
        assert_eq!(&seen, b"here");
    }

    #[test]
    fn a_huge_page_of_the_file_is_one_of_ours() {
        use crate::memory::mapping::HUGE_PAGE;
        let offset = HUGE_PAGE + 3 * 4096;
        let region = Region::map(table(2 * HUGE_PAGE, offset), memfd(4 * HUGE_PAGE)).unwrap();
        assert_eq!(region.host_start() as u64 % HUGE_PAGE, offset % HUGE_PAGE);
    }

    #[test]
    fn user_addresses_must_lie_wholly_inside() {
        let region = Region::map(table(4096, 0), memfd(4096)).unwrap();
        let start = 0x7f00_0000_0000;
        assert!(region.place_user(start, 4096).is_some());
        assert!(region.place_user(start + 1, 4096).is_none());
        assert!(region.place_user(start - 1, 1).is_none());
        assert!(region.place_user(u64::MAX, 2).is_none());
    }
}
