//! Names of what a frame comes from: a port, and the slot in which a worker keeps the ring.

use std::fmt;

/// Most ports of a network.
pub const MAX_PORTS: usize = 4096;

/// Number of a port in its network, below [`MAX_PORTS`]. One that is gone leaves its number to a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Where a worker keeps something: an index, and how often it was used before. So a slot that is written down somewhere never means whoever has
/// the index by then.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// The slot at `index`, which others had `generation` times before, counted modulo 65536.
    #[inline]
    pub fn new(index: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(index))
    }

    /// Where it is.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// How many had the index before, modulo 65536.
    pub fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// What the next one is called that gets the index.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << 16))
    }

    /// As a number that names it, below 2^32.
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
