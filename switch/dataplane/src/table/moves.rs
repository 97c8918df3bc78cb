//! Moves of MAC addresses between the ports of one broadcast domain: their number, and the last ones for events.
//!
//! A segment has one log for its life, which its tables share: a larger table replaces a smaller one. An address moves on the cold
//! path, so a locked counter and a lock that is only tried do for all workers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::LearnedAddress;
use crate::id::PortId;

/// Most moves that are kept until they are taken.
const KEPT: usize = 16;

/// A MAC address was learned at another port than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// The MAC address.
    pub learned_address: LearnedAddress,
    /// The port where it was.
    pub from: PortId,
    /// The port of its last frame.
    pub to: PortId,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MoveLog {
    count: AtomicU64,
    /// Moves since they were last taken, one an address.
    last: Mutex<Vec<Move>>,
    has_last: AtomicBool,
}

impl MoveLog {
    /// Counts `moved`, and keeps it if there is room.
    pub(crate) fn note(&self, moved: Move) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // A worker does not wait for another one, or for the thread that takes them.
        let Ok(mut last) = self.last.try_lock() else { return };
        if let Some(other) = last.iter_mut().find(|other| other.learned_address == moved.learned_address) {
            other.to = moved.to;
        } else if last.len() < KEPT {
            last.push(moved);
        } else {
            return;
        }
        drop(last);
        self.has_last.store(true, Ordering::Release);
    }

    /// Moves since the segment was made.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether an address moved since this was last asked.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_last.load(Ordering::Relaxed) && self.has_last.swap(false, Ordering::Acquire)
    }

    /// Takes the last moves: each address once, from where it was first to where it was last. An address that is back where it
    /// was is among them.
    pub(crate) fn take(&self) -> Vec<Move> {
        std::mem::take(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MacAddress;

    #[test]
    fn all_moves_are_counted_and_few_are_kept() {
        let log = MoveLog::default();
        let address = |n| MacAddress::new([2, 0, 0, 0, 0, n]).into();
        for (n, from, to) in [(1, 0, 1), (1, 1, 2), (2, 5, 6)] {
            log.note(Move { learned_address: address(n), from: PortId(from), to: PortId(to) });
        }
        assert!(log.has_moved() && !log.has_moved());
        let first = Move { learned_address: address(1), from: PortId(0), to: PortId(2) };
        assert_eq!(log.take(), [first, Move { learned_address: address(2), from: PortId(5), to: PortId(6) }]);
        for n in 0..100 {
            log.note(Move { learned_address: address(n), from: PortId(0), to: PortId(1) });
        }
        assert_eq!((log.take().len(), log.count()), (KEPT, 103));
    }
}
