//! Rest: the end of a poll iteration without frames. Busy polling, arming and sleep.
//!
//! 1. **Adaptive busy polling**: the worker may poll on for a while.
//! 2. It **arms** every ring that was awake, that is, it asks the driver for kicks. One-way streams are excepted: they get **timer
//!    polling** instead of a kick per frame.
//! 3. It checks the rings again, announces its sleep, checks its mailbox and the inter-worker queues, and **waits** in epoll for
//!    kicks, its own eventfd (the bell) or the timer, which covers timer polling and the timer lists of sources and egress queues.
//!
//! While other rings keep it busy, a non-blocking epoll from time to time finds the kicks of the rings that sleep.

mod adaptive_poll;
mod affinity;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::timerfd::TimerFd;

use super::{Event, Mailbox, Worker};
use crate::ablation;
use crate::cpu_time::work_units::BATCH;
use crate::id::{Direction, RingKey, Slot};
use crate::ingress::{BlockReason, Blocked, Feed, PollState};
use crate::probes;
use crate::settings::{Poll, Settings};
use crate::time::{Cycles, cycles, cycles_after, duration, frequency, in_cycles};
use crate::tuning::{KICK_INTERVAL, SELDOM, UNKICKED_INTERVAL};
use adaptive_poll::AdaptivePoll;
use affinity::CpuAffinity;

/// The token of the worker's own eventfd (the bell); tokens of kicks hold slot and direction.
const BELL: u64 = u64::MAX;
const TIMER: u64 = BELL - 1;
/// Kicks that one system call reports: those of two batches of single frames.
const KICKS_AT_ONCE: usize = 2 * BATCH;

/// See the module.
#[derive(Debug)]
pub(super) struct Rest {
    epoll: Epoll,
    /// Wakes the worker at a deadline: finer than the milliseconds of epoll.
    timer: TimerFd,
    /// The deadline to which the timer is set; in the past if it is not set.
    timer_at: Cycles,
    far: Cycles,
    events: Vec<EpollEvent>,
    kicks: Vec<(Slot, Direction, File)>,
    poll: Poll,
    adaptive_poll: AdaptivePoll,
    affinity: CpuAffinity,
    /// When the last poll iteration moved a frame.
    busy_at: Cycles,
    events_polled_at: Cycles,
    poll_events_every: Cycles,
    second: u32,
    next_second: Cycles,
}

impl Rest {
    pub(super) fn new(mailbox: &Mailbox, settings: &Settings) -> std::io::Result<Self> {
        let epoll = Epoll::new()?;
        let timer = TimerFd::new().map_err(std::io::Error::from)?;
        for (descriptor, token) in [(mailbox.bell().as_raw_fd(), BELL), (timer.as_raw_fd(), TIMER)] {
            epoll.ctl(ControlOperation::Add, descriptor, each_time(token))?;
        }
        let now = cycles();
        Ok(Self {
            epoll,
            timer,
            timer_at: 0,
            far: in_cycles(SELDOM),
            events: vec![EpollEvent::default(); KICKS_AT_ONCE],
            kicks: Vec::new(),
            poll: settings.poll,
            adaptive_poll: AdaptivePoll::new(),
            affinity: CpuAffinity::default(),
            busy_at: now,
            events_polled_at: now,
            poll_events_every: in_cycles(KICK_INTERVAL),
            second: 0,
            next_second: now.wrapping_add(frequency()),
        })
    }

    /// Whole seconds since the worker began.
    pub(super) fn second(&mut self, now: Cycles) -> u32 {
        if let Some(over) = now.checked_sub(self.next_second) {
            let seconds = 1 + over / frequency();
            self.next_second = self.next_second.saturating_add(seconds.saturating_mul(frequency()));
            self.second = self.second.saturating_add(u32::try_from(seconds).unwrap_or(u32::MAX));
        }
        self.second
    }

    /// Watches a kick eventfd. Edge-triggered, so that it need never be read: each kick is one event, and one system call is saved.
    pub(super) fn watch(&mut self, kick: File, slot: Slot, direction: Direction) {
        self.watch_for(EventSet::IN, kick, slot, direction);
    }

    /// Watches for room to write, for the egress queue at `slot`.
    pub(super) fn watch_room(&mut self, writable: File, slot: Slot) {
        self.watch_for(EventSet::OUT, writable, slot, Direction::Receive);
    }

    fn watch_for(&mut self, what: EventSet, file: File, slot: Slot, direction: Direction) {
        let event = EpollEvent::new(what | EventSet::EDGE_TRIGGERED, token(slot, direction));
        if self.epoll.ctl(ControlOperation::Add, file.as_raw_fd(), event).is_ok() {
            self.kicks.push((slot, direction, file));
        }
    }

    /// The kick eventfd of a ring, if it is watched.
    pub(super) fn kick(&self, slot: Slot, direction: Direction) -> Option<&File> {
        self.kicks.iter().find(|(s, d, _)| (*s, *d) == (slot, direction)).map(|(.., kick)| kick)
    }

    pub(super) fn unwatch(&mut self, slot: Slot, direction: Direction) {
        let Some(index) = self.kicks.iter().position(|&(s, d, _)| (s, d) == (slot, direction)) else { return };
        let (_, _, kick) = self.kicks.swap_remove(index);
        // The front end may hold the same file open, so closing this descriptor does not end the watch.
        let _ = self.epoll.ctl(ControlOperation::Delete, kick.as_raw_fd(), EpollEvent::default());
    }
}

/// Reports `token` each time that the descriptor is signalled, read or not.
fn each_time(token: u64) -> EpollEvent {
    EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, token)
}

fn token(slot: Slot, direction: Direction) -> u64 {
    u64::from(slot.number()) << 1 | u64::from(direction == Direction::Receive)
}

impl Worker {
    /// After a poll iteration that moved frames: poll epoll now and then, for the rings that sleep.
    #[inline]
    pub(super) fn poll_events(&mut self) {
        self.rest.busy_at = self.now;
        self.poll_events_if_due();
    }

    /// After a poll iteration that moved nothing.
    pub(super) fn rest(&mut self) {
        if self.rest.poll == Poll::Always {
            self.poll_events_if_due();
            return;
        }
        let polls_on = !self.sources.awake.is_empty() && self.rest.adaptive_poll.poll_on(self.rest.busy_at, self.now);
        if polls_on || self.egress.expect_soon(self.now) {
            std::hint::spin_loop();
            self.poll_events_if_due();
            return;
        }
        self.check_memory();
        if self.arm() || self.peers.have_backlog() {
            return;
        }
        self.sleep();
    }

    #[inline]
    fn poll_events_if_due(&mut self) {
        if self.now.wrapping_sub(self.rest.events_polled_at) > self.rest.poll_events_every {
            self.rest.events_polled_at = self.now;
            self.await_events(0);
            self.check_memory();
        }
    }

    /// Arms the rings that are awake and the receivers that frames wait for; true if there is work after all.
    fn arm(&mut self) -> bool {
        let mut index = 0;
        let mut news = false;
        while let Some(&slot) = self.sources.awake.get(index) {
            if self.defers_to_timer(slot) {
                index += 1;
                continue;
            }
            let Some(source) = self.sources.get(slot) else { return true };
            let (blocked, port, polled) = (source.blocked(), source.port(), source.polled);
            let has_news = match blocked.map(|blocked| blocked.reason) {
                // A transmit queue at its rate limit has no work before the limit opens.
                Some(BlockReason::RateLimit) => false,
                // A frame under backpressure blocks those behind it until its receiver has buffers.
                Some(BlockReason::NoRoom(entry)) if entry.worker == self.index => self.egress.arm(entry.slot),
                // The other worker wakes this one when it has taken packets.
                Some(BlockReason::NoRoom(entry)) => self.peers.has_room(entry.worker, port),
                // Chains that were seen and not taken are work too.
                Some(BlockReason::TimerPoll) | None => {
                    source.feed.arm() || source.feed.ring().is_some_and(|ring| ring.has_untaken())
                }
            };
            if has_news || polled || blocked.is_some() {
                news |= has_news;
                index += 1;
            } else {
                self.sources.set_state(slot, PollState::Asleep);
                self.sources.happened(slot, self.now);
            }
        }
        news | self.egress.arm_waiting()
    }

    /// Whether the source is left to timer polling, see `timer_poll`.
    fn defers_to_timer(&mut self, slot: Slot) -> bool {
        let Some(source) = self.sources.get(slot) else { return false };
        let is_blocked = source.blocked().is_some_and(|blocked| blocked.reason != BlockReason::TimerPoll);
        if !ablation::TIMER_POLL || self.rest.poll != Poll::Adaptive || is_blocked || source.feed.ring().is_none() {
            source.stream.until = None;
            return false;
        }
        let delivered = source.port.delivered();
        let room = source.feed.size();
        source.stream.update_timer_poll(room, delivered, self.now)
    }

    fn sleep(&mut self) {
        let mailbox = std::sync::Arc::clone(&self.mailbox);
        mailbox.sleep.announce();
        if mailbox.has_post() || self.peers.have_news() {
            mailbox.sleep.cancel();
            return;
        }
        let from = cycles_after(self.now);
        self.shared.workers[usize::from(self.index)].sleeps.add(1);
        let timeout = self.set_timer(from);
        let woken = self.await_events(timeout);
        mailbox.sleep.cancel();
        let now = cycles_after(from);
        self.cpu_time.slept(now - from);
        if ablation::AFFINITY {
            self.rest.affinity.woke(now);
        }
        if self.rest.poll == Poll::Adaptive && woken {
            self.rest.adaptive_poll.slept_through(now.wrapping_sub(self.rest.busy_at), now);
            if ablation::WAKE_RECENT
                && let Some(memory) = self.rest.adaptive_poll.memory()
            {
                self.sources.wake_recent(now.wrapping_sub(memory));
            }
        }
        self.rest.busy_at = now;
    }

    /// Sets the timer for the next deadline; returns the milliseconds to wait at most, -1 for ever.
    fn set_timer(&mut self, now: Cycles) -> i32 {
        let Some(deadline) = self.deadline() else { return -1 };
        let left = deadline.saturating_sub(now);
        let set = self.rest.timer_at;
        let is_set = (now + 1..=deadline).contains(&set) && (set == deadline || left > self.rest.far);
        // A timeout of zero would stop the timer. If the timer cannot be set, or is missed, the worker must not sleep too long.
        let left = duration(left).max(Duration::from_micros(1));
        if !is_set {
            self.rest.timer_at = if self.rest.timer.reset(left, None).is_ok() { deadline } else { return 0 };
        }
        left.as_millis().min(1000) as i32 + 1
    }

    /// The next deadline, if there is no event before it.
    fn deadline(&mut self) -> Option<Cycles> {
        let polled = self.now.saturating_add(in_cycles(UNKICKED_INTERVAL));
        let mut deadline = self.egress.deadline().into_iter().chain(self.sources.deadline()).min();
        for index in 0..self.sources.awake.len() {
            let slot = self.sources.awake[index];
            let Some(source) = self.sources.get(slot) else { continue };
            let due = match source.blocked() {
                Some(Blocked { reason: BlockReason::NoRoom(entry), .. }) if entry.worker == self.index => {
                    self.egress.opens_at(entry.slot, self.now)
                }
                Some(blocked) => blocked.until,
                None => None,
            };
            let due = due.unwrap_or(polled);
            if due == Cycles::MAX {
                // The change that lifts the limit wakes all its sources.
                continue;
            }
            deadline = Some(deadline.map_or(due, |earliest| earliest.min(due)));
        }
        deadline
    }

    /// Waits for events and handles them; true if there was one beside those of timers.
    pub(super) fn await_events(&mut self, milliseconds: i32) -> bool {
        let mut events = std::mem::take(&mut self.rest.events);
        if milliseconds == 0 {
            self.shared.workers[usize::from(self.index)].polls.add(1);
        }
        // An epoll call interrupted by a signal has no events.
        let count = self.rest.epoll.wait(milliseconds, &mut events).unwrap_or(0);
        let mut woken = false;
        // A descriptor whose other end was closed is ready too, without a kick.
        for event in events[..count].iter().filter(|event| event.event_set().intersects(EventSet::IN | EventSet::OUT)) {
            let token = event.data();
            woken |= token != TIMER;
            match token {
                BELL => {}
                TIMER => self.rest.timer_at = 0,
                kick => self.kicked(kick),
            }
        }
        self.rest.events = events;
        woken
    }

    fn kicked(&mut self, token: u64) {
        let slot = Slot::from_number((token >> 1) as u32);
        if token & 1 == 0 {
            let Some(source) = self.sources.get(slot) else { return };
            let key = source.key;
            if let Feed::Other(end, _) = &mut source.feed {
                end.wake();
            }
            self.sources.kicked(slot);
            self.note_kick(key);
        } else if let Some((key, first)) = self.egress.kicked(slot) {
            self.note_kick(key);
            if first && let Some((port, session)) = self.port_table.session(key.port) {
                self.report(Event::Filled(Arc::clone(port), session, key, slot));
            }
        }
    }

    fn note_kick(&self, key: RingKey) {
        probes::kick(key);
        self.counters(key.port).kicks.add(1);
    }

    /// Reports to the control side that some mapping lost its file.
    fn check_memory(&mut self) {
        let losses = crate::memory::sigbus::losses();
        if losses != self.losses {
            self.losses = losses;
            self.report(Event::MemoryLost);
        }
    }
}
