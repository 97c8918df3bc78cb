//! Names of things, for everybody: ports, segments, rings, and the slots in which workers keep them. They know nothing else of the switch.

pub use memlane_virtq::id::{MAX_PORTS, PortId, Slot};

/// Most queue pairs of a port.
pub const MAX_PAIRS: u16 = 16;

/// Number of a segment in its network, below [`MAX_PORTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u16);

impl SegmentId {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Which way frames move in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Guest to switch.
    Transmit,
    /// Switch to guest.
    Receive,
}

/// Names a ring of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingKey {
    /// Whose.
    pub port: PortId,
    /// Which queue pair.
    pub pair: u16,
    /// Which of the two.
    pub direction: Direction,
}

/// Where frames for one queue of a port are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The worker that owns the ring.
    pub worker: u8,
    /// The outlet's slot there.
    pub slot: Slot,
}
