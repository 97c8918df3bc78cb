//! A guest that is restored lazily has memory of holes, which its monitor fills while it runs: the switch fills none of them, waits for
//! the pages that it needs, and goes on without a further kick.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::command::{Running, memlane};
use crate::common::*;
use crate::takeover;
use memlane::control::causes::CauseKind;
use memlane::port::PortState;
use memlane_rig::frames::NetHeader;
use memlane_rig::guest::{GuestBuilder, Habit, Layout, ReceiveBuffers, RingStep, SendBuffers, Step, ToldBase, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::poll::{PollFd, PollFlags, poll};
use nix::unistd::{Whence, lseek64};
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

const PAGE: u64 = 4096;
const MEMORY: u64 = 2 << 20;

/// A monitor that stops its guest's rings, and starts them again with the guest's memory.
const HABIT: Habit = Habit {
    connect: &[Step::Owner, Step::GetFeatures, Step::ProtocolFeatures, Step::EachRing(&[RingStep::Call])],
    start: &[
        Step::SetFeatures,
        Step::MemoryTable,
        Step::EachRing(&[RingStep::Size, RingStep::Base, RingStep::Addresses, RingStep::Kick, RingStep::Enable]),
    ],
    stop: &[Step::EachRing(&[RingStep::Stop])],
    base: ToldBase::Kept,
    ..Habit::DPDK
};

fn builder(bed: &Bed) -> GuestBuilder {
    restored(bed.builder(0))
}

fn restored(builder: GuestBuilder) -> GuestBuilder {
    builder
        .habit(HABIT)
        .memory(MemoryPlan::new(MEMORY))
        .receive_buffers(ReceiveBuffers { count: Some(16), ..ReceiveBuffers::SMALL })
        .send_buffers(SendBuffers { count: 16, size: 8 << 10 })
}

/// A snapshot of a guest's memory; its file has holes only until they are filled.
struct Snapshot {
    file: File,
    bytes: Vec<u8>,
}

impl Snapshot {
    fn of(guest: &ToyGuest) -> Self {
        let file = File::from(guest.memory().file().as_fd().try_clone_to_owned().unwrap());
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, how, 0, bytes.len() as i64).unwrap();
        Self { file, bytes }
    }

    /// Bytes that are no holes.
    fn filled(&self) -> u64 {
        self.file.metadata().unwrap().blocks() * 512
    }

    /// Fills the hole at `page`, which the switch must have left one.
    fn fill(&self, page: u64) {
        let data = lseek64(&self.file, (page * PAGE) as i64, Whence::SeekData);
        assert!(data.is_err() || data != Ok((page * PAGE) as i64), "the switch filled page {page}");
        self.file.write_all_at(&self.bytes[(page * PAGE) as usize..][..PAGE as usize], page * PAGE).unwrap();
    }

    fn fill_all(&self, first: u64) {
        let pages = self.bytes.len() as u64 / PAGE;
        for page in 0..pages {
            // A stride that has no factor in common with the number of pages.
            self.fill((first + page * 211) % pages);
            if page.is_multiple_of(32) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Makes a frame available and does not kick.
fn post(guest: &mut ToyGuest, frame: &[u8]) {
    let (memory, header) = (guest.memory().clone(), NetHeader::default().bytes());
    let header = &header[..guest.header_bytes()];
    let transmit = &mut guest.pair(0).transmit;
    transmit.add(&memory, header, &Layout::single(), frame).unwrap();
    transmit.queue.publish();
}

fn exchange(a: &mut ToyGuest, b: &mut ToyGuest, number: u64) {
    for length in [60, 1500] {
        let there = frame(a.mac(), BROADCAST, length, number);
        a.send(&there).unwrap();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, there);
        let back = frame(b.mac(), a.mac(), length, number);
        b.send(&back).unwrap();
        assert_eq!(a.receive(TIMEOUT).unwrap().bytes, back);
    }
}

/// The guest is restored before it has ever used its rings, and after, in turns.
#[test]
fn a_lazily_restored_guest_keeps_its_memory_and_its_frame_is_sent() {
    for run in 0..20 {
        let bed = Bed::new(2);
        let mut b = bed.guest(1);
        let mut a = bed.guest_like(0, builder(&bed));
        if run % 2 == 1 {
            exchange(&mut a, &mut b, run);
        }
        a.stop().unwrap();
        let sent = frame(a.mac(), BROADCAST, 1000, 77);
        post(&mut a, &sent);
        let snapshot = Snapshot::of(&a);
        a.start().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(snapshot.filled(), 0, "run {run}");
        snapshot.fill_all(run * 37);
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, sent, "run {run}");
        exchange(&mut a, &mut b, 100 + run);
    }
}

#[test]
fn memory_that_is_never_filled_is_told_and_refused() {
    let bed = Bed::with_fill_timeout(2, Duration::from_secs(2));
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, builder(&bed));
    exchange(&mut a, &mut b, 1);
    a.stop().unwrap();
    let sent = frame(a.mac(), BROADCAST, 60, 2);
    post(&mut a, &sent);
    let snapshot = Snapshot::of(&a);
    a.start().unwrap();
    let cause = bed.wait_for_cause(0, CauseKind::MemoryNotFilled);
    assert!(cause.contains("is not filled yet"), "{cause}");
    let refused = |bed: &Bed| matches!(bed.state(0), PortState::Quarantined(cause) if cause.contains("was still to be filled"));
    bed.wait_for(refused, "the port is refused");
    assert_eq!(snapshot.filled(), 0);
    // The monitor fills it after all, and sets the rings up again.
    snapshot.fill_all(5);
    a.stop().unwrap();
    a.start().unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, sent);
}

/// Pages that a balloon or free page reporting frees are fresh memory, while frames wait for them too.
#[test]
fn holes_that_a_guest_makes_are_filled_by_frames() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, builder(&bed));
    exchange(&mut a, &mut b, 1);
    for number in 0..50 {
        // Every receive buffer of the guest; its rings stay.
        let (memory, file) = (a.memory().clone(), a.memory().file().as_fd().try_clone_to_owned().unwrap());
        let ring_end = a.queues().map(|queue| queue.ring.shared().addresses().used + 2 * PAGE).max().unwrap();
        let start = (ring_end - memory.regions()[0].guest()).next_multiple_of(PAGE);
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, how, start as i64, (MEMORY - start) as i64).unwrap();
        exchange(&mut a, &mut b, 2 + number);
    }
    assert!(bed.causes(0).iter().all(|cause| cause.cause != CauseKind::MemoryNotFilled));
}

/// Frames that the fast path has taken back, because a page of one is a hole, are recorded once.
#[test]
fn frames_that_are_read_again_because_of_holes_are_recorded_once() {
    let bed = Bed::new(2);
    let mut replayed = Replayed::of(bed.daemon().network().record(8 << 20).unwrap());
    let large = ReceiveBuffers { count: Some(64), size: 16 << 10, ..ReceiveBuffers::SMALL };
    let mut b = bed.guest_like(1, bed.builder(1).receive_buffers(large));
    let mut a = bed.guest_like(0, builder(&bed));
    announce(&mut [&mut a, &mut b]);
    let file = File::from(a.memory().file().as_fd().try_clone_to_owned().unwrap());
    let frame = |number| frame(mac(0), mac(1), 6000, number);
    a.send(&frame(0)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(0));
    for number in 1..=20 {
        let (holed, after) = (frame(2 * number), frame(2 * number + 1));
        post(&mut a, &holed);
        let mut bytes = vec![0; MEMORY as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let begin = bytes.windows(22).position(|bytes| bytes == &holed[..22]).unwrap() as u64;
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, how, (begin + 22).next_multiple_of(PAGE) as i64, PAGE as i64).unwrap();
        a.send(&after).unwrap();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes[..22], holed[..22]);
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, after);
    }
    replayed.go_on(bed.daemon().network());
    // A broadcast frame has one record more, of its copies.
    assert_eq!((replayed.count, replayed.missed), (2 * 2 + 1 + 2 * 20, 0));
}

/// The front end fetches pages: it answers page faults of the switch, by number of the page, and of the guest's own threads.
struct Fetcher {
    userfault: File,
    base: u64,
}

impl Fetcher {
    /// The page of the next page fault, if there is one within a moment.
    fn next(&mut self) -> Option<u64> {
        let mut wanted = [PollFd::new(self.userfault.as_fd(), PollFlags::POLLIN)];
        poll(&mut wanted, 100_u16).unwrap();
        // A message of userfaultfd(2): 0x12 for a page fault, and the address from byte 16 on.
        let mut message = [0; 32];
        self.userfault.read_exact(&mut message).ok()?;
        assert_eq!(message[0], 0x12);
        let address = u64::from_ne_bytes(message[16..24].try_into().unwrap());
        Some((address - self.base) / PAGE)
    }

    fn wake(&self, page: u64) {
        let range = [self.base + page * PAGE, PAGE];
        // SAFETY: UFFDIO_WAKE reads a range of two words.
        assert_eq!(unsafe { libc::ioctl(self.userfault.as_raw_fd(), 0x8010_aa02, range.as_ptr()) }, 0);
    }
}

/// The guest arrives by postcopy: no page of it has come, and a frame is in its transmit queue.
fn arriving(a: &mut ToyGuest, b: &mut ToyGuest) -> (Snapshot, Fetcher, Vec<u8>) {
    exchange(a, b, 1);
    a.stop().unwrap();
    let sent = frame(a.mac(), BROADCAST, 6000, 77);
    post(a, &sent);
    let snapshot = Snapshot::of(a);
    let userfault = a.frontend().unwrap().begin_postcopy().unwrap();
    a.start().unwrap();
    let base = a.frontend().unwrap().postcopy_bases()[0];
    (snapshot, Fetcher { userfault, base }, sent)
}

/// In a process of its own, which is confined. The process that takes over gets no page faults answered: it waits for the pages that the front end
/// sends unasked.
#[test]
fn a_confined_process_fetches_pages_and_the_one_after_it_waits_for_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    takeover::net(folder, 2);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let [mut a, mut b] = [Protocol::PAGEFAULT, Protocol::empty()].map(|protocol| {
        let index = usize::from(protocol.is_empty());
        let builder = restored(ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT)).with_protocol(protocol);
        builder.connect(folder.join(format!("p{index}.sock"))).unwrap()
    });
    let (snapshot, mut fetcher, sent) = arriving(&mut a, &mut b);
    let mut page = None;
    wait_until(
        || {
            page = fetcher.next();
            page.is_some()
        },
        "a page is asked for",
    );
    let first = page.unwrap();
    snapshot.fill(first);
    fetcher.wake(first);
    takeover::take_over(folder, &mut running);
    (0..MEMORY / PAGE).filter(|&page| page != first).for_each(|page| snapshot.fill(page));
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, sent);
    a.frontend().unwrap().end_postcopy().unwrap();
    exchange(&mut a, &mut b, 9);
}

/// Kicks of the guest's virtqueues since it was asked last: the switch reads none of them.
fn kicks(guest: &mut ToyGuest) -> u64 {
    let read = |fd| {
        let mut count = [0; 8];
        // SAFETY: the descriptor is the guest's, which is borrowed.
        let read = nix::unistd::read(unsafe { BorrowedFd::borrow_raw(fd) }, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    };
    guest.queues().filter_map(|queue| queue.kick.fd()).map(read).sum()
}

#[test]
fn pages_come_by_postcopy_when_queues_need_them() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, builder(&bed).with_protocol(Protocol::PAGEFAULT));
    let (snapshot, mut fetcher, sent) = arriving(&mut a, &mut b);
    let mut come = Vec::new();
    let arrived = loop {
        if let Some(page) = fetcher.next() {
            if !come.contains(&page) {
                snapshot.fill(page);
                come.push(page);
            }
            kicks(&mut a);
            fetcher.wake(page);
            // The virtqueue that waits does not look by itself before its time.
            wait_until(|| kicks(&mut a) > 0, "its virtqueues are kicked");
        }
        if let Ok(frame) = b.receive(Duration::ZERO) {
            break frame.bytes;
        }
        assert!(come.len() < 100, "{come:?}");
    };
    assert_eq!(arrived, sent);
    assert!(come.len() >= 4 && snapshot.filled() == come.len() as u64 * PAGE, "{come:?}");
    // The others come unasked for, and a frame meanwhile.
    b.send(&frame(b.mac(), a.mac(), 1500, 5)).unwrap();
    for page in (0..MEMORY / PAGE).filter(|page| !come.contains(page)) {
        snapshot.fill(page);
        fetcher.wake(page);
    }
    a.frontend().unwrap().end_postcopy().unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes, frame(b.mac(), a.mac(), 1500, 5));
    exchange(&mut a, &mut b, 9);
    assert_eq!(fetcher.next(), None);
}

/// A front end that claims postcopy and answers nothing, and leaves: no page is filled, no other guest waits, and the port has the next one.
#[test]
fn page_faults_that_are_never_answered_hold_up_nobody() {
    let bed = Bed::with_fill_timeout(3, Duration::from_secs(1));
    let (mut b, mut c) = (bed.guest(1), bed.guest(2));
    for ends in [false, true] {
        let mut a = bed.guest_like(0, builder(&bed).with_protocol(Protocol::PAGEFAULT));
        let (snapshot, mut fetcher, _) = arriving(&mut a, &mut b);
        while c.receive(Duration::ZERO).is_ok() {}
        assert!(fetcher.next().is_some());
        for number in 0..20 {
            pass(&mut b, &mut c, number);
        }
        if ends {
            a.frontend().unwrap().end_postcopy().unwrap();
            // Pages that have not come are fresh memory from now on.
            wait_until(|| fetcher.next().is_none(), "no page is asked for any more");
        } else {
            let refused =
                |bed: &Bed| matches!(bed.state(0), PortState::Quarantined(cause) if cause.contains("was still to be filled"));
            bed.wait_for(refused, "the port is refused");
            drop(a);
            std::thread::sleep(POLL_INTERVAL);
            assert_eq!(snapshot.filled(), 0);
        }
    }
    pass(&mut c, &mut b, 99);
}

/// One more worker reads the frames of a guest that makes holes under them all the time.
#[test]
fn a_guest_that_makes_holes_for_ever_holds_up_no_other() {
    let bed = Bed::with("workers = 2", &[""; 3]);
    let (mut b, mut c) = (bed.guest(1), bed.guest(2));
    let mut a =
        bed.guest_like(0, builder(&bed).memory(MemoryPlan::new(4 << 20)).send_buffers(SendBuffers { count: 16, size: 64 << 10 }));
    announce(&mut [&mut a, &mut b, &mut c]);
    let file = a.memory().file().as_fd().try_clone_to_owned().unwrap();
    let ring_end = a.queues().map(|queue| queue.ring.shared().addresses().used + 2 * PAGE).max().unwrap();
    let start = (ring_end - a.memory().regions()[0].guest()).next_multiple_of(PAGE);
    let ends = AtomicBool::new(false);
    let (mut longest, mut sent) = (Duration::ZERO, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            while !ends.load(Ordering::Relaxed) {
                fallocate(&file, how, start as i64, ((4 << 20) - start) as i64).unwrap();
            }
        });
        for number in 0..300 {
            for length in [60, 1500, 40_000] {
                sent += u64::from(a.send(&frame(a.mac(), b.mac(), length, number)).is_ok());
            }
            let began = Instant::now();
            pass(&mut b, &mut c, number);
            pass(&mut c, &mut b, number);
            longest = longest.max(began.elapsed());
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(sent > 100, "{sent} frames were sent from holes");
    assert!(longest < Duration::from_secs(1), "two frames of others took {longest:?}");
    assert!([0, 1, 2].iter().all(|&index| bed.state(index) == PortState::Running));
}

/// A frame from `from` arrives at `to`, among others.
fn pass(from: &mut ToyGuest, to: &mut ToyGuest, number: u64) {
    let sent = frame(from.mac(), to.mac(), 1000, number);
    from.send(&sent).unwrap();
    while to.receive(TIMEOUT).unwrap().bytes != sent {}
}

/// The configuration says that memory is filled while the guest runs: without evidence, a receive buffer in a hole waits too.
#[test]
fn a_port_with_lazy_memory_writes_into_no_hole() {
    let bed = Bed::with("", &["lazy-memory = true", ""]);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, builder(&bed));
    a.stop().unwrap();
    let snapshot = Snapshot::of(&a);
    a.start().unwrap();
    for number in 0..5 {
        b.send(&frame(b.mac(), BROADCAST, 60, number)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(snapshot.filled(), 0);
    snapshot.fill_all(3);
    let last = frame(b.mac(), BROADCAST, 60, 99);
    wait_until(
        || {
            b.send(&last).unwrap();
            a.receive(Duration::from_millis(100)).is_ok_and(|got| got.bytes == last)
        },
        "frames come",
    );
}
