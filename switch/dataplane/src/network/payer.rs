//! Guests' memory that is charged to the switch: pages of sparse files that the switch touched first.
//!
//! The kernel charges such a page to the switch's cgroup for as long as the file exists, independent of the limit of the front end.
//! So a separate thread checks the memory that the process has touched, once a second while there is traffic and more often while
//! it grows. The change of the cgroup's charge is divided among the ports, be it an increase or a decrease: a guest that returns
//! pages (balloon, free page reporting) and takes them again is charged once. A port is quarantined when more is charged for it
//! than is left to all others: its guest's memory is not touched any more. Where front ends are in the same cgroup, it makes no
//! difference which process is charged.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Network;
use crate::host_memory::HostMemory;
use crate::port::Port;

/// Check interval while the touched memory grows.
const INTERVAL: Duration = Duration::from_millis(100);
/// A check of all mappings takes long where much is mapped, and guests can cause it: the thread rests so many times as long
/// afterwards.
const REST: u32 = 20;
/// Minimum growth for a check: a part of the host's memory, and bytes.
const PART: u64 = 1024;
const LEAST: u64 = 4 << 20;
/// Part of the host's memory that may always be charged for a port.
const FREE_PART: u64 = 64;

/// State of the last check.
#[derive(Debug)]
pub(super) struct Payer {
    host: HostMemory,
    seen: Mutex<Seen>,
    /// Wakes the thread; full while a check is pending anyway.
    wake_up: SyncSender<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Bytes that the process has touched.
    touched: u64,
    /// Bytes of shared files that its cgroup is charged with, where that can be read.
    charged: Option<u64>,
}

impl Payer {
    /// For `host`; returns the receiver that its thread waits on, too.
    pub(super) fn new(host: HostMemory) -> (Self, Receiver<()>) {
        let (wake_up, woken) = sync_channel(1);
        let charged = host.charged();
        (Self { host, seen: Mutex::new(Seen { touched: 0, charged }), wake_up }, woken)
    }

    /// Requests a check.
    pub(super) fn request(&self) {
        // Full if a check is pending anyway.
        let _ = self.wake_up.try_send(());
    }
}

/// Checks each time that it is woken, and again while the touched memory grows; ends with the network.
pub(super) fn run(network: &Weak<Network>, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        loop {
            let Some(network) = network.upgrade() else { return };
            let begun = Instant::now();
            let grows = network.look_at_touched();
            drop(network);
            if !grows || !rest(woken, INTERVAL.max(begun.elapsed() * REST)) {
                break;
            }
        }
    }
}

/// Rests for so long, woken or not; false if the network ends.
fn rest(woken: &Receiver<()>, span: Duration) -> bool {
    let until = Instant::now() + span;
    loop {
        match woken.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(()) => {}
            Err(error) => return error == RecvTimeoutError::Timeout,
        }
    }
}

impl Network {
    /// Checks the touched memory, if it has grown, and quarantines ports that exceed their share; true if it has grown.
    pub(super) fn look_at_touched(&self) -> bool {
        let host = &self.payer.host;
        let (touched, charged) = (host.touched(), host.charged());
        let step = (host.total() / PART).max(LEAST);
        let mut seen = self.payer.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if touched < seen.touched.saturating_add(step) {
            seen.touched = touched.min(seen.touched);
            return false;
        }
        seen.touched = touched;
        // If other processes share the cgroup, or the charge cannot be read, the charge does not tell which port caused it: no port
        // is blamed.
        let before = std::mem::replace(&mut seen.charged, charged);
        drop(seen);
        if let Some(now) = charged {
            self.divide(before.map_or(0, |before| now as i64 - before as i64), now);
        }
        true
    }

    /// Divides the change of the cgroup's charge since the last check, to `most` now, among the ports: in proportion to the memory
    /// of each that was touched first, or returned, at most. No port is charged for more than the charge of the cgroup.
    fn divide(&self, change: i64, most: u64) {
        let host = &self.payer.host;
        let all = host.touched_by_mapping();
        let first = |port: Arc<Port>| {
            let bytes = port.memory().map_or(0, |memory| memory.look_at_touched(&all));
            (port, if bytes.signum() == change.signum() { bytes } else { 0 })
        };
        let ports: Vec<(Arc<Port>, i64)> = self.ports().into_iter().map(first).collect();
        let sum = ports.iter().map(|(_, bytes)| bytes.unsigned_abs()).sum::<u64>().max(1);
        let share = host.left().max(host.total() / FREE_PART);
        for (port, bytes) in ports {
            let part = i128::from(bytes) * i128::from(change.unsigned_abs().min(sum)) / i128::from(sum);
            let paid = port.change_paid(part as i64, most);
            if part > 0 && paid > share {
                self.refuse_to_pay(&port, paid, share);
            }
        }
    }

    fn refuse_to_pay(&self, port: &Arc<Port>, paid: u64, share: u64) {
        let mib = |bytes: u64| bytes >> 20;
        let cause = format!(
            "the switch touched {} MiB of guest memory first and is charged for it, more than the {} MiB left: let the front end allocate guest \
             memory first (QEMU: prealloc=on; libvirt: <allocation mode='immediate'/>), or raise the memory limit of the service (MemoryMax=)",
            mib(paid),
            mib(share)
        );
        self.quarantine(port, &cause);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::sync::mpsc::{Sender, channel};

    use nix::fcntl::{FallocateFlags, fallocate};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::memory::{Hint, MemoryMap, Region, RegionTable};
    use crate::port::PortState;
    use crate::settings::Settings;
    use crate::settings::tests::host;
    use crate::shared::Shared;

    const LENGTH: u64 = 96 << 20;

    fn memory(file: File) -> Arc<MemoryMap> {
        let table = RegionTable { guest_start: 0, length: LENGTH, user_start: 0, file_offset: 0 };
        Arc::new(MemoryMap::new(vec![Arc::new(Region::map(table, file).unwrap())]).unwrap())
    }

    fn sparse() -> File {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(LENGTH).unwrap();
        file
    }

    /// Touches all pages, as a front end does that preallocates its guest's memory.
    fn take(file: &File) {
        (0..LENGTH).step_by(4096).for_each(|offset| assert_eq!(file.write_at(&[1], offset).unwrap(), 1));
    }

    /// A network whose process is alone in a cgroup, with 64 MiB left on its host.
    struct Bed {
        folder: tempfile::TempDir,
        network: Arc<Network>,
        /// The worker goes on once this is dropped.
        held: Option<Sender<()>>,
    }

    impl Bed {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let own = format!("{}\n", std::process::id());
            let files = [("cgroup/c/cgroup.procs", &*own), ("cgroup/c/memory.stat", "shmem 0\n")];
            let host = host(folder.path(), 64, &files);
            let network = Network::start_on(Shared::new(1, 7, Settings::default()), &[], host).unwrap();
            Self { network, folder, held: None }
        }

        fn port(&self, name: &str, memory: &Arc<MemoryMap>) -> Arc<Port> {
            let port = super::super::tests::add(&self.network, name, None).unwrap();
            port.set_memory(Some(Arc::clone(memory)));
            port.set_state(PortState::Running);
            port
        }

        /// Blocks the worker, so that its events cause no check.
        fn hold(&mut self) {
            let ((release, held), (tell, told)) = (channel::<()>(), channel());
            self.network.workers[0].tell(move |_| {
                let _ = tell.send(());
                let _ = held.recv();
            });
            told.recv().unwrap();
            self.held = Some(release);
        }

        /// Checks, even if other tests have released memory meanwhile.
        fn look(&self) {
            self.network.payer.seen.lock().unwrap().touched = 0;
            assert!(self.network.look_at_touched());
        }

        /// Sets the charge of the cgroup.
        fn charge(&self, bytes: u64) {
            std::fs::write(self.folder.path().join("cgroup/c/memory.stat"), format!("shmem {bytes}\n")).unwrap();
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.held.take();
            self.network.shut_down();
        }
    }

    #[test]
    fn a_guest_that_has_the_switch_pay_for_its_memory_is_quarantined_and_one_that_took_its_own_is_not() {
        let mut bed = Bed::new();
        let (taken, later) = (sparse(), sparse());
        take(&taken);
        let (own, own_later, others) = (memory(taken), memory(later.try_clone().unwrap()), memory(sparse()));
        let [honest, busy, hostile] =
            [("honest", &own), ("busy", &own_later), ("hostile", &others)].map(|(name, memory)| bed.port(name, memory));
        bed.hold();
        // The guest of one port touches its memory while it runs, before the switch does as a worker would, through rings.
        take(&later);
        own.regions()[0].fill(2);
        own_later.regions()[0].fill(2);
        bed.look();
        assert_eq!([honest.paid(), busy.paid()], [0, 0]);
        others.regions()[0].fill(2);
        bed.charge(LENGTH);
        bed.look();
        assert_eq!([honest.paid(), busy.paid()], [0, 0]);
        assert!(hostile.paid() > LENGTH * 9 / 10, "{}", hostile.paid());
        let PortState::Quarantined(cause) = hostile.state() else { panic!("{:?}", hostile.state()) };
        assert!(cause.contains("more than the 64 MiB left") && cause.contains("prealloc=on"), "{cause}");
        assert_eq!([honest.state(), busy.state()], [PortState::Running, PortState::Running]);
    }

    /// A guest with a balloon or free page reporting returns pages, and the switch touches them first again.
    #[test]
    fn pages_that_were_given_back_and_touched_again_are_paid_for_once() {
        const HALF: u64 = LENGTH / 2;
        let mut bed = Bed::new();
        let file = sparse();
        let (honest, other) = (memory(file.try_clone().unwrap()), memory(sparse()));
        let [port, beside] = [("honest", &honest), ("beside", &other)].map(|(name, memory)| bed.port(name, memory));
        bed.hold();
        let touch = |memory: &MemoryMap| {
            let iovec = |page: u64| memory.iovec(page * 4096, 1, &mut Hint::default()).unwrap();
            (0..HALF / 4096).for_each(|page| iovec(page).write(&[1]));
        };
        let punch = |file: &File| {
            let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(file, mode, 0, HALF as i64).unwrap();
        };
        // Another port's memory is on the same charge, so that its sum alone does not tell.
        touch(&other);
        bed.charge(HALF);
        bed.look();
        for _ in 0..4 {
            touch(&honest);
            bed.charge(2 * HALF);
            bed.look();
            assert_eq!(port.paid(), HALF);
            punch(&file);
            bed.charge(HALF);
            bed.look();
            assert_eq!([port.paid(), beside.paid()], [0, HALF]);
        }
        assert_eq!([port.state(), beside.state()], [PortState::Running, PortState::Running]);
        // Whatever was counted, a port is charged for no more than its cgroup.
        port.change_paid(LENGTH as i64, u64::MAX);
        touch(&honest);
        bed.charge(2 * HALF - 4096);
        bed.look();
        assert_eq!(port.paid(), 2 * HALF - 4096);
    }

    #[test]
    fn no_port_is_blamed_where_others_are_in_the_cgroup() {
        let mut bed = Bed::new();
        std::fs::write(bed.folder.path().join("cgroup/c/cgroup.procs"), format!("{}\n1\n", std::process::id())).unwrap();
        let memory = memory(sparse());
        let port = bed.port("a", &memory);
        bed.hold();
        // A file with a read that would not end.
        let smaps = bed.folder.path().join("proc/self/smaps");
        std::fs::remove_file(&smaps).unwrap();
        mkfifo(&smaps, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        memory.regions()[0].fill(2);
        bed.charge(LENGTH);
        let (tell, told) = channel();
        let looked = std::thread::scope(|scope| {
            scope.spawn(|| {
                bed.look();
                tell.send(()).unwrap();
            });
            let looked = told.recv_timeout(Duration::from_secs(20));
            // Ends a read of the file, if there is one.
            let _ = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&smaps);
            looked
        });
        assert_eq!(looked, Ok(()), "all mappings are looked at, though no port can be blamed");
        assert_eq!((port.state(), port.paid()), (PortState::Running, 0));
    }

    #[test]
    fn the_thread_rests_whether_it_is_rung_or_not_and_ends_with_the_network() {
        let (wake_up, woken) = sync_channel(1);
        wake_up.send(()).unwrap();
        let begun = Instant::now();
        assert!(rest(&woken, Duration::from_millis(30)) && begun.elapsed() >= Duration::from_millis(30));
        drop(wake_up);
        assert!(!rest(&woken, Duration::from_secs(3600)));
    }

    /// Events of workers reach the thread.
    #[test]
    fn it_is_looked_at_while_there_is_traffic() {
        let mut bed = Bed::new();
        let memory = memory(sparse());
        let port = bed.port("hostile", &memory);
        bed.hold();
        memory.regions()[0].fill(2);
        bed.charge(LENGTH);
        bed.held.take();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !matches!(port.state(), PortState::Quarantined(_)) {
            assert!(Instant::now() < deadline, "{:?}, {} paid", port.state(), port.paid());
            // Keeps the worker awake.
            bed.network.workers[0].tell(|_| {});
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
