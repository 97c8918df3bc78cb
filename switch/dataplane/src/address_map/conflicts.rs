//! Conflicts about IP addresses: their number, and the last ones for events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Entry, Key};
use crate::frame::MacAddress;
use crate::id::PortId;

/// Most conflicts that are kept until they are taken.
const KEPT: usize = 16;

/// A claim of an address that belongs to another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub key: Key,
    /// Owner of the address, as decided.
    pub owner: Entry,
    /// The port and the MAC address of the other.
    pub claimant: (PortId, MacAddress),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ConflictLog {
    count: AtomicU64,
    /// Conflicts since they were last taken, one an address.
    last: Mutex<Vec<Conflict>>,
    has_last: AtomicBool,
}

impl ConflictLog {
    /// Counts `conflict`, and keeps it if there is room.
    pub(super) fn note(&self, conflict: Conflict) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // A worker does not wait for another one, or for the thread that takes them.
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.len() == KEPT || last.iter().any(|other| other.key == conflict.key) {
            return;
        }
        last.push(conflict);
        drop(last);
        self.has_last.store(true, Ordering::Release);
    }

    /// Conflicts since the segment was made.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes the last conflicts: of each address the first.
    pub(crate) fn take(&self) -> Vec<Conflict> {
        if !self.has_last.load(Ordering::Relaxed) || !self.has_last.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets the conflicts of `port`: another port may get its number.
    pub(super) fn forget(&self, port: PortId) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|conflict| conflict.owner.port != port && conflict.claimant.0 != port);
    }
}
