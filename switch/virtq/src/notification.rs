//! Notification state of a ring: detects lost kicks and interrupts, delays interrupts (interrupt coalescing), and repeats them for
//! stalled drivers.
//!
//! - **Lost-notification check** of a ring that fell quiet. A driver adds an entry to the available ring, then reads whether the
//!   device wants a kick; it requests an interrupt, then reads whether there is a used entry. Between the two it must execute a
//!   full fence (virtio 1.4, section 2.7.13.4.1), as the device does. Without a fence, each side may read the other's old state,
//!   and neither notifies the other, for ever. Such drivers exist: QEMU 7.2, where it translates instructions (TCG), leaves out the
//!   fences of guests with one processor. A notification can be lost only while a ring falls quiet: so the ring is checked a few
//!   times, and then no more, and an idle network has no periodic wake-ups.
//! - **Interrupt coalescing** of TX completions: a driver has no use for a completed transmit buffer at once, and reaps it without
//!   an interrupt when a received frame comes before, because Linux cleans its transmit queue then. So the interrupt is delayed,
//!   and a guest that exchanges requests and answers gets half as many.
//! - **A stalled receiver**, which takes nothing though more frames are enqueued for it, is interrupted again, each time after
//!   twice as long.

use std::time::Duration;

use crate::time::{Cycles, in_cycles};

/// Maximum of doublings of the interval between repeated interrupts.
const DOUBLINGS: u32 = 10;

/// Intervals of notifications, in cycles.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    /// Between two lost-notification checks of a ring that fell quiet.
    pub look: Cycles,
    /// Interrupt coalescing: maximum delay of an interrupt.
    pub put_off: Cycles,
    /// Time after which a stalled driver is interrupted again for the first time.
    pub call_again: Cycles,
}

impl Default for Spans {
    /// The delay of coalesced interrupts is longer than most answers take between two guests, and no longer: on User Mode Linux
    /// (7.2) an interrupt for an answer is lost now and then, and only the next interrupt wakes the guest.
    fn default() -> Self {
        Self {
            look: in_cycles(Duration::from_millis(50)),
            put_off: in_cycles(Duration::from_micros(125)),
            call_again: in_cycles(Duration::from_millis(1)),
        }
    }
}

/// A notification that seems lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The driver added entries, and a kick was requested.
    Kick,
    /// The driver requests an interrupt for an entry that was published already. Some drivers take the entry and leave the request
    /// as it was: their interrupt is in vain.
    Call,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotificationState {
    /// No check is pending: the ring was checked as often as needed, or was never used.
    #[default]
    Settled,
    /// The ring was used, and not checked since.
    Unseen,
    /// The ring was checked once, perhaps right after it was used.
    Seen,
    /// A notification seems lost, or is on its way.
    Doubted,
    /// Interrupt coalescing: the interrupt for entries before used index `shown` can wait until `due`.
    PutOff {
        /// Published used index when the interrupt was delayed.
        shown: u16,
        /// When it is sent.
        due: Cycles,
    },
    /// The driver takes nothing though frames are enqueued for it.
    Stuck {
        /// Since when.
        since: Cycles,
        /// Interrupts since then.
        calls: u32,
        /// When the next is sent.
        due: Cycles,
    },
}

impl NotificationState {
    /// Entries were published or taken. True if no check was pending: the ring is to be checked after [`Spans::look`], or sooner.
    #[inline]
    pub fn happened(&mut self) -> bool {
        let was = *self;
        if matches!(was, Self::Settled | Self::Seen | Self::Doubted) {
            *self = Self::Unseen;
        }
        was == Self::Settled
    }

    /// Lost-notification check, with `missed` finding a notification that seems lost; returns the one that seemed lost in two
    /// checks.
    pub fn look(&mut self, missed: impl FnOnce() -> Option<Missed>) -> Option<Missed> {
        match *self {
            Self::Unseen => *self = Self::Seen,
            Self::Seen => *self = if missed().is_some() { Self::Doubted } else { Self::Settled },
            Self::Doubted => {
                *self = Self::Settled;
                return missed();
            }
            Self::Settled | Self::PutOff { .. } | Self::Stuck { .. } => {}
        }
        None
    }

    /// Interrupt coalescing: delays the interrupt for the entries up to used index `shown`; false if it was delayed long enough.
    pub fn put_off(&mut self, shown: u16, now: Cycles, spans: &Spans) -> bool {
        match *self {
            Self::PutOff { due, .. } => now < due,
            _ => {
                *self = Self::PutOff { shown, due: now.saturating_add(spans.put_off) };
                true
            }
        }
    }

    /// Used index for which the interrupt is delayed, if it is.
    pub fn put_off_at(&self) -> Option<u16> {
        if let Self::PutOff { shown, .. } = *self { Some(shown) } else { None }
    }

    /// The driver is interrupted, or needs no interrupt: true if one was delayed before.
    #[inline]
    pub fn told(&mut self) -> bool {
        let put_off = matches!(self, Self::PutOff { .. });
        if put_off {
            *self = Self::Unseen;
        }
        put_off
    }

    /// A frame is enqueued for the driver, which took nothing from `now` on, if it did before.
    pub fn stand_still(&mut self, now: Cycles, spans: &Spans) {
        if !matches!(self, Self::Stuck { .. }) {
            self.begin_to_stand(now, spans);
        }
    }

    /// More frames are enqueued for the driver; up to `now` it was not the cause, or took frames.
    pub fn begin_to_stand(&mut self, now: Cycles, spans: &Spans) {
        *self = Self::Stuck { since: now, calls: 0, due: now.saturating_add(spans.call_again) };
    }

    /// No frame is enqueued for the driver any more.
    #[inline]
    pub fn move_on(&mut self) {
        if matches!(self, Self::Stuck { .. }) {
            *self = Self::Unseen;
        }
    }

    /// Moment since which the driver takes nothing though frames are enqueued.
    #[inline]
    pub fn stuck_since(&self) -> Option<Cycles> {
        if let Self::Stuck { since, .. } = *self { Some(since) } else { None }
    }

    /// Whether the interrupt of a stalled driver is to be repeated; true once for each time.
    pub fn calls_again(&mut self, now: Cycles, spans: &Spans) -> bool {
        match self {
            Self::Stuck { calls, due, .. } if now >= *due => {
                *calls = calls.saturating_add(1);
                *due = now.saturating_add(spans.call_again << (*calls).min(DOUBLINGS));
                true
            }
            _ => false,
        }
    }

    /// The deadline of the next check or interrupt; `None` if there is none. A ring that fell quiet is checked a `look` after
    /// `now`.
    pub fn due(&self, now: Cycles, look: Cycles) -> Option<Cycles> {
        match *self {
            Self::Settled => None,
            Self::Unseen | Self::Seen | Self::Doubted => Some(now.saturating_add(look)),
            Self::PutOff { due, .. } | Self::Stuck { due, .. } => Some(due),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SPANS: Spans = Spans { look: 1000, put_off: 10, call_again: 100 };

    #[test]
    fn what_is_missed_for_two_looks_is_told_once() {
        let mut notification = NotificationState::default();
        assert!(notification.happened() && !notification.happened());
        for told in [None, None, Some(Missed::Kick), None, None] {
            assert_eq!(notification.look(|| Some(Missed::Kick)), told);
        }
        assert_eq!(notification.due(0, SPANS.look), None);
    }

    #[test]
    fn what_was_on_its_way_is_not_missed() {
        let mut notification = NotificationState::Unseen;
        for seen in [None, Some(Missed::Call), None, Some(Missed::Call)] {
            assert_eq!(notification.look(|| seen), None);
        }
        assert_eq!(notification, NotificationState::Settled);
    }

    #[test]
    fn a_ring_in_use_is_never_settled() {
        let mut notification = NotificationState::default();
        assert!(notification.happened());
        for _ in 0..10 {
            assert_eq!(notification.look(|| Some(Missed::Kick)), None);
            assert!(!notification.happened());
            assert_eq!(notification.due(5, SPANS.look), Some(1005));
        }
    }

    #[test]
    fn a_call_waits_and_then_comes_due() {
        let mut notification = NotificationState::Unseen;
        assert!(notification.put_off(7, 100, &SPANS) && notification.put_off(8, 109, &SPANS));
        assert!(!notification.happened() && notification.look(|| Some(Missed::Kick)).is_none());
        assert_eq!((notification.put_off_at(), notification.due(109, SPANS.look)), (Some(7), Some(110)));
        assert!(!notification.put_off(9, 110, &SPANS));
        assert!(notification.told() && !notification.told());
        assert_eq!(notification, NotificationState::Unseen);
    }

    #[test]
    fn who_takes_nothing_is_called_after_ever_longer_times() {
        let (mut notification, mut at) = (NotificationState::Unseen, Vec::new());
        notification.stand_still(0, &SPANS);
        notification.stand_still(50, &SPANS);
        let mut now = 0;
        while at.len() < 14 {
            now = notification.due(now, SPANS.look).unwrap();
            assert!(!notification.calls_again(now - 1, &SPANS) && notification.calls_again(now, &SPANS));
            assert!(!notification.calls_again(now, &SPANS), "said once");
            at.push(now);
        }
        let gaps: Vec<Cycles> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!((at[0], &gaps[..3], &gaps[9..]), (100, &[200, 400, 800][..], &[102_400; 4][..]));
        assert_eq!(notification.stuck_since(), Some(0));
    }

    #[test]
    fn who_was_stuck_once_is_looked_at_again_when_it_falls_quiet() {
        let mut notification = NotificationState::default();
        notification.stand_still(0, &SPANS);
        assert!(!notification.happened());
        notification.move_on();
        assert_eq!(notification.stuck_since(), None);
        for told in [None, None, Some(Missed::Call)] {
            assert_eq!(notification.look(|| Some(Missed::Call)), told);
        }
    }
}

/// A driver without the required fence, and a device with one: the checks find every lost notification.
#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU16, Ordering, fence};

    /// State of a ring with EVENT_IDX that driver and device share.
    #[derive(Default)]
    struct Shared {
        /// The driver's index.
        available: AtomicU16,
        /// The index at which the device requests a kick.
        kick_at: AtomicU16,
        /// The device's index.
        used: AtomicU16,
        /// The index at which the driver requests an interrupt.
        call_at: AtomicU16,
        /// Kicks and interrupts that were sent.
        kicks: AtomicU16,
        calls: AtomicU16,
    }

    /// No more than three checks, after which a lost notification is reported.
    fn look(notification: &mut NotificationState, mut missed: impl FnMut() -> Option<Missed>) -> Option<Missed> {
        let told = (0..3).find_map(|_| notification.look(&mut missed));
        assert_eq!(*notification, NotificationState::Settled);
        told
    }

    #[test]
    fn an_entry_that_was_added_while_we_fell_asleep_is_kicked_for_or_found() {
        loom::model(|| {
            let ring = Arc::new(Shared::default());
            // The device has seen no entry; its old request is for an entry far away.
            ring.kick_at.store(9, Ordering::Relaxed);
            let driver = {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || {
                    ring.available.store(1, Ordering::Release);
                    // Here the fence is missing.
                    if ring.kick_at.load(Ordering::Acquire) == 0 {
                        ring.kicks.store(1, Ordering::Relaxed);
                    }
                })
            };
            ring.kick_at.store(0, Ordering::Release);
            fence(Ordering::SeqCst);
            let seen = ring.available.load(Ordering::Acquire);
            driver.join().unwrap();
            let mut notification = NotificationState::Unseen;
            let told = look(&mut notification, || (ring.available.load(Ordering::Acquire) != seen).then_some(Missed::Kick));
            let kicked = ring.kicks.load(Ordering::Relaxed) == 1;
            assert!(seen == 1 || kicked || told == Some(Missed::Kick));
            assert_eq!(told.is_some(), seen == 0, "only what is there is told");
        });
    }

    #[test]
    fn what_a_driver_was_shown_while_it_fell_asleep_it_is_called_for_or_called_again() {
        loom::model(|| {
            let ring = Arc::new(Shared::default());
            ring.call_at.store(9, Ordering::Relaxed);
            let driver = {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || {
                    ring.call_at.store(0, Ordering::Release);
                    // Here the fence is missing.
                    let seen = ring.used.load(Ordering::Acquire);
                    if seen == 1 {
                        // The driver takes the entry, and requests an interrupt for the next one.
                        ring.call_at.store(1, Ordering::Release);
                    }
                    seen
                })
            };
            ring.used.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if ring.call_at.load(Ordering::Acquire) == 0 {
                ring.calls.store(1, Ordering::Relaxed);
            }
            let seen = driver.join().unwrap();
            let mut notification = NotificationState::Unseen;
            let told = look(&mut notification, || (ring.call_at.load(Ordering::Acquire) == 0).then_some(Missed::Call));
            let called = ring.calls.load(Ordering::Relaxed) == 1;
            assert!(seen == 1 || called || told == Some(Missed::Call));
        });
    }
}
