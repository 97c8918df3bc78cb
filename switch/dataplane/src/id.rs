//! Identifiers of ports, segments, virtqueues, and the slots in which workers keep them. They depend on no other part of the
//! switch.

pub use memlane_virtq::id::{MAX_PORTS, PortId, Slot};

/// Most queue pairs of a port.
pub const MAX_PAIRS: u16 = 16;

/// Number of a segment in its network, below [`MAX_PORTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u16);

impl SegmentId {
    /// The id as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Direction of frames in a virtqueue, as seen from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Guest to switch.
    Transmit,
    /// Switch to guest.
    Receive,
}

/// Identifies a virtqueue of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingKey {
    /// Port of the virtqueue.
    pub port: PortId,
    /// Which queue pair.
    pub pair: u16,
    /// Transmit or receive.
    pub direction: Direction,
}

/// Destination of frames for one queue of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The worker that owns the virtqueue.
    pub worker: u8,
    /// The egress queue's slot there.
    pub slot: Slot,
}
