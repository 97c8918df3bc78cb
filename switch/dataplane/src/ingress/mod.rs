//! Ingress: transmit queues and TAPs, and a worker's state of each.
//!
//! - A [`Source`] is one of them: its ring or back end ([`Feed`]), its frames in flight, and why it takes no more frames at present
//!   ([`Blocked`]).
//! - [`Sources`] holds all of a worker. Interrupt coalescing of TX completions is handled here ([`Sources::call`]).

mod blocked;
mod feed;
mod source;
mod timer_poll;

use crate::id::{PortId, RingKey, RouteEntry, Slot};
use crate::notification::Spans;
use crate::policy::filter::Changed;
use crate::ring::{Ring, RingFault};
use crate::slots::Slots;
use crate::stats::PortCounters;
use crate::time::Cycles;
use crate::timers::Timers;
use crate::verdict::FlowCache;
pub(crate) use blocked::Blocked;
pub(crate) use feed::Feed;
pub(crate) use source::{Offer, PollState, Source, WhenBack};

/// All sources of a worker, by slot.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    slots: Slots<Source>,
    /// Slots to poll in every poll iteration.
    pub awake: Vec<Slot>,
    /// Slots with completions that are not published yet.
    pub touched: Vec<Slot>,
    /// Timers of the notification states.
    timers: Timers,
    spans: Spans,
}

impl Sources {
    pub(crate) fn add(&mut self, source: Source) -> Slot {
        self.slots.add(|_| source)
    }

    #[inline]
    pub(crate) fn get(&mut self, slot: Slot) -> Option<&mut Source> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn find(&self, key: RingKey) -> Option<Slot> {
        self.slots.find(|source| source.key == key)
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Source> {
        self.set_state(slot, PollState::Closed);
        self.timers.forget(slot);
        self.slots.remove(slot)
    }

    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (Slot, &mut Source)> {
        self.slots.iter_mut()
    }

    /// Empties the flow caches of ports whose frames rules judge otherwise now.
    #[cold]
    pub(crate) fn forget_verdicts(&mut self, changed: &Changed) {
        for (_, source) in self.slots.iter_mut() {
            if changed.concerns(source.port()) || source.flow_cache.is_concerned(changed) {
                source.flow_cache = FlowCache::default();
            }
        }
    }

    /// Another recorder begins: no source has a verdict that it knows.
    pub(crate) fn begin_recording(&mut self) {
        self.forget_verdicts(&Changed::All);
        self.slots.iter_mut().for_each(|(_, source)| source.last_decision = None);
    }

    pub(crate) fn set_state(&mut self, slot: Slot, state: PollState) {
        let Some(source) = self.slots.get_mut(slot) else { return };
        let old = std::mem::replace(&mut source.state, state);
        if old == state {
            return;
        }
        if old == PollState::Awake {
            self.awake.retain(|&other| other != slot);
        } else if state == PollState::Awake {
            self.awake.push(slot);
        }
    }

    /// Wakes a source that sleeps; one that was never started stays unstarted.
    pub(crate) fn wake(&mut self, slot: Slot) {
        if self.get(slot).is_some_and(|source| source.state == PollState::Asleep) {
            self.set_state(slot, PollState::Awake);
        }
    }

    /// A kick came for `slot`: wakes it, and starts it if it was not.
    pub(crate) fn kicked(&mut self, slot: Slot) {
        let Some(source) = self.get(slot) else { return };
        if let Some(WhenBack::Move(.., then @ PollState::Unstarted)) = &mut source.when_back {
            *then = PollState::Awake;
        } else if matches!(source.state, PollState::Unstarted | PollState::Asleep) {
            self.set_state(slot, PollState::Awake);
        }
    }

    /// Takes no more chains from `slot`, nor after its ring has moved: its port broke a ring.
    pub(crate) fn close(&mut self, slot: Slot) {
        if let Some(Source { when_back: Some(WhenBack::Move(.., then)), .. }) = self.get(slot) {
            *then = PollState::Closed;
        }
        self.set_state(slot, PollState::Closed);
    }

    /// Ends the backpressure of frames for `entry`: that ring is gone.
    pub(crate) fn forget_backpressured(&mut self, entry: RouteEntry) {
        for (_, source) in self.slots.iter_mut() {
            source.backpressured = source.backpressured.filter(|backpressured| backpressured.entry != entry);
        }
    }

    /// Busy polling of recently active sources: wakes those that sleep and had frames after moment `since`, without waiting for a
    /// kick.
    pub(crate) fn wake_recent(&mut self, since: Cycles) {
        for slot in self.slots.taken() {
            if let Some(source) = self.get(slot)
                && source.state == PollState::Asleep
                && source.active > since
            {
                source.feed.ring().map(Ring::disarm);
                self.set_state(slot, PollState::Awake);
            }
        }
    }

    /// Records that `slot` had so many `frames` in moment `now`, and that completions are to be published.
    #[inline]
    pub(crate) fn had_frames(&mut self, slot: Slot, frames: u32, now: Cycles) {
        if let Some(source) = self.get(slot) {
            source.active = now;
            source.stream.came = source.stream.came.saturating_add(frames);
        }
        self.touch(slot);
    }

    /// Records that completions of `slot` are to be published.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot) {
        if let Some(source) = self.slots.get_mut(slot)
            && !source.touched
        {
            source.touched = true;
            self.touched.push(slot);
        }
    }

    /// Publishes completions on the used rings; true if there were any. [`Self::call`] is to follow, after a fence.
    pub(crate) fn publish(&mut self) -> bool {
        for &slot in &self.touched {
            if let Some(source) = self.slots.get_mut(slot) {
                source.feed.publish();
            }
        }
        !self.touched.is_empty()
    }

    /// Interrupts the drivers that asked for it about published completions, and counts; `faulty` is called for interrupts that
    /// block. Interrupt coalescing: for a few completions the interrupt is put off, and dropped if the driver
    /// reaps them by itself.
    pub(crate) fn call<'c>(
        &mut self,
        now: Cycles,
        counters: impl Fn(PortId) -> &'c PortCounters,
        mut faulty: impl FnMut(PortId, RingFault),
    ) {
        while let Some(slot) = self.touched.pop() {
            let Some(source) = self.slots.get_mut(slot) else { continue };
            source.touched = false;
            let mut changed = source.notification.happened() | (source.drop_seen_interrupt() && source.notification.told());
            if source.has_pending_interrupt() {
                let may_wait = source.consider_delay();
                if may_wait && source.drop_unrequested_interrupt() {
                    changed |= source.notification.told();
                } else if may_wait && source.put_off(now, &self.spans) {
                    changed = true;
                } else {
                    changed |= source.notification.told();
                    source.bytes_back = 0;
                    let called = source.feed.ring().map_or(Ok(()), Ring::call_if_wanted);
                    source.count_calls(&counters);
                    if let Err(fault) = called {
                        faulty(source.port(), fault);
                    }
                }
            }
            if changed {
                self.expect(slot, now);
            }
        }
    }

    /// The ring of `slot` changed and may be quiet from now on, so its lost-notification check starts.
    #[inline]
    pub(crate) fn happened(&mut self, slot: Slot, now: Cycles) {
        if self.slots.get_mut(slot).is_some_and(|source| source.notification.happened()) {
            self.expect(slot, now);
        }
    }

    /// Sets the timer of `slot` to the deadline of its notification state.
    pub(crate) fn expect(&mut self, slot: Slot, now: Cycles) {
        let due = self.slots.get(slot).and_then(|source| source.notification.due(now, self.spans.look));
        due.into_iter().for_each(|due| self.timers.expect(slot, due));
    }

    /// True if some timer is due.
    #[inline]
    pub(crate) fn has_due(&self, now: Cycles) -> bool {
        self.timers.is_due(now)
    }

    /// The deadline of the next timer.
    pub(crate) fn deadline(&self) -> Option<Cycles> {
        self.timers.next()
    }

    /// Takes the slots with expired timers. Delayed interrupts are considered again by [`Self::call`]; the other slots are for the
    /// caller's lost-notification check.
    pub(crate) fn take_due(&mut self, now: Cycles) -> Vec<Slot> {
        let mut due = Vec::new();
        self.timers.take_due(now, &mut due);
        due.retain(|&slot| {
            let put_off = self.slots.get(slot).is_some_and(|source| source.notification.put_off_at().is_some());
            if put_off {
                self.touch(slot);
            }
            !put_off
        });
        due
    }
}
