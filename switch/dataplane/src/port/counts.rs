//! Counters of a port, added up over workers, and their recent growth.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::history::{Counted, Growth, History};
use super::{Port, PortState};
use crate::id::PortId;
use crate::shared::Shared;
use crate::stats::{PortCounters, PortTotals, totals};
use crate::time::{Cycles, cycles};

/// Counters of a port.
#[derive(Debug)]
pub(super) struct Counts {
    /// Counters of each worker.
    pub(super) counters: Box<[PortCounters]>,
    /// Stream frames with an incomplete checksum, without a header that says so.
    pub(super) undone_checksums: AtomicU64,
    /// Recent growth of its counters.
    pub(super) history: Mutex<History>,
}

impl Counts {
    /// Of a new port.
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            counters: std::iter::repeat_with(PortCounters::default).take(shared.workers.len()).collect(),
            undone_checksums: AtomicU64::new(0),
            history: Mutex::new(History::new(cycles())),
        }
    }
}

impl Port {
    /// The counters that worker `worker` writes.
    #[inline]
    pub fn counters(&self, worker: usize) -> &PortCounters {
        &self.counts.counters[worker]
    }

    /// Counters of the port, all workers' added up.
    pub fn totals(&self) -> PortTotals {
        PortTotals { undone_checksums: self.counts.undone_checksums.load(Ordering::Relaxed), ..totals(&self.counts.counters) }
    }

    /// Continues the counters and the state of an earlier process, before a worker serves the port.
    pub fn inherit(&self, totals: &PortTotals, quarantines: u64, quarantined: Option<String>) {
        if let Some(first) = self.counts.counters.first() {
            first.inherit(totals);
        }
        self.counts.undone_checksums.fetch_add(totals.undone_checksums, Ordering::Relaxed);
        self.history().inherit(|counted| self.count(counted));
        self.inherit_told(totals);
        let mut inner = self.inner();
        inner.quarantines += quarantines;
        if let Some(cause) = quarantined {
            inner.state = PortState::Quarantined(cause);
        }
    }

    /// Senders of the frames to it that were sampled last, at all workers, and when.
    pub fn senders(&self) -> impl Iterator<Item = (PortId, Cycles)> {
        self.counts.counters.iter().flat_map(PortCounters::senders)
    }

    /// Counts a stream frame with an incomplete checksum, without a header that says so.
    pub fn note_undone_checksum(&self) {
        self.counts.undone_checksums.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames that it has received from all workers.
    pub fn delivered(&self) -> u64 {
        self.counts.counters.iter().map(|counters| counters.receive_frames.get()).sum()
    }

    /// Bytes that it has received from all workers.
    pub(crate) fn delivered_bytes(&self) -> u64 {
        self.counts.counters.iter().map(|counters| counters.receive_bytes.get()).sum()
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.counts.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, counted: Counted) -> u64 {
        let sum = |count: &dyn Fn(&PortCounters) -> u64| self.counts.counters.iter().map(count).sum();
        match counted {
            Counted::Drop(reason) => sum(&|cell| cell.dropped(reason)),
            Counted::TransmitLimited => sum(&|cell| cell.transmit_limited.get()),
            Counted::ReceiveLimited => sum(&|cell| cell.receive_limited.get()),
            Counted::MissedKicks => sum(&|cell| cell.missed_kicks.get()),
            Counted::TurnedAway => self.inner().session.turned_away,
        }
    }

    /// Records the growth of its counters; workers were busy at `busy` for the last time.
    pub(crate) fn note_growth(&self, now: Cycles, busy: Cycles) {
        self.history().look(now, busy, |counted| self.count(counted));
    }

    /// Recent growth of a counter; `None` if it is zero.
    pub fn growth(&self, counted: Counted) -> Option<Growth> {
        self.history().growth(counted, cycles())
    }
}
