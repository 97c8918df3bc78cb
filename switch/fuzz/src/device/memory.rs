//! A hostile guest's memory: regions that follow each other in the guest but not in the file, and canaries around each.
//!
//! Canaries lie in the same pages as the regions, so a write that misses a region by little does not fault and would go unnoticed without them.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use memlane::memory::{MemoryMap, Region, RegionTable};

/// First guest address.
pub const GUEST: u64 = 0x1_0000;
/// Bytes of the regions; the last one has room for the largest rings.
pub const LENGTHS: [u64; 3] = [0xc000, 0x4000, 0x20_0000];
/// Bytes before, between and behind them.
const CANARY: u64 = 256;
const ALIVE: u8 = 0xc5;
/// Address of the first byte in the front end's process.
const USER: u64 = 0x7000_0000_0000;

/// See the module.
pub struct Memory {
    file: File,
    start: *mut u8,
    length: u64,
}

impl Memory {
    pub fn new() -> Self {
        let length = (Self::offset(2) + LENGTHS[2] + CANARY).next_multiple_of(4096);
        // SAFETY: a plain system call; the descriptor that it returns is ours.
        let file = unsafe { File::from(OwnedFd::from_raw_fd(libc::memfd_create(c"hostile".as_ptr(), libc::MFD_CLOEXEC))) };
        file.set_len(length).expect("a memfd can grow");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which is ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length as usize, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "memory can be mapped");
        let memory = Self { file, start: start.cast(), length };
        for (at, length) in memory.canaries() {
            // SAFETY: inside the mapping.
            unsafe { memory.start.add(at as usize).write_bytes(ALIVE, length as usize) };
        }
        memory
    }

    /// Where region `index` begins in the file.
    fn offset(index: usize) -> u64 {
        CANARY + LENGTHS[..index].iter().map(|length| length + CANARY).sum::<u64>()
    }

    fn canaries(&self) -> [(u64, u64); 4] {
        let behind = Self::offset(2) + LENGTHS[2];
        [(0, CANARY), (Self::offset(1) - CANARY, CANARY), (Self::offset(2) - CANARY, CANARY), (behind, self.length - behind)]
    }

    pub fn assert_canaries(&self) {
        for (at, length) in self.canaries() {
            // SAFETY: inside the mapping; the switch does not write there, or so it should be.
            let bytes = unsafe { std::slice::from_raw_parts(self.start.add(at as usize), length as usize) };
            assert!(bytes.iter().all(|&byte| byte == ALIVE), "bytes were written outside guest memory, near {at:#x} in its file");
        }
    }

    /// A fresh mapping, as the switch makes it when it is told of this memory.
    pub fn map(&self) -> Arc<MemoryMap> {
        let region = |index: usize| {
            let before: u64 = LENGTHS[..index].iter().sum();
            let table = RegionTable {
                guest_start: GUEST + before,
                length: LENGTHS[index],
                user_start: USER + before,
                file_offset: Self::offset(index),
            };
            Arc::new(Region::map(table, self.file.try_clone().expect("a descriptor")).expect("memory can be mapped"))
        };
        Arc::new(MemoryMap::new((0..LENGTHS.len()).map(region).collect()).expect("regions side by side"))
    }

    /// Where the guest's byte `offset` lies in a map of this memory.
    pub fn find(map: &MemoryMap, offset: u64, length: u64) -> *mut u8 {
        map.find_user(USER + offset, length).expect("inside a region")
    }

    /// Where the guest's byte `offset` lies in the file.
    fn in_file(offset: u64) -> Option<u64> {
        let mut begin = 0;
        for (index, length) in LENGTHS.iter().enumerate() {
            if offset - begin < *length {
                return Some(Self::offset(index) + offset - begin);
            }
            begin += length;
        }
        None
    }

    /// Writes `bytes` at guest offset `offset`; bytes outside guest memory are left out.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        for (offset, &byte) in (offset..).zip(bytes) {
            let Some(in_file) = Self::in_file(offset) else { return };
            // SAFETY: inside the mapping. The workers are at work in this thread only, and hold no reference to guest memory.
            unsafe { self.start.add(in_file as usize).write(byte) };
        }
    }

    /// The guest's two bytes at `offset`.
    pub fn word(&self, offset: u64) -> u16 {
        // SAFETY: inside the mapping, see `write`.
        let byte = |offset| Self::in_file(offset).map_or(0, |at| unsafe { self.start.add(at as usize).read() });
        u16::from_le_bytes([byte(offset), byte(offset + 1)])
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing points into it any more.
        unsafe { libc::munmap(self.start.cast(), self.length as usize) };
    }
}
