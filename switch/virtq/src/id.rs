//! Identifiers of a frame's origin: a port, and the slot in which a worker keeps the ring.

use std::fmt;

/// Most ports of a network.
pub const MAX_PORTS: usize = 4096;

/// Largest split ring, in descriptors (virtio 1.4, section 2.7).
pub const MAX_SIZE: u16 = 32768;

/// Number of a port in its network, below [`MAX_PORTS`]. The number of a removed port is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// The number of the port as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A worker's place for a source or an outlet: an index, and how often it was used before. So a stored slot never means a later
/// tenant of the index.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// The slot at `index` after `generation` earlier tenants, counted modulo 65536.
    #[inline]
    pub fn new(index: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(index))
    }

    /// Index of the virtqueue.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// Number of earlier tenants of the index, modulo 65536.
    pub fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The slot of the next tenant of the index.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << 16))
    }

    /// The key as a unique number below 2^32.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The slot with this number.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({}#{})", self.index(), self.generation())
    }
}
