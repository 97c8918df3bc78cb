//! Structures that threads of the switch share without locks, compiled for loom: `make loom`.

#[path = "../../virtq/src/id.rs"]
pub mod id;

#[path = "../../dataplane/src/handover.rs"]
pub mod handover;

#[path = "../../virtq/src/memory/slot.rs"]
pub mod slot;

#[path = "../../dataplane/src/worker/mailbox/post.rs"]
pub mod post;

#[path = "../../virtq/src/notification.rs"]
pub mod notification;

#[path = "../../dataplane/src/table.rs"]
pub mod table;

#[path = "../../virtq/src/watchdog/stopwatch.rs"]
pub mod stopwatch;

#[path = "../../dataplane/src/acknowledged.rs"]
pub mod acknowledged;

#[path = "../../dataplane/src/policy/grants.rs"]
pub mod grants;

/// The switch's module.
pub mod policy {
    pub use crate::grants;
}

// The table names the switch's crate of reports.
extern crate self as memlane_model;

/// The switch's module.
pub mod loop_report {
    /// Seconds for which an address that moved too often is held at one port.
    pub const HOLD: u32 = 10;
}

/// The switch's module.
pub mod time {
    /// A moment or a span.
    pub type Cycles = u64;

    /// A span.
    pub fn in_cycles(span: std::time::Duration) -> Cycles {
        span.as_nanos() as u64
    }
}

/// The part of frames that the table needs.
pub mod frame {
    /// An Ethernet address, as a number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct MacAddress(u64);

    impl MacAddress {
        /// The address with these bytes.
        pub fn new(bytes: [u8; 6]) -> Self {
            let [a, b, c, d, e, f] = bytes;
            Self(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
        }

        /// The address as a number.
        pub fn number(self) -> u64 {
            self.0
        }
    }
}
