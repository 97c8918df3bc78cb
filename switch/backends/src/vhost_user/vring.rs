//! The setup of one virtqueue, collected message by message.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use thiserror::Error;
use vhost::vhost_user::message::FrontendReq as Request;

use super::features::Agreed;
use super::messages::WITHOUT_FILE;
use crate::id::{Direction, RingKey};
use crate::memory::{InflightRegion, MemoryMap, holes};
use crate::network::RingParts;
use crate::ring::shared::Misplaced;
use crate::ring::{Call, InflightQueue, SplitRing, StoppedRing, shared};
use crate::takeover::{Script, pair};
use crate::worker::{QueueFiles, Start};
use memlane_virtq::message::counted;

/// The front end's own addresses of descriptor table, available ring and used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// Why a virtqueue cannot start.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum VringError {
    #[error("a ring of {} is not a power of two up to 32768: set QEMU's rx_queue_size and tx_queue_size", counted(*.0, "descriptor"))]
    Size(u32),
    #[error("the ring lies outside guest memory")]
    Address,
    #[error("the ring is not aligned")]
    Alignment,
    #[error(
        "a vIOMMU translates the guest's addresses, which memlane does not support: remove iommu_platform=on (libvirt: iommu='on') from its \
         network device, or the vIOMMU (libvirt: <iommu>) from its machine"
    )]
    Translated,
}

/// How the driver notifies the device.
#[derive(Debug)]
pub(super) enum Kick {
    /// By kicks, through an eventfd.
    File(File),
    /// Not at all: the device is to poll the available ring.
    Poll,
}

#[derive(Debug, Default)]
pub(super) struct Vring {
    pub size: u16,
    pub addresses: Option<Addresses>,
    /// Where the front end, or the queue when it stopped, says to resume. The queue actually resumes at the used index in its
    /// memory.
    pub base: u16,
    pub kick: Option<Kick>,
    pub call: Option<Call>,
    /// Guest address at which writes to the used ring are logged (VHOST_VRING_F_LOG), where the front end states it.
    pub log_address: Option<u64>,
    /// Enabled by message; without protocol features a virtqueue needs no such message.
    pub enabled: bool,
    pub running: bool,
    /// The front end reuses the memory of a virtqueue that it has disabled, without GET_VRING_BASE: User Mode Linux, which alone is
    /// interrupted through a socket (`arch/um/drivers/virtio_uml.c`, `vu_del_vqs`).
    pub ends_disabled: bool,
}

impl Vring {
    /// Whether the setup is complete. A queue of size zero is an unused one: DPDK announces those too.
    pub(super) fn is_complete(&self) -> bool {
        self.size > 0 && self.addresses.is_some() && self.kick.is_some()
    }

    /// Keeps base and interrupt eventfd of the virtqueue, which has `stopped`, for its next start; returns the base.
    pub(super) fn keep(&mut self, stopped: StoppedRing) -> u16 {
        (self.base, self.call) = (stopped.base, self.call.take().or(stopped.call));
        self.base
    }

    /// Checks a queue size from the front end; 0 for an unused queue.
    pub(super) fn check_size(size: u32) -> Result<u16, VringError> {
        match u16::try_from(size) {
            Ok(good) if good == 0 || good.is_power_of_two() && good <= shared::MAX_SIZE => Ok(good),
            _ => Err(VringError::Size(size)),
        }
    }

    /// Adds messages that set it up in another process. A virtqueue that runs has its descriptors at a worker: `queue`. One that was stopped by a
    /// fault does not run any more, and has the base and the interrupt `kept`.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn save(
        &self,
        index: u32,
        kept: Option<(u16, Option<OwnedFd>)>,
        (queue, error): (Option<QueueFiles>, Option<OwnedFd>),
        script: &mut Script<'_>,
    ) -> io::Result<()> {
        let (base, kept_call) = kept.unwrap_or((self.base, None));
        let is_polled = queue.as_ref().map_or(matches!(self.kick, Some(Kick::Poll)), |queue| queue.kick.is_none());
        let (kick, call) = match queue {
            Some(queue) => (queue.kick, queue.call),
            None => {
                let kick = if let Some(Kick::File(file)) = &self.kick { Some(file.as_fd().try_clone_to_owned()?) } else { None };
                let own = self.call.as_ref().map(|call| call.descriptor().try_clone_to_owned()).transpose()?;
                (kick, own.or(kept_call))
            }
        };
        for (request, value) in [(Request::SET_VRING_NUM, self.size), (Request::SET_VRING_BASE, base)] {
            if value != 0 {
                script.say(request, &[pair(index, value.into())]);
            }
        }
        if let Some(Addresses { descriptors, available, used }) = self.addresses {
            let flags = u32::from(self.log_address.is_some());
            let log = self.log_address.unwrap_or_default();
            script.say(Request::SET_VRING_ADDR, &[pair(index, flags), descriptors, used, available, log]);
        }
        if self.enabled {
            script.say(Request::SET_VRING_ENABLE, &[pair(index, 1)]);
        }
        for (request, file) in [(Request::SET_VRING_ERR, error), (Request::SET_VRING_CALL, call), (Request::SET_VRING_KICK, kick)] {
            if let Some(file) = file {
                script.pass(request, &[index.into()], file);
            }
        }
        if is_polled {
            script.say(Request::SET_VRING_KICK, &[u64::from(index) | WITHOUT_FILE]);
        }
        Ok(())
    }

    /// The virtqueue's rings in `memory`.
    pub(super) fn locate(&self, memory: &MemoryMap) -> Result<SplitRing, VringError> {
        let addresses = self.addresses.ok_or(VringError::Address)?;
        SplitRing::locate(memory, [addresses.descriptors, addresses.available, addresses.used], self.size).map_err(|misplaced| {
            match misplaced {
                Misplaced::Outside => VringError::Address,
                Misplaced::Unaligned => VringError::Alignment,
            }
        })
    }

    /// The record of chains in flight of virtqueue `index`, which lies at `split`, if the front end keeps one.
    pub(super) fn inflight(
        &self,
        index: u32,
        region: Option<&Arc<InflightRegion>>,
        (split, agreed): (&SplitRing, Agreed),
    ) -> Option<InflightQueue> {
        let part = region?.part(index, self.size)?;
        let queue = InflightQueue::recover(part, split, agreed.ring().in_order);
        holes::settle_all();
        Some(queue)
    }

    /// The parts from which the network starts the virtqueue; takes the kick and interrupt descriptors.
    pub(super) fn parts(&mut self, key: RingKey, agreed: Agreed, memory: &Arc<MemoryMap>) -> Result<RingParts, VringError> {
        let translated =
            |error| if error == VringError::Address && agreed.access_platform() { VringError::Translated } else { error };
        let split = self.locate(memory).map_err(translated)?;
        // The used index says where to resume: a queue that starts has no descriptor chain in flight, so as many were taken as
        // were used. Front ends state other bases: Cloud Hypervisor the available index, which counts buffers that are still
        // posted; DPDK's virtio-user 0.
        let (base, _) = memory.settled(|| split.used_index());
        let (_, is_hole) = memory.settled(|| split.available_index());
        if is_hole && (self.base != 0 || base != 0) {
            // The driver has made chains available, in memory that is a hole now.
            memory.note_filling();
        }
        // A virtqueue that ran before, or was filled before it started, may get no further kick: its driver kicked when it filled
        // the available ring.
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
            log: None,
            inflight: None,
            offloads,
            mergeable: agreed.mergeable(),
            start: Start { kick, at_once: resumed || polled, enabled: self.enabled || !agreed.protocol(), session: 0 },
        })
    }
}
