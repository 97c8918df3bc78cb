//! What is known of one ring, message by message.

use std::fs::File;
use std::sync::Arc;

use thiserror::Error;

use super::features::Agreed;
use crate::id::{Direction, RingKey};
use crate::memory::MemoryMap;
use crate::network::RingParts;
use crate::ring::shared::Misplaced;
use crate::ring::{Call, SplitRing, shared};
use crate::worker::Start;

/// The front end's own addresses of the three areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// Why a ring cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum VringError {
    #[error("a ring of {0} descriptors: a power of two up to 32768 works; for QEMU set rx_queue_size and tx_queue_size")]
    Size(u32),
    #[error("a ring outside guest memory")]
    Address,
    #[error("a ring that is not aligned")]
    Alignment,
    #[error(
        "the guest's addresses are translated by a vIOMMU, which memlane does not follow: take iommu_platform=on (libvirt: iommu='on') from its \
         network device, or the vIOMMU (libvirt: <iommu>) from its machine"
    )]
    Translated,
}

/// How the driver kicks.
#[derive(Debug)]
pub(super) enum Kick {
    /// Through a descriptor.
    File(File),
    /// Not at all: we are to poll.
    Poll,
}

#[derive(Debug, Default)]
pub(super) struct Vring {
    pub size: u16,
    pub addresses: Option<Addresses>,
    /// Where the front end, or the ring when it stopped, says to go on. What a ring starts at is the used index in its memory.
    pub base: u16,
    pub kick: Option<Kick>,
    pub call: Option<Call>,
    /// Enabled by message; without protocol features a ring needs none.
    pub enabled: bool,
    pub running: bool,
}

impl Vring {
    /// Whether enough is known to run. A ring of no descriptors is one that is not used: DPDK tells of those too.
    pub(super) fn is_complete(&self) -> bool {
        self.size > 0 && self.addresses.is_some() && self.kick.is_some()
    }

    /// Checks a size that the front end asks for; 0 for a ring that is not used.
    pub(super) fn check_size(size: u32) -> Result<u16, VringError> {
        match u16::try_from(size) {
            Ok(good) if good == 0 || good.is_power_of_two() && good <= shared::MAX_SIZE => Ok(good),
            _ => Err(VringError::Size(size)),
        }
    }

    /// The ring in `memory`.
    pub(super) fn locate(&self, memory: &MemoryMap) -> Result<SplitRing, VringError> {
        let addresses = self.addresses.ok_or(VringError::Address)?;
        SplitRing::locate(memory, [addresses.descriptors, addresses.available, addresses.used], self.size).map_err(|misplaced| {
            match misplaced {
                Misplaced::Outside => VringError::Address,
                Misplaced::Unaligned => VringError::Alignment,
            }
        })
    }

    /// What the network needs to start the ring; takes kick and call.
    pub(super) fn parts(&mut self, key: RingKey, agreed: Agreed, memory: &Arc<MemoryMap>) -> Result<RingParts, VringError> {
        let translated =
            |error| if error == VringError::Address && agreed.access_platform() { VringError::Translated } else { error };
        let split = self.locate(memory).map_err(translated)?;
        // The ring itself tells where to go on: nothing is in flight in one that begins, so what is used is what was taken. Front ends tell
        // other bases: Cloud Hypervisor the available index, which counts buffers that are posted still; DPDK's virtio-user 0.
        let base = split.used_index();
        // A ring that ran before, or was filled before it started, may never be kicked again: its driver was told when it filled it.
        let resumed = self.base != 0 || base != 0;
        let (kick, polled) = match self.kick.take() {
            Some(Kick::File(file)) => (Some(file), false),
            Some(Kick::Poll) | None => (None, true),
        };
        let offloads = match key.direction {
            Direction::Transmit => agreed.sender(),
            Direction::Receive => agreed.receiver(),
        };
        Ok(RingParts {
            key,
            split,
            memory: Arc::clone(memory),
            options: agreed.ring(),
            base,
            call: self.call.take(),
            offloads,
            mergeable: agreed.mergeable(),
            start: Start { kick, at_once: resumed || polled, enabled: self.enabled || !agreed.protocol(), session: 0 },
        })
    }
}
