//! Logs and events of a port: actions of its guest, its front end and its rules. Each kind is bounded, so that no guest fills the log or the journal.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use memlane_model::denials::PortDenials;

use super::events::{EventLog, ToldCount};
use super::refused::RefusedLog;
use super::{Port, PortState};
use crate::denials::Denials;
use crate::journal::{Journal, NetworkEvent};
use crate::shared::Shared;
use crate::stats::{DropReason, PortCounters, PortTotals};
use crate::time::cycles;
use crate::trial::Trials;

/// Log lines about a port's front ends a second, see [`EventLog`].
const EVENTS: u64 = 2;
/// Log lines of their messages a second, where those are logged at all.
const MESSAGES: u64 = 100;

/// What is told of a port, and what was told already.
#[derive(Debug)]
pub(crate) struct Reports {
    /// What happens to it is told here.
    pub(super) journal: Arc<Journal>,
    /// Reasons for which the first drop was told, by their numbers.
    pub(super) told_drops: AtomicU64,
    /// Limits of the port, as they were last told of.
    pub(super) told_limits: Mutex<[ToldCount; 2]>,
    /// Frames of its guest that a rule about addresses refused.
    pub(super) refused: RefusedLog,
    /// Frames of its guest that policy rules refused.
    pub(crate) denials: Denials,
    /// Log lines and events about its front ends.
    pub(super) events: EventLog,
    /// Events of its states.
    pub(super) states: EventLog,
    /// Log lines of messages of its front ends.
    pub(super) conversation: EventLog,
}

impl Reports {
    /// Of a new port.
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            journal: Arc::clone(&shared.journal),
            told_drops: AtomicU64::new(0),
            told_limits: Mutex::default(),
            refused: RefusedLog::default(),
            denials: Denials::default(),
            events: EventLog::new(EVENTS),
            states: EventLog::new(EVENTS),
            conversation: EventLog::new(MESSAGES),
        }
    }
}

impl Port {
    /// Before the takeover, events told of these counters and drop reasons: no event after it does again.
    pub(super) fn inherit_told(&self, totals: &PortTotals) {
        let is_told = |reason: &&DropReason| totals.drops.get(reason.name()).is_some_and(|frames| *frames > 0);
        let told = DropReason::ALL.iter().filter(is_told).fold(0, |bits, reason| bits | 1 << *reason as u32);
        self.reports.told_drops.fetch_or(told, Ordering::Relaxed);
        let mut limits = self.reports.told_limits.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = [totals.transmit_limited, totals.receive_limited];
        limits.iter_mut().zip(counts).for_each(|(told, count)| told.inherit(count));
    }

    /// Tells of a state that it was not in before; what else leads to one is told by itself.
    pub(super) fn tell_state(&self, state: &PortState) {
        let port = self.name.clone();
        let event = match state {
            PortState::Running => NetworkEvent::PortRunning { port },
            PortState::Quarantined(cause) => NetworkEvent::PortQuarantined { port, cause: cause.clone() },
            PortState::Waiting | PortState::Speaking | PortState::Gone => return,
        };
        self.tell_caused(event);
    }

    /// Adds an event that its guest can cause to the journal, unless there were too many.
    pub(crate) fn tell_caused(&self, event: NetworkEvent) {
        if let Some(left_out) = self.reports.states.admit() {
            self.tell(event, left_out);
        }
    }

    /// Adds `event` to the journal, after `left_out` of the port that were not.
    pub(super) fn tell(&self, event: NetworkEvent, left_out: u64) {
        if left_out > 0 {
            self.reports.journal.add(NetworkEvent::LeftOut { port: self.name.clone(), events: left_out });
        }
        self.reports.journal.add(event);
    }

    /// Tells of the first drops for each reason that were not told yet.
    pub(crate) fn tell_first_drops(&self) {
        const { assert!(DropReason::ALL.len() <= 64, "a bit a reason") };
        for &reason in DropReason::ALL {
            let bit = 1 << reason as u32;
            let frames = || self.counts.counters.iter().map(|counters| counters.dropped(reason)).sum::<u64>();
            if self.reports.told_drops.load(Ordering::Relaxed) & bit == 0
                && frames() > 0
                && self.reports.told_drops.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                let (port, reason) = (self.name.clone(), reason.name().into());
                self.reports.journal.add(NetworkEvent::FirstDrop { port, reason, frames: frames() });
            }
        }
    }

    /// Notes that a frame of its guest which begins with `start` was dropped for `reason`, for an event that names its addresses.
    #[cold]
    pub(crate) fn note_refused(&self, reason: DropReason, start: &[u8]) {
        self.reports.refused.note(reason, start);
    }

    /// Tells of frames that rules about addresses refused, once a minute for each reason.
    pub(crate) fn tell_refused(&self, now: Instant) {
        for (reason, refused) in self.reports.refused.take(now) {
            let is_own = self.segment.table().pinned(refused.mac) == Some(self.id);
            self.tell_caused(NetworkEvent::AddressRefused {
                port: self.name.clone(),
                reason: reason.name().into(),
                mac: refused.mac.to_string(),
                ip: refused.ip.map(|ip| ip.to_string()),
                allowed_by: refused.remedy(reason, is_own),
            });
        }
    }

    /// Tells of frames that policy rules refused.
    pub(crate) fn tell_denials(&self, now: Instant) {
        for denial in self.reports.denials.news(&self.name, now) {
            self.reports.journal.add(NetworkEvent::PolicyDenied { port: self.name.clone(), labels: self.policy.labels(), denial });
        }
    }

    /// Tells of frames that rules with the action "audit" would refuse.
    pub(crate) fn tell_audits(&self, trials: &Trials, now: Instant) {
        for denial in trials.news(self.id, &self.name, now) {
            self.reports.journal.add(NetworkEvent::PolicyAudited { port: self.name.clone(), labels: self.policy.labels(), denial });
        }
    }

    /// Frames of its guest that policy rules refused.
    pub(crate) fn denials(&self) -> PortDenials {
        self.reports.denials.list(&self.name, cycles())
    }

    /// Tells of limits that held frames back since they were last told of, once a minute each.
    pub(crate) fn tell_limits(&self, now: Instant) {
        let reached = |count: fn(&PortCounters) -> u64| self.counts.counters.iter().map(count).sum::<u64>();
        let limits =
            [("transmit", reached(|cell| cell.transmit_limited.get())), ("receive", reached(|cell| cell.receive_limited.get()))];
        let mut told = self.reports.told_limits.lock().unwrap_or_else(PoisonError::into_inner);
        for ((direction, count), told) in limits.into_iter().zip(told.iter_mut()) {
            if let Some(times) = told.news(count, now) {
                self.tell_caused(NetworkEvent::LimitReached { port: self.name.clone(), direction: direction.into(), times });
            }
        }
    }

    /// A line of the log about its front end.
    pub fn log(&self, line: fmt::Arguments) {
        if let Some(left_out) = self.reports.events.admit() {
            self.write_line(line, left_out, None);
        }
    }

    pub(super) fn write_line(&self, line: fmt::Arguments, left_out: u64, event: Option<&str>) {
        let left_out = (left_out > 0).then_some(left_out);
        tracing::info!(port = %self.name, event, left_out, "{}: {line}", self.name);
    }

    /// A line of the log about its front end, and the event that it tells of.
    pub(super) fn log_event(&self, line: fmt::Arguments, event: NetworkEvent) {
        if let Some(left_out) = self.reports.events.admit() {
            self.write_line(line, left_out, Some(event.name()));
            self.tell(event, left_out);
        }
    }

    /// A line of the log about messages of its front end, at the debug level (`MEMLANE_LOG=debug`).
    pub fn log_message(&self, message: fmt::Arguments) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        match self.reports.conversation.admit() {
            Some(0) => tracing::debug!(port = %self.name, "{}: {message}", self.name),
            Some(left_out) => tracing::debug!(port = %self.name, left_out, "{}: {message}", self.name),
            None => {}
        }
    }
}
