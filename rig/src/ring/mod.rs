//! The driver's half of a split virtqueue (virtio 1.4, section 2.7).
//!
//! Nouns, in the order in which a buffer meets them:
//! 1. [`SharedRing`]: the three areas in guest memory (descriptor table, available ring, used ring) and raw access to
//!    every field of them. Hostile tests write any value through it.
//! 2. [`Iovec`]: a buffer segment: guest address, length, and which side may write there. Several make a descriptor chain.
//! 3. [`DriverRing`]: a well-behaved driver on a `SharedRing`: `prepare` (write a chain's descriptors), `offer` (put its
//!    head into the available ring), `publish` (show it), `kick_needed` (does the device ask for a notification?),
//!    `poll` (the next element of the used ring), `release` (take the descriptors back).
//!
//! Nothing here needs a socket: give the [`RingAddresses`] and the [`GuestMemory`](crate::memory::GuestMemory) to any
//! device in this process.

mod chains;
mod driver;
mod order;
mod shared;

pub use driver::{DriverRing, DriverState, Interrupts, RingError, RingOptions};
pub use shared::{RingAddresses, SharedRing};

/// Descriptor flag: the chain goes on at `next`.
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes here.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer holds a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// Flag of the available ring: the driver wants no interrupt.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no kick.
pub const USED_NO_NOTIFY: u16 = 1;
/// The largest split ring there may be.
pub const MAX_RING_SIZE: u16 = 32768;

/// A descriptor as it lies in memory (section 2.7.5), little endian on every machine that we run on.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// [`DESC_NEXT`], [`DESC_WRITE`], [`DESC_INDIRECT`].
    pub flags: u16,
    /// Index of the next descriptor, if `DESC_NEXT`.
    pub next: u16,
}

impl Descriptor {
    /// The 16 bytes of a table's entry, for tables that are written as plain memory.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// A buffer segment of a descriptor chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Iovec {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Whether the device writes there (else it reads).
    pub writable: bool,
}

impl Iovec {
    /// A buffer that the device reads.
    pub fn readable(address: u64, length: u32) -> Self {
        Self { address, length, writable: false }
    }

    /// A buffer that the device writes.
    pub fn writable(address: u64, length: u32) -> Self {
        Self { address, length, writable: true }
    }
}

/// An element of the used ring: a completed chain.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Head of the chain, as the device wrote it.
    pub head: u32,
    /// Bytes that the device wrote into the chain.
    pub length: u32,
}

/// Whether moving an index from `old` to `new` passes `event` (section 2.7.7.2, `vring_need_event`).
#[inline]
pub fn passes_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::passes_event;

    #[test]
    fn an_event_is_passed_when_it_lies_in_the_half_open_stretch() {
        assert!(passes_event(4, 5, 4));
        assert!(!passes_event(5, 5, 4));
        assert!(!passes_event(3, 5, 4));
        assert!(passes_event(65535, 2, 65530));
        assert!(!passes_event(2, 2, 65530));
    }
}
