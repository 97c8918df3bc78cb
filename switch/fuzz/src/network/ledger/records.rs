//! The ledger against a recorder and a capture: each frame that was taken is in them once, in its order, with the outcome that it had.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use memlane::packet::TagChange;
use memlane::replay::Outcome;
use memlane::stats::DropReason;
use memlane::verdict;

use super::super::capture::Sights;
use super::super::frames::Frame;
use super::super::model::{Life, PortState, Verdict};
use super::super::recorder::{Log, Recorded};
use super::{Account, Ledger};

/// Expected content of a capture since the last comparison.
#[derive(Debug, Default)]
pub(super) struct Captured {
    /// Frames of each port in their order, and whether one was perhaps discarded without being read.
    pub(super) taken: BTreeMap<u16, VecDeque<(Frame, bool)>>,
    /// Transmit queues that stopped with a frame that backpressure had left there: when they go on, it is seen again.
    pub(super) repeated: BTreeMap<u16, usize>,
    /// Announcements of guests, which the switch makes: a port that may not make them has no frame for a capture.
    pub(super) announced: HashMap<Life, u64>,
    /// Frames that had arrived at each guest, and drops by reason.
    before: Vec<(u64, Vec<u64>)>,
    /// Guests with link emulation, of which each segment is seen by itself.
    pub(super) linked: BTreeSet<Life>,
}

impl Ledger {
    /// A recorder runs from now on, or none.
    pub fn record(&mut self, runs: bool) {
        self.recorded = runs.then(BTreeMap::new);
    }

    /// Compares the records of one worker of so many: each frame that it took has one, with a verdict of the model, but for the oldest ones that
    /// were overwritten.
    pub fn compare(&mut self, (worker, workers): (usize, usize), log: &Log) {
        let mut recorded = self.recorded.take().expect("a recorder");
        let mut missed = log.missed;
        for (port, frames) in recorded.iter_mut().filter(|(port, _)| usize::from(**port) % workers == worker) {
            let records: Vec<_> = log.frames.iter().filter(|record| record.port == *port).collect();
            let without = frames.len().checked_sub(records.len());
            let without = without.filter(|&without| without as u64 <= missed);
            let counts = (records.len(), frames.len());
            let Some(without) = without else { panic!("port {port} has {counts:?} records and frames, {missed} may be missing") };
            missed -= without as u64;
            for ((frame, verdicts), record) in frames.drain(..).skip(without).zip(records) {
                let is_right = verdicts.iter().any(|verdict| self.agrees(&frame, verdict, &record.outcome));
                assert!(is_right && is_of(record, &frame), "{record:?} of port {port}, {verdicts:?} are right: {frame:?}");
            }
        }
        let known = |record: &Recorded| recorded.contains_key(&record.port);
        assert!(log.frames.iter().all(known), "a record is of a frame that was not taken");
        self.recorded = Some(recorded);
    }

    /// Whether the verdict on a frame has this outcome.
    fn agrees(&self, frame: &Frame, verdict: &Verdict, outcome: &Outcome) -> bool {
        let (of, tag) = match (verdict, outcome) {
            (
                Verdict::Drop(reason),
                Outcome::Early(other) | Outcome::Limited(other) | Outcome::Verdict(verdict::Verdict::Drop(other)),
            ) => {
                return reason == other;
            }
            (Verdict::Flood(..), Outcome::Verdict(verdict::Verdict::Flood)) => return true,
            (Verdict::To(to, tag), _) => (*to, *tag),
            _ => return false,
        };
        let (port, becomes) = match *outcome {
            Outcome::Verdict(verdict::Verdict::To(port)) => (port, frame.tag),
            Outcome::Verdict(verdict::Verdict::Retagged(port, TagChange::Push(vlan))) => (port, vlan),
            Outcome::Verdict(verdict::Verdict::Retagged(port, TagChange::Pop)) => (port, 0),
            _ => return false,
        };
        // The settings of a port that is gone are not known any more.
        let is_gone = self.accounts[of].is_over;
        self.accounts[of].ports.last().is_some_and(|(to, _)| to.id == port) && (is_gone || tag == becomes)
    }

    /// A capture runs from now on, or none.
    pub fn capture(&mut self, runs: bool) {
        self.captured = runs.then(Captured::default);
        if runs {
            self.count_for_capture();
        }
    }

    fn count_for_capture(&mut self) {
        let drops = |account: &Account| DropReason::ALL.iter().map(|&reason| account.dropped(reason)).collect();
        let before = self.accounts.iter().map(|account| (account.complete, drops(account))).collect();
        let is_linked = |port: &&PortState| port.settings.link.is_some();
        let linked = self.config().ports.iter().flatten().filter(is_linked).map(|port| port.life).collect();
        self.captured = Some(Captured { before, linked, ..Captured::default() });
    }

    /// Compares a capture with the frames that were taken, arrived, and were dropped since the last comparison. No frame is in flight.
    pub fn compare_capture(&mut self, sights: &BTreeMap<u16, Sights>) {
        let mut captured = self.captured.take().expect("a capture");
        for (port, seen) in sights {
            let repeated = captured.repeated.get(port).copied().unwrap_or(0);
            compare_transmitted(*port, seen, captured.taken.remove(port).unwrap_or_default(), repeated);
            let lives = self.accounts.iter().enumerate();
            let lives: Vec<_> =
                lives.filter(|(_, account)| account.ports.last().is_some_and(|(known, _)| known.id.0 == *port)).collect();
            let before = |life: Life| captured.before.get(life).cloned().unwrap_or_else(|| (0, vec![0; DropReason::ALL.len()]));
            let arrived: u64 = lives.iter().map(|(life, account)| account.complete - before(*life).0).sum();
            let is_exact = lives.iter().all(|(life, _)| !captured.linked.contains(life)) && seen.missed == 0;
            assert!(
                !is_exact || seen.received == arrived,
                "{arrived} frames arrived at port {port}, {} are captured",
                seen.received
            );
            // The counters of a port that is gone are gone too.
            let is_exact = is_exact && lives.iter().all(|(_, account)| !account.is_over);
            for (at, reason) in DropReason::ALL.iter().enumerate().filter(|_| is_exact) {
                let counted: u64 = lives.iter().map(|(life, account)| account.dropped(*reason) - before(*life).1[at]).sum();
                let told = seen.dropped.get(reason).copied().unwrap_or(0);
                let announced: u64 = lives.iter().filter_map(|(life, _)| captured.announced.get(life)).sum();
                let is_right = told <= counted && counted <= told + announced;
                assert!(is_right, "{counted} frames are counted as {} at port {port}, {told} are captured", reason.name());
            }
        }
        let unread = captured.taken.values().flatten().all(|(_, may_be_unread)| *may_be_unread);
        assert!(unread, "frames that were taken are not captured: {:?}", captured.taken.keys());
        self.count_for_capture();
    }
}

/// Whether the record is of this frame; that of one that was not read has no bytes.
fn is_of(record: &Recorded, frame: &Frame) -> bool {
    let bytes = frame.bytes(frame.tag);
    record.length == 0 || record.length == bytes.len() && bytes.starts_with(&record.headers)
}

/// Each of these frames of a port that was read is in the capture, in its order, but for those that found no room; and up to so many are there again.
fn compare_transmitted(port: u16, seen: &Sights, mut taken: VecDeque<(Frame, bool)>, mut repeated: usize) {
    let mut missed = seen.missed;
    for (start, length) in &seen.transmitted {
        loop {
            let Some((frame, may_be_unread)) = taken.front() else {
                assert!(repeated > 0, "port {port}: a frame is captured that was not taken: {start:02x?}");
                repeated -= 1;
                break;
            };
            let bytes = frame.bytes(frame.tag);
            if bytes.len() == *length && bytes.starts_with(start) {
                taken.pop_front();
                break;
            }
            if !may_be_unread && missed == 0 {
                assert!(repeated > 0, "port {port}: {start:02x?} is captured in place of {bytes:02x?}");
                repeated -= 1;
                break;
            }
            missed -= u64::from(!may_be_unread);
            taken.pop_front();
        }
    }
    let left = taken.iter().filter(|(_, may_be_unread)| !may_be_unread).count();
    assert!(left as u64 <= missed, "{left} frames of port {port} are not captured, {missed} found no room");
}
