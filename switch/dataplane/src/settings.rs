//! Settings of the data path, as configured or by default.

use std::sync::OnceLock;
use std::time::Duration;

pub use memlane_model::poll::Poll;

use crate::host_memory::HostMemory;

/// Overcommit factor: all guests together may have so many times the machine's memory.
const OVERCOMMIT: u64 = 8;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// When to poll.
    pub poll: Poll,
    /// Whether VIRTIO_F_IN_ORDER is offered. Drivers that poll, such as DPDK's, are faster with it; but a frame whose receiver has
    /// no room then blocks the frames behind it (head-of-line blocking).
    pub in_order: bool,
    /// Stall timeout: how long a receiver may take nothing before the frames that are enqueued for it are dropped.
    pub stall_timeout: Duration,
    /// Size of a worker's wait queue, in frames.
    pub wait_queue: usize,
    /// Quota: part of a sender's ring that frames in flight to one receiver may take, above 0 and below 1.
    pub share: f32,
    /// How long a queue waits for guest memory that is still to be filled; `None` for [`FILL_TIMEOUT`](crate::memory::FILL_TIMEOUT).
    pub fill_timeout: Option<Duration>,
    /// FDB aging: seconds after which a silent MAC address is removed.
    pub age: u32,
    /// Moves of a MAC address between ports in ten seconds after which it is held at one; 0 for any number.
    pub moves: u16,
    /// Bytes of the switch's memory for frames that cannot be left in a guest's: from TAPs, and in flight on emulated links.
    pub memory: u64,
    /// Bytes of guests' memory that may be mapped, of all ports together.
    pub guest_memory: u64,
    /// Bytes of one guest's memory.
    pub port_memory: u64,
}

impl Default for Settings {
    fn default() -> Self {
        // Computed once, so that the same file is the same network before and after memory was added to the machine.
        static USUAL: OnceLock<Settings> = OnceLock::new();
        USUAL.get_or_init(|| Self::on(HostMemory::of_this_process())).clone()
    }
}

impl Settings {
    /// The defaults on `host`.
    fn on(host: &HostMemory) -> Self {
        let machine = host.of_machine();
        Self {
            poll: Poll::default(),
            in_order: false,
            stall_timeout: Duration::from_millis(100),
            wait_queue: 16384,
            share: 0.5,
            fill_timeout: None,
            age: crate::table::DEFAULT_AGE,
            moves: crate::table::DEFAULT_MOVES,
            memory: 64 << 20,
            // No guest has more than its host, but all of them together may: they need not use it all. A memory limit of this
            // process is no bound: a page is charged to the process that touched it first, and the charge of this one is bounded
            // separately (`network::payer`).
            guest_memory: machine.saturating_mul(OVERCOMMIT),
            port_memory: machine,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    /// A host of one GiB with so many MiB available, and a process in cgroup `c` with these files.
    pub(crate) fn host(folder: &Path, available: u64, files: &[(&str, &str)]) -> HostMemory {
        let info = format!("MemTotal:  1048576 kB\nMemAvailable: {} kB\n", available << 10);
        let proc = [("proc/meminfo", &*info), ("proc/self/cgroup", "0::/c\n")];
        for (name, text) in proc.iter().chain(files) {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        for live in ["status", "smaps"] {
            std::os::unix::fs::symlink(format!("/proc/self/{live}"), folder.join("proc/self").join(live)).unwrap();
        }
        HostMemory::new(&folder.join("proc"), &folder.join("cgroup"))
    }

    #[test]
    fn a_memory_limit_of_the_service_is_none_of_guests_that_took_their_memory_first() {
        let folder = tempfile::tempdir().unwrap();
        let limited = host(folder.path(), 800, &[("cgroup/c/memory.max", "536870912\n")]);
        assert_eq!(limited.total(), 512 << 20);
        let Settings { port_memory, guest_memory, .. } = Settings::on(&limited);
        assert_eq!((port_memory, guest_memory), (1 << 30, 8 << 30));
    }
}
