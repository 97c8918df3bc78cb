//! Live migration by pre-copy: every page that the switch writes is marked in the front end's dirty log (vhost-user, "Migration").

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::common::*;
use crate::dice::Dice;
use memlane::memory::LOG_PAGE;
use memlane::port::PortState;
use memlane_rig::deadline::Deadline;
use memlane_rig::frames::{Host, NetHeader, Packet};
use memlane_rig::frontend::features::{self, Features};
use memlane_rig::frontend::{Acknowledge, wire};
use memlane_rig::guest::{GuestBuilder, Habit, Layout, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::{DirtyLog, MemoryPlan};
use vhost::vhost_user::message::{FrontendReq as Request, VhostUserProtocolFeatures as Protocol};
use vmm_sys_util::eventfd::EventFd;

/// Two regions with a gap, so that guest addresses are neither offsets in the file nor contiguous.
fn memory() -> MemoryPlan {
    MemoryPlan::regions([(0x10_0000, 8 << 20), (0x400_0000, 8 << 20)]).file_gap(4096)
}

/// The end of [`memory`].
const END: u64 = 0x400_0000 + (8 << 20);

/// A guest that migrates, on port 0.
fn migrating(bed: &Bed) -> GuestBuilder {
    let small = memlane_rig::guest::SendBuffers { count: 32, size: 80 << 10 };
    bed.builder(0)
        .memory(memory())
        .ring_size(128)
        .send_buffers(small)
        .protocol_features(features::usual_protocol() | Protocol::LOG_SHMFD | Protocol::DEVICE_STATE)
}

fn set_log(guest: &mut ToyGuest, log: &DirtyLog) {
    guest.frontend().unwrap().set_log_base(log.raw_file(), 0, log.size()).unwrap();
}

fn new_log(guest: &mut ToyGuest) -> DirtyLog {
    let log = DirtyLog::below(END).unwrap();
    set_log(guest, &log);
    log
}

/// Begins as QEMU does (`vhost_migration_log`).
fn begin(guest: &mut ToyGuest) -> DirtyLog {
    let log = new_log(guest);
    guest.log_writes(true).unwrap();
    guest.log_rings(true).unwrap();
    log
}

/// The guest's memory as far as only the switch writes it, by page.
type Snapshot = Vec<(u64, Vec<u8>)>;

fn snapshot(guest: &mut ToyGuest) -> Snapshot {
    let mut pages = Vec::new();
    for (start, length) in guest.back_end_ranges() {
        let mut at = start;
        while at < start + length {
            let end = (at / LOG_PAGE + 1) * LOG_PAGE;
            let bytes = guest.memory().bytes(at, (end.min(start + length) - at) as usize).unwrap();
            pages.push((at / LOG_PAGE, bytes));
            at = end;
        }
    }
    pages
}

/// The front end's view of a migration under way.
struct Migration {
    log: DirtyLog,
    /// Logs that were replaced: none of them is marked any more.
    retired: VecDeque<DirtyLog>,
    /// The memory as last read.
    before: Snapshot,
    /// Pages that were marked since the memory was last read.
    late: BTreeSet<u64>,
    /// Pages that changed, in all.
    changed: u64,
}

impl Migration {
    fn begin(guest: &mut ToyGuest) -> Self {
        let log = begin(guest);
        Self { log, retired: VecDeque::new(), before: snapshot(guest), late: BTreeSet::new(), changed: 0 }
    }

    /// Reads the log and the memory: each page that has changed since the last time was marked. A page is marked after it is written,
    /// so a mark may come a moment after the change.
    fn read(&mut self, guest: &mut ToyGuest) {
        let mut marked = std::mem::take(&mut self.late);
        marked.extend(self.log.take());
        let now = snapshot(guest);
        self.late = self.log.take();
        for (before, now) in self.before.iter().zip(&now).filter(|(before, now)| before != now) {
            assert_eq!(before.0, now.0);
            let page = now.0;
            self.changed += 1;
            let is_marked = || {
                self.late.extend(self.log.take());
                marked.contains(&page) || self.late.contains(&page)
            };
            wait_until(is_marked, &format!("page {page:#x}, which changed, is marked"));
        }
        self.before = now;
        for retired in &self.retired {
            assert!(retired.take().is_empty(), "a bit in a log that was replaced");
        }
    }

    /// Replaces the log, as Cloud Hypervisor does to read it.
    fn replace(&mut self, guest: &mut ToyGuest) {
        let old = std::mem::replace(&mut self.log, new_log(guest));
        self.late.extend(old.take());
        self.retired.push_back(old);
        self.retired.truncate(3);
    }

    /// Cancels it, and begins anew after some frames that are not logged.
    fn again(&mut self, guest: &mut ToyGuest, meanwhile: impl FnOnce(&mut ToyGuest)) {
        guest.log_writes(false).unwrap();
        guest.log_rings(false).unwrap();
        self.log.take();
        meanwhile(guest);
        assert!(self.log.take().is_empty(), "a bit without VHOST_F_LOG_ALL");
        let next = Self::begin(guest);
        let old = std::mem::replace(self, next);
        self.changed = old.changed;
        self.retired.push_back(old.log);
    }
}

/// Waits until all frames of `sender` are delivered; returns the number that `receiver` got meanwhile.
fn settle(sender: &mut ToyGuest, receiver: &mut ToyGuest) -> usize {
    let mut count = 0;
    wait_until(
        || {
            while receiver.try_receive().unwrap().is_some() {
                count += 1;
            }
            sender.pair(0).transmit.reclaim().unwrap();
            sender.pair(0).transmit.queue.ring.in_flight() == 0
        },
        "all frames are delivered",
    );
    count
}

fn host(index: u16) -> Host {
    Host { mac: mac(index.into()), ..Host::v4(index + 1) }
}

/// A frame from guest `from` to guest `to` of one of the kinds that take different ways through the switch.
fn any_frame(dice: &mut Dice, from: u16, to: u16) -> (NetHeader, Layout, Vec<u8>) {
    let layout = match dice.below(4) {
        0 => Layout::iovecs([12, 50]),
        1 => Layout::iovecs([3, 9, 14, 700]).indirect(),
        _ => Layout::single(),
    };
    let length = if dice.once_in(2) { 60 } else { 14 + dice.below(1500) };
    let plain = frame(mac(from.into()), mac(to.into()), length, dice.number());
    let (header, bytes) = match dice.below(8) {
        0 => Packet::tcp(host(from), host(to), 1, vec![7; 2000 + dice.below(58_000)]).gso(1448),
        1 => Packet::udp(host(from), host(to), vec![9; 3000 + dice.below(30_000)]).gso(1400),
        2 => Packet::udp(host(from), host(to), vec![dice.number() as u8; 1 + dice.below(1400)]).partial(),
        _ => (NetHeader::default(), plain),
    };
    (header, layout, bytes)
}

/// Random frames both ways and random messages, with the log held against the memory.
fn random_operations(count: usize, top: &str, wanted: Features, buffers: ReceiveBuffers) {
    let bed = Bed::with(top, &["", ""]);
    let mut a = bed.guest_like(0, migrating(&bed).features(wanted).receive_buffers(buffers));
    let mut b = bed.guest_like(1, bed.builder(1).ring_size(128));
    announce(&mut [&mut a, &mut b]);
    let (mut migration, mut dice) = (Migration::begin(&mut a), Dice::new());
    let mut received = 0;
    for _ in 0..count {
        match dice.below(100) {
            0..60 => {
                let (header, layout, bytes) = any_frame(&mut dice, 1, 0);
                b.send_with(&header, &layout, &bytes).unwrap();
                received += settle(&mut b, &mut a);
            }
            60..70 => {
                // Small frames one after the other, as they take the fast path where writes are not logged.
                for number in 0..1 + dice.number() % 16 {
                    b.send(&frame(b.mac(), a.mac(), 60, number)).unwrap();
                }
                received += settle(&mut b, &mut a);
            }
            70..85 => {
                let bytes = frame(a.mac(), b.mac(), 14 + dice.below(1500), dice.number());
                a.send(&bytes).unwrap();
                settle(&mut a, &mut b);
            }
            // A frame that the switch makes.
            85..87 => {
                let address = b.mac();
                b.frontend().unwrap().send_rarp(address).unwrap();
                b.synchronise().unwrap();
            }
            87..91 => migration.replace(&mut a),
            91 => {
                a.stop().unwrap();
                a.start().unwrap();
                a.log_rings(dice.once_in(2)).unwrap();
            }
            92 => migration.again(&mut a, |a| {
                b.send(&frame(mac(1), mac(0), 300, 1)).unwrap();
                settle(&mut b, a);
            }),
            _ => migration.read(&mut a),
        }
    }
    migration.read(&mut a);
    assert!(received > count / 4 && migration.changed > count as u64 / 10, "{received} frames, {} pages", migration.changed);
    assert_eq!(bed.state(0), PortState::Running);
}

#[test]
fn every_page_that_the_switch_writes_is_in_the_log() {
    let all = std::env::var("MEMLANE_LOG_OPERATIONS").map_or(10_000, |count| count.parse().unwrap());
    let short = features::PLAIN & !(features::MRG_RXBUF | features::VERSION_1);
    for (top, wanted, buffers) in [
        ("", features::LINUX, ReceiveBuffers::SMALL),
        ("poll = \"always\"", features::PLAIN | features::IN_ORDER | features::EVENT_IDX, ReceiveBuffers::SMALL),
        ("workers = 2", features::LINUX & !features::MRG_RXBUF, ReceiveBuffers::BIG),
        ("poll = \"never\"", short, ReceiveBuffers::BIG),
    ] {
        random_operations(all / 4, top, wanted, buffers);
    }
}

/// Answers of the control queue, where the switch serves it.
#[test]
fn answers_of_the_control_queue_are_in_the_log() {
    let bed = Bed::with("", &["queues = 2", ""]);
    let uml = migrating(&bed).habit(Habit::UML).without_protocol(Protocol::MTU | Protocol::RARP).queue_pairs(2);
    let mut guest = bed.guest_like(0, uml.with(features::MQ | features::CTRL_VQ));
    let mut control = guest.control_queue(4).unwrap();
    let log = begin(&mut guest);
    // Marked when the log was set.
    log.take();
    assert_eq!(control.command(&[4, 0, 1, 0], Some(2), TIMEOUT).unwrap(), 0);
    let mut marked = BTreeSet::new();
    wait_until(
        || {
            marked.extend(log.take());
            // The answer and the used ring.
            marked.len() >= 2
        },
        "the answer is marked",
    );
}

/// rust-vmm/vhost#217: SET_LOG_BASE is answered whether or not REPLY_ACK was agreed, with the body that it came with.
#[test]
fn set_log_base_is_answered_without_reply_ack() {
    let bed = Bed::new(1);
    let mut guest = bed.guest_like(0, migrating(&bed).without_protocol(Protocol::REPLY_ACK));
    for _ in 0..2 {
        let log = DirtyLog::below(END).unwrap();
        let body = [log.size(), 0].map(u64::to_le_bytes).concat();
        let stream = guest.frontend().unwrap().stream();
        wire::send(stream, Request::SET_LOG_BASE as u32, wire::VERSION, &body, &[log.raw_file()]).unwrap();
        let answer = wire::receive(stream, Deadline::after(TIMEOUT)).unwrap();
        assert_eq!((answer.code, answer.flags, answer.body), (Request::SET_LOG_BASE as u32, wire::VERSION | wire::REPLY, body));
    }
}

/// Pages of the log that a frame to `a` marks.
fn marked_by_a_frame(a: &mut ToyGuest, b: &mut ToyGuest, log: &DirtyLog) -> BTreeSet<u64> {
    log.take();
    b.send(&frame(b.mac(), a.mac(), 100, 1)).unwrap();
    a.receive(TIMEOUT).unwrap();
    let mut marked = BTreeSet::new();
    // The receive buffer and the used ring.
    wait_until(
        || {
            marked.extend(log.take());
            marked.len() >= 2
        },
        "a frame marks pages",
    );
    marked
}

/// QEMU 7.2, twice, with a cancelled migration between: SET_LOG_BASE (answered), SET_FEATURES, SET_VRING_ADDR of each ring; the first
/// without VHOST_F_LOG_ALL again, then the same in the same order (hw/virtio/vhost.c, `vhost_migration_log`).
#[test]
fn qemu_migrates_cancels_and_migrates_again() {
    let bed = Bed::new(2);
    let mut a = bed.guest_like(0, migrating(&bed).habit(Habit::QEMU));
    let mut b = bed.guest(1);
    announce(&mut [&mut a, &mut b]);
    assert_ne!(a.offered() & features::LOG_ALL, 0);
    for _ in 0..2 {
        let log = begin(&mut a);
        assert!(!marked_by_a_frame(&mut a, &mut b, &log).is_empty());
        // More memory: a longer log, and the old one is read and unmapped.
        let longer = DirtyLog::below(2 * END).unwrap();
        set_log(&mut a, &longer);
        log.take();
        assert!(!marked_by_a_frame(&mut a, &mut b, &longer).is_empty());
        assert!(log.take().is_empty());
        a.log_writes(false).unwrap();
        a.log_rings(false).unwrap();
        longer.take();
        b.send(&frame(b.mac(), a.mac(), 100, 2)).unwrap();
        a.receive(TIMEOUT).unwrap();
        assert!(longer.take().is_empty());
    }
    // The log ends: no bit comes after the answers to GET_VRING_BASE.
    let log = begin(&mut a);
    b.send(&frame(b.mac(), a.mac(), 1000, 3)).unwrap();
    a.stop().unwrap();
    assert!(!log.take().is_empty());
    b.send(&frame(b.mac(), a.mac(), 1000, 4)).unwrap();
    b.wait_sent(TIMEOUT).unwrap();
    assert!(log.take().is_empty());
    assert_eq!(quarantines(&bed), 0);
}

/// Cloud Hypervisor (virtio-devices/src/vhost_user/vu_common_ctrl.rs): its features are those of the first answer, the log is read by
/// replacing it, logging ends in the opposite order, and everything is acknowledged.
#[test]
fn cloud_hypervisor_reads_the_log_by_replacing_it() {
    let bed = Bed::new(2);
    let habit = Habit::CLOUD_HYPERVISOR;
    let mut a = bed.guest_like(0, migrating(&bed).habit(habit).acknowledge(Acknowledge::Everything));
    let mut b = bed.guest(1);
    announce(&mut [&mut a, &mut b]);
    assert_ne!(a.offered() & features::LOG_ALL, 0, "supports_migration");
    for _ in 0..2 {
        let mut log = begin(&mut a);
        for _ in 0..3 {
            assert!(!marked_by_a_frame(&mut a, &mut b, &log).is_empty());
            b.send(&frame(b.mac(), a.mac(), 100, 1)).unwrap();
            a.receive(TIMEOUT).unwrap();
            let next = new_log(&mut a);
            let old = std::mem::replace(&mut log, next);
            assert!(!old.take().is_empty());
            b.send(&frame(b.mac(), a.mac(), 100, 2)).unwrap();
            a.receive(TIMEOUT).unwrap();
            assert!(old.take().is_empty());
        }
        a.log_rings(false).unwrap();
        a.log_writes(false).unwrap();
    }
    assert_eq!(quarantines(&bed), 0);
}

/// Cloud Hypervisor's rings of before 2021, and others: VHOST_F_LOG_ALL alone. The used ring is marked where the memory has it.
#[test]
fn used_rings_are_marked_without_an_address_of_their_own() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest_like(0, migrating(&bed)), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let log = new_log(&mut a);
    a.log_writes(true).unwrap();
    let used = a.pair(0).receive.queue.ring.shared().addresses().used / LOG_PAGE;
    assert!(marked_by_a_frame(&mut a, &mut b, &log).contains(&used));
}

fn quarantines(bed: &Bed) -> u64 {
    bed.daemon().network().port(memlane::id::PortId(0)).unwrap().quarantines()
}

fn wait_for_quarantine(bed: &Bed, cause: &str) {
    bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(told) if told.contains(cause)), cause);
}

/// Logs of hostile front ends cost their own port: bits outside are left out, and no other memory is written.
#[test]
fn a_log_that_is_too_short_or_truncated_quarantines_its_port() {
    let bed = Bed::new(3);
    let (mut b, mut c) = (bed.guest(1), bed.guest(2));
    for truncated in [false, true] {
        let mut a = bed.guest_like(0, migrating(&bed));
        let log = if truncated { begin(&mut a) } else { DirtyLog::below(0x10_0000).unwrap() };
        if truncated {
            log.truncate(0).unwrap();
        } else {
            set_log(&mut a, &log);
            a.log_writes(true).unwrap();
        }
        b.send(&frame(b.mac(), a.mac(), 100, 1)).unwrap();
        wait_for_quarantine(&bed, if truncated { "truncated the dirty log" } else { "too short" });
        // The same guest begins anew with a good log, on the same connection.
        let _log = new_log(&mut a);
        a.stop().unwrap();
        a.start().unwrap();
        bed.wait_for(|bed| bed.state(0) == PortState::Running, "the port runs again");
        drop(a);
        bed.wait_for(|bed| bed.state(0) == PortState::Waiting, "the port is free");
    }
    b.wait_sent(TIMEOUT).unwrap();
    c.send(&frame(c.mac(), b.mac(), 100, 2)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(c.mac(), b.mac(), 100, 2));
}

/// A sparse log is filled as it is written.
#[test]
fn a_log_may_begin_anywhere_in_a_sparse_file() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest_like(0, migrating(&bed)), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let log = DirtyLog::below(1 << 34).unwrap();
    a.frontend().unwrap().set_log_base(log.raw_file(), 0, log.size()).unwrap();
    a.log_writes(true).unwrap();
    a.log_rings(true).unwrap();
    assert!(!marked_by_a_frame(&mut a, &mut b, &log).is_empty());
    // Bit 0 is 5 bytes into the file now.
    a.frontend().unwrap().set_log_base(log.raw_file(), 5, log.size() - 5).unwrap();
    let shifted = marked_by_a_frame(&mut a, &mut b, &log);
    let used = a.pair(0).receive.queue.ring.shared().addresses().used / LOG_PAGE;
    assert!(shifted.contains(&(used + 40)), "{shifted:x?}");
}

#[test]
fn a_log_that_cannot_be_mapped_ends_the_connection() {
    let bed = Bed::new(1);
    let log = DirtyLog::below(END).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for (file, offset, size) in [
        (log.raw_file(), 0, log.size() + 1),
        (log.raw_file(), log.size(), 1),
        (log.raw_file(), 0, 0),
        (log.raw_file(), u64::MAX, 1),
        (log.raw_file(), 1 << 63, 1 << 62),
        (null.as_raw_fd(), 0, 1),
    ] {
        let mut guest = bed.guest_like(0, migrating(&bed));
        assert!(guest.frontend().unwrap().set_log_base(file, offset, size).is_err(), "{size} bytes at {offset}");
        wait_until(|| !guest.connected(), "the connection ends");
        bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(_)), "the front end broke a rule");
    }
}

/// An eventfd for news of the log is accepted: no known front end waits for it.
#[test]
fn the_eventfd_of_the_log_is_accepted() {
    let bed = Bed::new(1);
    let mut guest = bed.guest_like(0, migrating(&bed));
    guest.frontend().unwrap().set_log_fd(EventFd::new(0).unwrap().as_raw_fd()).unwrap();
    guest.synchronise().unwrap();
    assert_eq!(quarantines(&bed), 0);
}

/// The device state is empty: the front end reads nothing, and a state with something in it is another back end's.
#[test]
fn the_device_state_is_empty() {
    let bed = Bed::new(1);
    let mut guest = bed.guest_like(0, migrating(&bed).habit(Habit::CLOUD_HYPERVISOR));
    let pipe = || std::io::pipe().unwrap();
    let (_, writer) = pipe();
    assert!(guest.frontend().unwrap().set_device_state_fd(true, OwnedFd::from(writer)).is_err(), "rings run");
    guest.stop().unwrap();
    let frontend = guest.frontend().unwrap();
    let (mut reader, writer) = pipe();
    frontend.set_device_state_fd(true, OwnedFd::from(writer)).unwrap();
    let mut state = Vec::new();
    reader.read_to_end(&mut state).unwrap();
    assert!(state.is_empty());
    frontend.check_device_state().unwrap();
    for (state, is_empty) in [("", true), ("passt's", false)] {
        let (reader, mut writer) = pipe();
        frontend.set_device_state_fd(false, OwnedFd::from(reader)).unwrap();
        writer.write_all(state.as_bytes()).unwrap();
        drop(writer);
        assert_eq!(frontend.check_device_state().is_ok(), is_empty, "{state:?}");
    }
    // One that never ends is not waited for.
    let (reader, _writer) = UnixStream::pair().unwrap();
    frontend.set_device_state_fd(false, OwnedFd::from(reader)).unwrap();
    assert!(frontend.check_device_state().is_err());
    guest.start().unwrap();
    assert_eq!(quarantines(&bed), 0);
}
