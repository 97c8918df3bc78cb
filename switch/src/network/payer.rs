//! Guests' memory that the switch pays for: pages that it touched first, of files that are sparse.
//!
//! The kernel charges such a page to the switch's cgroup (or takes it from the machine) for as long as the file exists, whatever limit the front end
//! has. So a thread of its own looks at what the process has touched, once a second while there is traffic and more often while it grows, and a port
//! that had the switch pay for more than is left to all others is quarantined: its guest's memory is not touched any more.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::Network;
use crate::host_memory::HostMemory;
use crate::port::Port;

/// How often to look while what is touched grows.
const INTERVAL: Duration = Duration::from_millis(100);
/// Growth that is looked into: the part of the host's memory, and bytes at least.
const PART: u64 = 1024;
const LEAST: u64 = 4 << 20;
/// A port may always have the switch pay for this part of the host's memory.
const FREE_PART: u64 = 64;

/// What was seen last.
#[derive(Debug)]
pub(super) struct Payer {
    host: HostMemory,
    touched: Mutex<u64>,
    /// Wakes the thread; full while it is to look anyway.
    bell: SyncSender<()>,
}

impl Payer {
    /// For `host`, and what its thread waits for.
    pub(super) fn new(host: HostMemory) -> (Self, Receiver<()>) {
        let (bell, rung) = sync_channel(1);
        (Self { host, touched: Mutex::default(), bell }, rung)
    }

    /// Has the thread look.
    pub(super) fn ring(&self) {
        // Full if it is to look anyway.
        let _ = self.bell.try_send(());
    }
}

/// Looks each time that it is rung, and goes on while what is touched grows; ends with the network.
pub(super) fn run(network: &Weak<Network>, rung: &Receiver<()>) {
    while rung.recv().is_ok() {
        loop {
            let Some(network) = network.upgrade() else { return };
            let grows = network.look_at_touched();
            drop(network);
            if !grows || rung.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                break;
            }
        }
    }
}

impl Network {
    /// Looks at what the switch has touched, if it has grown, and quarantines ports that had it pay for more than their share; true if it has.
    pub(super) fn look_at_touched(&self) -> bool {
        let host = &self.payer.host;
        let now = host.touched();
        let step = (host.total() / PART).max(LEAST);
        {
            let mut before = self.payer.touched.lock().unwrap_or_else(PoisonError::into_inner);
            if now < before.saturating_add(step) {
                *before = now.min(*before);
                return false;
            }
            *before = now;
        }
        let touched = host.touched_by_mapping();
        let share = host.left().max(host.total() / FREE_PART);
        for port in self.ports() {
            let paid = port.memory().map_or(0, |memory| memory.look_at_paid(&touched));
            port.set_paid(paid);
            if paid > share {
                self.refuse_to_pay(&port, paid, share);
            }
        }
        true
    }

    fn refuse_to_pay(&self, port: &Arc<Port>, paid: u64, share: u64) {
        let mib = |bytes: u64| bytes >> 20;
        let cause = format!(
            "its guest had the switch pay for {} MiB of memory that its front end had not taken, where {} MiB are left: let the front end take guest \
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
    use std::os::unix::fs::FileExt;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::host_memory::tests::host;
    use crate::memory::{MemoryMap, Region, RegionTable};
    use crate::port::State;
    use crate::settings::Settings;
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

    /// What workers report reaches the thread.
    #[test]
    fn it_is_looked_at_while_there_is_traffic() {
        let folder = tempfile::tempdir().unwrap();
        let network = Network::start_on(Shared::new(1, 7, Settings::default()), &[], host(folder.path(), 64, "", &[])).unwrap();
        let port = super::super::tests::add(&network, "hostile", None).unwrap();
        let memory = memory(sparse());
        port.set_memory(Some(Arc::clone(&memory)));
        memory.regions()[0].fill(2);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !matches!(port.state(), State::Quarantined(_)) {
            assert!(std::time::Instant::now() < deadline, "{:?}, {} paid", port.state(), port.paid());
            // Keeps the worker awake.
            network.workers[0].tell(|_| {});
            std::thread::sleep(Duration::from_millis(1));
        }
        network.shut_down();
    }

    #[test]
    fn a_guest_that_has_the_switch_pay_for_its_memory_is_quarantined_and_one_that_took_its_own_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let network = Network::start_on(Shared::new(1, 7, Settings::default()), &[], host(folder.path(), 64, "", &[])).unwrap();
        let add = |name: &str| super::super::tests::add(&network, name, None).unwrap();
        let (honest, hostile) = (add("honest"), add("hostile"));
        let taken = sparse();
        for offset in (0..LENGTH).step_by(4096) {
            taken.write_at(&[1], offset).unwrap();
        }
        let (own, others) = (memory(taken), memory(sparse()));
        for (port, memory) in [(&honest, &own), (&hostile, &others)] {
            port.set_memory(Some(Arc::clone(memory)));
            port.set_state(State::Running);
            network.look_at_touched();
            // As a worker would, through rings.
            memory.regions()[0].fill(2);
            network.look_at_touched();
        }
        assert_eq!((honest.state(), honest.paid()), (State::Running, 0));
        assert!(hostile.paid() > LENGTH * 9 / 10, "{}", hostile.paid());
        let State::Quarantined(cause) = hostile.state() else { panic!("{:?}", hostile.state()) };
        assert!(cause.contains("where 64 MiB are left") && cause.contains("prealloc=on"), "{cause}");
        network.shut_down();
    }
}
