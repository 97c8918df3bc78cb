//! Settings of the data path, as the operator gave them or by default.

use std::sync::OnceLock;
use std::time::Duration;

use crate::host_memory::HostMemory;

/// How much more memory all guests together may have than there is.
const OVERCOMMIT: u64 = 8;

/// When a worker looks for work instead of sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// Sleep as soon as there is nothing to do.
    Never,
    /// Look a little longer where that found work before and the CPU has nothing better to do.
    #[default]
    Adaptive,
    /// Never sleep: for a CPU of its own.
    Always,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// When to poll.
    pub poll: Poll,
    /// Whether VIRTIO_F_IN_ORDER is offered. Drivers that poll, such as DPDK's, are faster with it; but then a frame whose receiver has no room holds
    /// up those behind it, instead of stepping aside.
    pub in_order: bool,
    /// How long a receiver may take nothing before what waits for it is dropped.
    pub patience: Duration,
    /// Most frames that may wait at one worker.
    pub parking: usize,
    /// Share of a sender's ring that may wait for one receiver, above 0 and below 1.
    pub share: f32,
    /// Seconds after which a silent station is forgotten.
    pub age: u32,
    /// Moves of a station between ports in ten seconds after which it is held at one; 0 for any number.
    pub moves: u16,
    /// Bytes of our memory that frames may take which cannot wait in a guest's: from TAPs, and under way on links.
    pub memory: u64,
    /// Bytes of guests' memory that may be mapped, of all ports together.
    pub guest_memory: u64,
    /// Bytes of one guest's memory.
    pub port_memory: u64,
}

impl Default for Settings {
    fn default() -> Self {
        // Once, so that the same file is the same network before and after memory was added to the machine.
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
            patience: Duration::from_millis(100),
            parking: 16384,
            share: 0.5,
            age: crate::table::DEFAULT_AGE,
            moves: crate::table::DEFAULT_MOVES,
            memory: 64 << 20,
            // No guest has more than its host, but all of them together may: they need not use it all. A memory limit of this process is no bound:
            // a page is charged to the process that touched it first, and what is charged to this one is bounded by itself (`network::payer`).
            guest_memory: machine.saturating_mul(OVERCOMMIT),
            port_memory: machine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_memory::tests::host;

    #[test]
    fn a_memory_limit_of_the_service_is_none_of_guests_that_took_their_memory_first() {
        let folder = tempfile::tempdir().unwrap();
        let limited = host(folder.path(), 800, "0::/c\n", &[("cgroup/c/memory.max", "536870912\n")]);
        assert_eq!(limited.total(), 512 << 20);
        let Settings { port_memory, guest_memory, .. } = Settings::on(&limited);
        assert_eq!((port_memory, guest_memory), (1 << 30, 8 << 30));
    }
}
