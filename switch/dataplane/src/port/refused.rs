//! Frames that a rule about addresses refused: of each reason one is kept for an event, which names its addresses and the
//! configuration that would allow them.
//!
//! A worker notes a frame only while none of its reason is kept, so a guest that forges many costs no more than one load each.

#![expect(clippy::indexing_slicing, reason = "the position of a reason in an array of all")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memlane_model::journal::REPEAT_PAUSE;

use crate::frame::MacAddress;
use crate::stats::DropReason;
use crate::verdict::identity::claimed;

/// Reasons of such refusals.
pub(crate) const REASONS: [DropReason; 4] =
    [DropReason::SpoofedSource, DropReason::SpoofedIp, DropReason::SpoofedArp, DropReason::NotAServer];

/// A refused frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The MAC address that it claims for its sender.
    pub mac: MacAddress,
    /// The IP address that it claims for its sender, if it shows one.
    pub ip: Option<IpAddr>,
}

impl Refused {
    /// The frame that begins with `start`.
    pub(crate) fn of(start: &[u8]) -> Self {
        let (mac, ip) = claimed(start);
        Self { mac, ip }
    }

    /// The key of the port that could allow the frame, which was refused for `reason`; `is_own` tells if its MAC address is the port's `mac`.
    pub(crate) fn remedy_key(&self, reason: DropReason, is_own: bool) -> Option<&'static str> {
        match (reason, self.ip) {
            (DropReason::NotAServer, Some(_)) => Some("may-serve"),
            (DropReason::SpoofedSource, _) => Some("allowed"),
            (_, Some(_)) if is_own => Some("addresses"),
            (_, Some(_)) => Some("allowed"),
            (_, None) => None,
        }
    }

    /// The configuration of the port that would allow the frame: [`Self::remedy_key`] and its value.
    pub(crate) fn remedy(&self, reason: DropReason, is_own: bool) -> String {
        let Some(key) = self.remedy_key(reason, is_own) else { return "none: the frame hides its addresses".into() };
        let mac = self.mac;
        let value = match (key, self.ip) {
            ("may-serve", _) => "[\"dhcp\", \"ra\"]".into(),
            ("addresses", Some(ip)) => format!("[\"{ip}\"]"),
            (_, Some(ip)) if reason != DropReason::SpoofedSource => format!("[{{ mac = \"{mac}\", ip = \"{ip}\" }}]"),
            _ => format!("[{{ mac = \"{mac}\" }}]"),
        };
        format!("{key} = {value}")
    }
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
        slots[index].frame = Some(Refused::of(start));
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
        let first = Refused::of(&frame(1));
        assert_eq!((first.mac, first.ip), (MacAddress::new([2, 0, 0, 0, 0, 1]), None));
        assert_eq!(log.take(start), [(DropReason::SpoofedSource, first)]);
        log.note(DropReason::SpoofedSource, &frame(7));
        log.note(DropReason::SpoofedIp, &frame(8));
        assert_eq!(log.take(start + REPEAT_PAUSE / 2).iter().map(|told| told.0).collect::<Vec<_>>(), [DropReason::SpoofedIp]);
        assert_eq!(log.take(start + REPEAT_PAUSE), [(DropReason::SpoofedSource, Refused::of(&frame(7)))]);
    }

    #[test]
    fn the_line_that_would_allow_a_frame_is_told() {
        let (mac, ip) = (MacAddress::new([0, 0, 0x5e, 0, 1, 7]), "10.0.0.100".parse().ok());
        let refused = Refused { mac, ip };
        assert_eq!(
            refused.remedy(DropReason::SpoofedArp, false),
            "allowed = [{ mac = \"00:00:5e:00:01:07\", ip = \"10.0.0.100\" }]"
        );
        assert_eq!(refused.remedy(DropReason::SpoofedIp, true), "addresses = [\"10.0.0.100\"]");
        assert_eq!(refused.remedy(DropReason::SpoofedSource, false), "allowed = [{ mac = \"00:00:5e:00:01:07\" }]");
        assert_eq!(refused.remedy(DropReason::NotAServer, true), "may-serve = [\"dhcp\", \"ra\"]");
        assert_eq!(Refused { ip: None, ..refused }.remedy(DropReason::SpoofedIp, true), "none: the frame hides its addresses");
    }
}
