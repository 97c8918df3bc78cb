//! What a ring's driver has perhaps not heard of, or we of it: one state a ring, "shown, not yet looked at, try at this moment".
//!
//! - **A ring that fell quiet** is looked at again, for notifications get lost. A driver adds an entry, then reads whether we want a kick; it says
//!   that it wants a call, then reads whether there is something for it. Between the two it owes a full fence (virtio 1.4, section
//!   2.7.13.4.1), as we do. Where it has none, each side may read the other's state of before, and neither tells the other, for ever. Such
//!   drivers exist: QEMU 7.2, where it translates instructions (TCG), leaves out the fences of guests with one processor. That can happen only
//!   while a ring falls quiet: so it is looked at a few times, and then no more, and an idle network sleeps.
//! - **A guest that may lose an interrupt** as it goes to sleep, as on User Mode Linux (7.2), which then sleeps until its next timer, has its
//!   receive queues looked at soon and is called again.
//! - **A call that can wait** is put off: a driver that gets a sent frame back is in no hurry, and hears of it for nothing when something for
//!   it to receive comes before, for Linux looks after its sent frames then. So who exchanges requests and answers is called half as often.
//! - **A receiver that takes nothing** though more waits for it is called again, each time after twice as long.

use std::time::Duration;

use crate::time::{Cycles, in_cycles};

/// How often a wait for the next call is doubled at most.
const DOUBLINGS: u32 = 10;

/// How long things may take, in cycles.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    /// Between two looks at a ring that fell quiet.
    pub look: Cycles,
    /// The same, where its driver may lose the interrupt that it waits for.
    pub look_soon: Cycles,
    /// That a call is put off at most.
    pub put_off: Cycles,
    /// After which a driver that takes nothing is called for the first time.
    pub call_again: Cycles,
}

impl Default for Spans {
    /// A call may be put off for longer than most answers take between two guests, and no longer: on User Mode Linux (7.2) an interrupt for an answer is
    /// lost now and then, and the next call is what wakes the guest.
    fn default() -> Self {
        Self {
            look: in_cycles(Duration::from_millis(50)),
            look_soon: in_cycles(Duration::from_micros(200)),
            put_off: in_cycles(Duration::from_micros(125)),
            call_again: in_cycles(Duration::from_millis(1)),
        }
    }
}

/// What seems to have got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The driver added entries, and was asked for a kick.
    Kick,
    /// The driver asks to hear of something that it was shown. Some take it and leave their wish as it was: they are called in vain.
    Call,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    /// Nothing is open: it was looked at as often as needed, or nothing ever happened.
    #[default]
    Settled,
    /// Something happened, and it was not looked at since.
    Unseen,
    /// It was looked at once. That may have been right after something happened.
    Seen,
    /// Something seems to be missed, or is on its way.
    Doubted,
    /// The call for entries before used index `shown` can wait until `due`.
    PutOff {
        /// What the driver was shown when the call was put off.
        shown: u16,
        /// When it is made.
        due: Cycles,
    },
    /// It takes nothing though something waits.
    Stuck {
        /// Since when.
        since: Cycles,
        /// Calls since then.
        calls: u32,
        /// When the next is due.
        due: Cycles,
    },
}

impl Notice {
    /// Something was shown or taken. True if it was settled before: it is to be looked at after [`Spans::look`] or [`Spans::look_soon`].
    #[inline]
    pub fn happened(&mut self) -> bool {
        let was = *self;
        if matches!(was, Self::Settled | Self::Seen | Self::Doubted) {
            *self = Self::Unseen;
        }
        was == Self::Settled
    }

    /// Another look, which finds what seems to be `missed`; returns what has been missed for two looks.
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

    /// Has the call wait for what the driver was `shown` since the last one; false if it has waited long enough.
    pub fn put_off(&mut self, shown: u16, now: Cycles, spans: &Spans) -> bool {
        match *self {
            Self::PutOff { due, .. } => now < due,
            _ => {
                *self = Self::PutOff { shown, due: now.saturating_add(spans.put_off) };
                true
            }
        }
    }

    /// What the driver was shown when its call was put off, if it was.
    pub fn put_off_at(&self) -> Option<u16> {
        if let Self::PutOff { shown, .. } = *self { Some(shown) } else { None }
    }

    /// The driver is called, or need not be: true if that was put off before.
    #[inline]
    pub fn told(&mut self) -> bool {
        let put_off = matches!(self, Self::PutOff { .. });
        if put_off {
            *self = Self::Unseen;
        }
        put_off
    }

    /// Something waits for the driver, which took nothing from `now` on, if it did before.
    pub fn stand_still(&mut self, now: Cycles, spans: &Spans) {
        if !matches!(self, Self::Stuck { .. }) {
            self.begin_to_stand(now, spans);
        }
    }

    /// More waits for the driver; up to `now` it was not at fault, or took something.
    pub fn begin_to_stand(&mut self, now: Cycles, spans: &Spans) {
        *self = Self::Stuck { since: now, calls: 0, due: now.saturating_add(spans.call_again) };
    }

    /// Nothing waits for the driver any more.
    #[inline]
    pub fn move_on(&mut self) {
        if matches!(self, Self::Stuck { .. }) {
            *self = Self::Unseen;
        }
    }

    /// Since when the driver takes nothing though something waits.
    #[inline]
    pub fn stuck_since(&self) -> Option<Cycles> {
        if let Self::Stuck { since, .. } = *self { Some(since) } else { None }
    }

    /// Whether the driver is to be called again that takes nothing; said once.
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

    /// When to try again; `None` if there is nothing to try. What fell quiet is looked at a `look` after `now`.
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

    const SPANS: Spans = Spans { look: 1000, look_soon: 50, put_off: 10, call_again: 100 };

    #[test]
    fn what_is_missed_for_two_looks_is_told_once() {
        let mut notice = Notice::default();
        assert!(notice.happened() && !notice.happened());
        for told in [None, None, Some(Missed::Kick), None, None] {
            assert_eq!(notice.look(|| Some(Missed::Kick)), told);
        }
        assert_eq!(notice.due(0, SPANS.look), None);
    }

    #[test]
    fn what_was_on_its_way_is_not_missed() {
        let mut notice = Notice::Unseen;
        for seen in [None, Some(Missed::Call), None, Some(Missed::Call)] {
            assert_eq!(notice.look(|| seen), None);
        }
        assert_eq!(notice, Notice::Settled);
    }

    #[test]
    fn a_ring_in_use_is_never_settled() {
        let mut notice = Notice::default();
        assert!(notice.happened());
        for _ in 0..10 {
            assert_eq!(notice.look(|| Some(Missed::Kick)), None);
            assert!(!notice.happened());
            assert_eq!(notice.due(5, SPANS.look), Some(1005));
        }
    }

    #[test]
    fn a_call_waits_and_then_comes_due() {
        let mut notice = Notice::Unseen;
        assert!(notice.put_off(7, 100, &SPANS) && notice.put_off(8, 109, &SPANS));
        assert!(!notice.happened() && notice.look(|| Some(Missed::Kick)).is_none());
        assert_eq!((notice.put_off_at(), notice.due(109, SPANS.look)), (Some(7), Some(110)));
        assert!(!notice.put_off(9, 110, &SPANS));
        assert!(notice.told() && !notice.told());
        assert_eq!(notice, Notice::Unseen);
    }

    #[test]
    fn who_takes_nothing_is_called_after_ever_longer_times() {
        let (mut notice, mut at) = (Notice::Unseen, Vec::new());
        notice.stand_still(0, &SPANS);
        notice.stand_still(50, &SPANS);
        let mut now = 0;
        while at.len() < 14 {
            now = notice.due(now, SPANS.look).unwrap();
            assert!(!notice.calls_again(now - 1, &SPANS) && notice.calls_again(now, &SPANS));
            assert!(!notice.calls_again(now, &SPANS), "said once");
            at.push(now);
        }
        let gaps: Vec<Cycles> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!((at[0], &gaps[..3], &gaps[9..]), (100, &[200, 400, 800][..], &[102_400; 4][..]));
        assert_eq!(notice.stuck_since(), Some(0));
    }

    #[test]
    fn who_was_stuck_once_is_looked_at_again_when_it_falls_quiet() {
        let mut notice = Notice::default();
        notice.stand_still(0, &SPANS);
        assert!(!notice.happened());
        notice.move_on();
        assert_eq!(notice.stuck_since(), None);
        for told in [None, None, Some(Missed::Call)] {
            assert_eq!(notice.look(|| Some(Missed::Call)), told);
        }
    }
}

/// A driver without the fence that it owes, and a device that has it: whatever gets lost between the two, the looks find.
#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU16, Ordering, fence};

    /// What driver and device share of a ring with EVENT_IDX.
    #[derive(Default)]
    struct Shared {
        /// The driver's index.
        available: AtomicU16,
        /// From which one on we want a kick.
        kick_at: AtomicU16,
        /// Our index.
        used: AtomicU16,
        /// From which one on the driver wants a call.
        call_at: AtomicU16,
        /// Kicks and calls that were made.
        kicks: AtomicU16,
        calls: AtomicU16,
    }

    /// No more than three looks, by whose end what was missed is told.
    fn look(notice: &mut Notice, mut missed: impl FnMut() -> Option<Missed>) -> Option<Missed> {
        let told = (0..3).find_map(|_| notice.look(&mut missed));
        assert_eq!(*notice, Notice::Settled);
        told
    }

    #[test]
    fn an_entry_that_was_added_while_we_fell_asleep_is_kicked_for_or_found() {
        loom::model(|| {
            let ring = Arc::new(Shared::default());
            // What we have seen is nothing; the wish of before is for an entry far away.
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
            let mut notice = Notice::Unseen;
            let told = look(&mut notice, || (ring.available.load(Ordering::Acquire) != seen).then_some(Missed::Kick));
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
                        // It takes the entry, and asks for the next one.
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
            let mut notice = Notice::Unseen;
            let told = look(&mut notice, || (ring.call_at.load(Ordering::Acquire) == 0).then_some(Missed::Call));
            let called = ring.calls.load(Ordering::Relaxed) == 1;
            assert!(seen == 1 || called || told == Some(Missed::Call));
        });
    }
}
