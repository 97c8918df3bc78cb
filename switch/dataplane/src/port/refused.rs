//! Frames that a rule about addresses refused: of each reason one is kept for an event, which names its addresses and the
//! configuration that would allow them.
//!
//! A worker notes a frame only while none of its reason is kept, so a guest that forges many costs no more than one load each.

#![expect(clippy::indexing_slicing, reason = "the position of a reason in an array of all")]

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memlane_model::journal::REPEAT_PAUSE;
use memlane_model::refused::Refused;

use crate::stats::DropReason;
use crate::verdict::identity::claimed;

/// Reasons of such refusals.
pub(crate) const REASONS: [DropReason; 4] =
    [DropReason::SpoofedSource, DropReason::SpoofedIp, DropReason::SpoofedArp, DropReason::NotAServer];

/// The refused frame that begins with `start`.
pub(crate) fn refused(start: &[u8]) -> Refused {
    let (mac, ip) = claimed(start);
    Refused { mac, ip }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RefusedLog {
    /// A bit for each reason of which a frame is kept.
    kept: AtomicU8,
    slots: Mutex<[Slot; REASONS.len()]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    frame: Option<Refused>,
    /// When the last event about the reason was told.
    told: Option<Instant>,
}

impl RefusedLog {
    /// Notes that the frame which begins with `start` was dropped for `reason`.
    pub(crate) fn note(&self, reason: DropReason, start: &[u8]) {
        let Some(index) = REASONS.iter().position(|&known| known == reason) else { return };
        if self.kept.load(Ordering::Relaxed) & 1 << index != 0 {
            return;
        }
        // A worker does not wait for another one, or for the thread that takes them.
        let Ok(mut slots) = self.slots.try_lock() else { return };
        slots[index].frame = Some(refused(start));
        self.kept.fetch_or(1 << index, Ordering::Relaxed);
    }

    /// Takes the frames of which an event is due at `now`: of each reason one a minute.
    pub(crate) fn take(&self, now: Instant) -> Vec<(DropReason, Refused)> {
        if self.kept.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        for (index, (slot, reason)) in slots.iter_mut().zip(REASONS).enumerate() {
            let is_due = slot.told.is_none_or(|told| now.saturating_duration_since(told) >= REPEAT_PAUSE);
            if let Some(frame) = slot.frame.take_if(|_| is_due) {
                slot.told = Some(now);
                self.kept.fetch_and(!(1 << index), Ordering::Relaxed);
                due.push((reason, frame));
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MacAddress;

    fn frame(last: u8) -> Vec<u8> {
        let mut bytes = vec![0xff; 14];
        bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, last]);
        bytes
    }

    #[test]
    fn one_frame_a_minute_and_reason_is_told() {
        let (log, start) = (RefusedLog::default(), Instant::now());
        assert!(log.take(start).is_empty());
        (1..100).for_each(|n| log.note(DropReason::SpoofedSource, &frame(n)));
        log.note(DropReason::Storm, &frame(1));
        let first = refused(&frame(1));
        assert_eq!((first.mac, first.ip), (MacAddress::new([2, 0, 0, 0, 0, 1]), None));
        assert_eq!(log.take(start), [(DropReason::SpoofedSource, first)]);
        log.note(DropReason::SpoofedSource, &frame(7));
        log.note(DropReason::SpoofedIp, &frame(8));
        assert_eq!(log.take(start + REPEAT_PAUSE / 2).iter().map(|told| told.0).collect::<Vec<_>>(), [DropReason::SpoofedIp]);
        assert_eq!(log.take(start + REPEAT_PAUSE), [(DropReason::SpoofedSource, refused(&frame(7)))]);
    }
}
