//! Memory tables and regions that are impossible, or that say something false of their file.

use std::os::fd::{AsRawFd, RawFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::vhost_user::message::FrontendReq as Request;

use crate::guest::ToyGuest;

use super::ring::say;
use super::{Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Region:
    "region-size-zero" region_size_zero Port "A region of 0 bytes (DPDK CVE-2026-86561)"
    "region-beyond-file" region_beyond_file Port "A region longer than its file: SIGBUS for who believes it"
    "region-wraps" region_wraps Port "Guest address, user address or file offset and size together wrap round 64 bits"
    "region-size-huge" region_size_huge Port "Regions of 2^47 and 2^63 bytes"
    "region-sparse" region_sparse Port "Regions of 2 and 100 TB, in a sparse file that has them: the address space is taken"
    "region-offset-unaligned" region_offset_unaligned Port "A file offset that is no page's"
    "regions-overlap" regions_overlap Port "Two regions with the same guest or user addresses"
    "regions-none" regions_none Port "A memory table of 0 regions while rings run"
    "regions-too-many" regions_too_many Port "Memory tables of 33, 255 and 2^32 - 1 regions"
    "region-count-lies" region_count_lies Port "A table that counts more regions than it holds, and one that counts fewer"
    "region-of-wrong-file" region_of_wrong_file Port "Regions of a socket, a folder, a device, and memory that is read-only"
    "region-added-twice" region_added_twice Port "ADD_MEM_REG with what is there already"
    "region-removed-unknown" region_removed_unknown Port "REM_MEM_REG with what was never there, with a stray descriptor"
    "region-slots-flood" region_slots_flood Port "ADD_MEM_REG beyond the slots that the back end said it has"
    "regions-all-removed" regions_all_removed Port "REM_MEM_REG of the memory that the rings lie in"
    "regions-swapped" regions_swapped Port "A memory table with other memory at the same addresses while rings run"
}

/// A region as messages have it.
#[derive(Clone, Copy)]
struct Entry {
    guest: u64,
    size: u64,
    user: u64,
    offset: u64,
}

impl Entry {
    fn bytes(self) -> Vec<u8> {
        [self.guest, self.size, self.user, self.offset].map(u64::to_le_bytes).concat()
    }
}

fn region_size_zero(stage: &mut Stage<'_>) -> Done {
    single(stage, |right| vec![Entry { size: 0, ..right }])
}

fn region_beyond_file(stage: &mut Stage<'_>) -> Done {
    single(stage, |right| vec![Entry { size: right.size * 2, ..right }, Entry { offset: right.size, ..right }])
}

fn region_wraps(stage: &mut Stage<'_>) -> Done {
    single(stage, |right| {
        let end = u64::MAX - 0xfff;
        vec![Entry { guest: end, ..right }, Entry { user: end, ..right }, Entry { offset: end, ..right }]
    })
}

fn region_size_huge(stage: &mut Stage<'_>) -> Done {
    single(stage, |right| [1 << 47, 1 << 63, u64::MAX].map(|size| Entry { size, ..right }).to_vec())
}

fn region_sparse(stage: &mut Stage<'_>) -> Done {
    let failed = |step| move |cause: std::io::Error| VillainError::Socket { step, cause };
    let file = memfd_create("sparse", MFdFlags::MFD_CLOEXEC).map_err(|cause| failed("making a sparse file")(cause.into()))?;
    let file = std::fs::File::from(file);
    file.set_len(100 << 40).map_err(failed("making a sparse file long"))?;
    let mut last = None;
    for size in [2 << 40, 100 << 40] {
        drop(last.take());
        let mut guest = stage.negotiated()?;
        let (right, _) = honest(&guest);
        for turn in 0..8 {
            add(&mut guest, Entry { guest: right.guest + (turn << 50), size, offset: 0, ..right }, &[file.as_raw_fd()])?;
        }
        last = Some(guest);
    }
    Ok(Traces::none(last))
}

fn region_offset_unaligned(stage: &mut Stage<'_>) -> Done {
    single(stage, |right| [1, 100, 4095].map(|offset| Entry { offset, size: right.size - 4096, ..right }).to_vec())
}

fn regions_overlap(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let (right, fd) = honest(&guest);
    let elsewhere = Entry { guest: right.guest + (1 << 40), ..right };
    table(&mut guest, 2, &[right, right], &[fd, fd])?;
    table(&mut guest, 2, &[right, elsewhere], &[fd, fd])?;
    table(&mut guest, 2, &[right, Entry { guest: right.guest + 4096, ..right }], &[fd, fd])?;
    add(&mut guest, Entry { size: 8192, ..right }, &[fd])?;
    finish(guest)
}

fn regions_none(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    guest.send(&stage.frame(100))?;
    table(&mut guest, 0, &[], &[])?;
    super::hand::kick_all(&mut guest);
    finish(guest)
}

fn regions_too_many(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let (right, fd) = honest(&guest);
    for count in [33u32, 255, u32::MAX] {
        let entries = vec![right; count.min(100) as usize];
        table(&mut guest, count, &entries, &[fd; 28])?;
    }
    finish(guest)
}

fn region_count_lies(stage: &mut Stage<'_>) -> Done {
    let mut last = None;
    for (count, held, fds) in [(2, 1, 1), (1, 2, 2), (8, 1, 8), (1, 1, 8)] {
        drop(last.take());
        let mut guest = stage.negotiated()?;
        let (right, fd) = honest(&guest);
        table(&mut guest, count, &vec![right; held], &vec![fd; fds])?;
        last = Some(guest);
    }
    Ok(Traces::none(last))
}

fn region_of_wrong_file(stage: &mut Stage<'_>) -> Done {
    let open =
        |path: &str| std::fs::File::open(path).map_err(|cause| VillainError::Socket { step: "opening a file to misuse", cause });
    let (folder, zero, program) = (open("/")?, open("/dev/zero")?, open("/proc/self/exe")?);
    let mut guest = stage.negotiated()?;
    let (right, _) = honest(&guest);
    let socket = guest.frontend()?.stream().as_raw_fd();
    for fd in [folder.as_raw_fd(), zero.as_raw_fd(), program.as_raw_fd(), socket] {
        table(&mut guest, 1, &[right], &[fd])?;
        add(&mut guest, right, &[fd])?;
    }
    finish(guest)
}

fn region_added_twice(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let (right, fd) = honest(&guest);
    for _ in 0..3 {
        add(&mut guest, right, &[fd])?;
    }
    finish(guest)
}

fn region_removed_unknown(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let (right, fd) = honest(&guest);
    remove(&mut guest, Entry { guest: right.guest + (1 << 40), ..right }, &[])?;
    remove(&mut guest, Entry { size: right.size - 4096, ..right }, &[fd])?;
    finish(guest)
}

fn region_slots_flood(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let (right, fd) = honest(&guest);
    for number in 1..=600u64 {
        let away = number << 36;
        let entry = Entry { guest: right.guest + away, user: right.user.wrapping_add(away), size: 4096, ..right };
        add(&mut guest, entry, &[fd])?;
    }
    finish(guest)
}

fn regions_all_removed(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let (right, _) = honest(&guest);
    guest.send(&stage.frame(100))?;
    remove(&mut guest, right, &[])?;
    super::hand::kick_all(&mut guest);
    finish(guest)
}

fn regions_swapped(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let (right, _) = honest(&guest);
    let other = crate::memory::GuestMemory::new(right.size)?;
    guest.send(&stage.frame(100))?;
    table(&mut guest, 1, &[Entry { offset: 0, ..right }], &[other.raw_file()])?;
    super::hand::kick_all(&mut guest);
    finish(guest)
}

/// Each of the entries that `change` makes of the honest one: as a whole table, and added to one.
fn single(stage: &Stage<'_>, change: impl Fn(Entry) -> Vec<Entry>) -> Done {
    let mut guest = stage.negotiated()?;
    let (right, fd) = honest(&guest);
    for wrong in change(right) {
        table(&mut guest, 1, &[wrong], &[fd])?;
        add(&mut guest, wrong, &[fd])?;
    }
    drop(guest);
    let mut running = stage.guest(|builder| builder)?;
    let (right, fd) = honest(&running);
    for wrong in change(right) {
        add(&mut running, wrong, &[fd])?;
    }
    finish(running)
}

/// The guest's first region and its file.
fn honest(guest: &ToyGuest) -> (Entry, RawFd) {
    let region = &guest.memory().regions()[0];
    let entry = Entry { guest: region.guest(), size: region.size(), user: region.user(), offset: region.file_offset() };
    (entry, guest.memory().raw_file())
}

fn table(guest: &mut ToyGuest, count: u32, entries: &[Entry], fds: &[RawFd]) -> Result<(), VillainError> {
    let entries: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes()).collect();
    let body = [&count.to_le_bytes()[..], &[0; 4], &entries].concat();
    say(guest, Request::SET_MEM_TABLE, &body, fds)
}

fn add(guest: &mut ToyGuest, entry: Entry, fds: &[RawFd]) -> Result<(), VillainError> {
    say(guest, Request::ADD_MEM_REG, &[&[0; 8][..], &entry.bytes()].concat(), fds)
}

fn remove(guest: &mut ToyGuest, entry: Entry, fds: &[RawFd]) -> Result<(), VillainError> {
    say(guest, Request::REM_MEM_REG, &[&[0; 8][..], &entry.bytes()].concat(), fds)
}

fn finish(guest: ToyGuest) -> Done {
    Ok(Traces::none(Some(guest)))
}
