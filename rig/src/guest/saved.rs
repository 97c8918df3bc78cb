//! A stopped guest as a monitor saves it: its memory and its driver's state, of which any number of guests go on.

use std::path::Path;

use crate::frontend::features::{self, Features};
use crate::ring::DriverState;

use super::{GuestBuilder, GuestError, ToyGuest};

/// A guest that was saved; see the module's page.
#[derive(Debug, Clone)]
pub struct SavedGuest {
    plan: GuestBuilder,
    features: Features,
    /// Guest address and bytes of each region.
    memory: Vec<(u64, Vec<u8>)>,
    pairs: Vec<SavedPair>,
}

#[derive(Debug, Clone)]
struct SavedPair {
    receive: (SavedQueue, Vec<u16>),
    transmit: (SavedQueue, Vec<Option<u16>>),
}

#[derive(Debug, Clone)]
struct SavedQueue {
    driver: DriverState,
    base: u16,
    /// Free buffers.
    free: Vec<u16>,
}

impl ToyGuest {
    /// Saves the guest, which was [stopped](Self::stop) and whose rings were laid out once only.
    ///
    /// # Errors
    /// [`GuestError::Memory`] when the memory was cut.
    pub fn save(&self) -> Result<SavedGuest, GuestError> {
        let region =
            |region: &crate::memory::Region| Ok((region.guest(), self.memory.bytes(region.guest(), region.size() as usize)?));
        let pair = |pair: &super::Pair| SavedPair {
            receive: (SavedQueue::of(&pair.receive.queue, &pair.receive.free), pair.receive.of_head.clone()),
            transmit: (SavedQueue::of(&pair.transmit.queue, &pair.transmit.free), pair.transmit.of_head.clone()),
        };
        Ok(SavedGuest {
            plan: self.plan.clone(),
            features: self.features,
            memory: self.memory.regions().iter().map(region).collect::<Result<_, GuestError>>()?,
            pairs: self.pairs.iter().map(pair).collect(),
        })
    }
}

impl SavedQueue {
    fn of(queue: &super::Queue, free: &[u16]) -> Self {
        Self { driver: queue.ring.state(), base: queue.base, free: free.to_vec() }
    }

    fn go_on(&self, queue: &mut super::Queue, free: &mut Vec<u16>) {
        queue.ring.set_state(&self.driver);
        queue.base = self.base;
        free.clone_from(&self.free);
    }
}

impl SavedGuest {
    /// A guest that goes on from here, with memory of its own, at the back end that listens at `path`.
    ///
    /// # Errors
    /// [`GuestError::NotOffered`] when the back end lacks features; any other [`GuestError`] of connection and handshake.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<ToyGuest, GuestError> {
        let mut guest = self.plan.clone().started(false).connect(path)?;
        guest.plan.start = self.plan.start;
        if guest.features != self.features {
            return Err(GuestError::NotOffered(features::names(self.features & !guest.features).join(", ")));
        }
        guest.make_pairs()?;
        for (address, bytes) in &self.memory {
            guest.memory.write(*address, bytes)?;
        }
        for (pair, saved) in guest.pairs.iter_mut().zip(&self.pairs) {
            let ((receive, heads), (transmit, sent)) = (&saved.receive, &saved.transmit);
            receive.go_on(&mut pair.receive.queue, &mut pair.receive.free);
            transmit.go_on(&mut pair.transmit.queue, &mut pair.transmit.free);
            pair.receive.of_head.clone_from(heads);
            pair.transmit.of_head.clone_from(sent);
        }
        guest.start()?;
        Ok(guest)
    }
}
