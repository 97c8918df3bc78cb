//! Rest: the end of a poll iteration without frames. Busy polling, arming and sleep.
//!
//! 1. Its [`Moderation`] decides whether the worker looks again, yields its CPU, or sleeps.
//! 2. Before it sleeps it **arms** every ring that was awake, that is, it asks the driver for kicks, and checks the ring again. Rings
//!    of one-way streams, and those that are blocked, are left unkicked until a moment.
//! 3. It announces its sleep, checks its mailbox and the inter-worker queues, and **waits** in epoll for kicks, its own eventfd
//!    (the wake-up) or a deadline: that of the unkicked rings and of the timer lists of sources and egress queues.
//!
//! A frame that wakes the worker and sends it to sleep again takes two system calls, its interrupt and the wait: kicks are not read,
//! near deadlines are the timeout of the wait, and a worker that has just waited knows all kicks.
//!
//! While other rings keep it busy, a non-blocking epoll from time to time finds the kicks of the rings that sleep.

#![expect(clippy::indexing_slicing, reason = "a worker's own number; as many events as the kernel filled in")]

mod affinity;
mod moderation;

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
use crate::ingress::{Blocked, Feed, PollState};
use crate::probes;
use crate::settings::Settings;
use crate::system::wait_for_events;
use crate::time::{Cycles, SECOND, cycles, cycles_after, driven, duration, frequency, in_cycles};
use crate::tuning::{SELDOM, UNKICKED_INTERVAL};
use affinity::CpuAffinity;
use moderation::{Moderation, Next};

/// The token of the worker's own eventfd (the wake-up); tokens of kicks hold slot and direction.
const WAKE_UP: u64 = u64::MAX;
const TIMER: u64 = WAKE_UP - 1;
/// Kicks that one system call reports: those of two batches of single frames.
const KICKS_AT_ONCE: usize = 2 * BATCH;

/// See the module.
#[derive(Debug)]
pub(super) struct Rest {
    epoll: Epoll,
    /// Wakes the worker at a deadline far away: more exact than a timeout of epoll, to which the kernel adds a thousandth.
    timer: TimerFd,
    /// The deadline to which the timer is set; in the past if it is not set.
    timer_at: Cycles,
    events: Vec<EpollEvent>,
    kicks: Vec<(Slot, Direction, File)>,
    moderation: Moderation,
    affinity: CpuAffinity,
    second: u32,
    next_second: Cycles,
    /// Since when it sleeps, and its deadline, where its clock is driven.
    sleeps: Option<(Cycles, Cycles)>,
}

impl Rest {
    pub(super) fn new(mailbox: &Mailbox, settings: &Settings) -> std::io::Result<Self> {
        let epoll = Epoll::new()?;
        let timer = TimerFd::new().map_err(std::io::Error::from)?;
        for (descriptor, token) in [(mailbox.wake_up().as_raw_fd(), WAKE_UP), (timer.as_raw_fd(), TIMER)] {
            epoll.ctl(ControlOperation::Add, descriptor, each_time(token))?;
        }
        let now = cycles();
        Ok(Self {
            epoll,
            timer,
            timer_at: 0,
            events: vec![EpollEvent::default(); KICKS_AT_ONCE],
            kicks: Vec::new(),
            moderation: Moderation::new(settings.poll, now),
            affinity: CpuAffinity::default(),
            second: 0,
            next_second: now.wrapping_add(frequency()),
            sleeps: None,
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

    /// How long to wait for `deadline` at most; `None`, for ever, if it is [`Cycles::MAX`]. For a deadline far away the timer is set,
    /// unless it is set to an earlier moment.
    fn timeout(&mut self, deadline: Cycles, now: Cycles) -> Option<Duration> {
        if deadline == Cycles::MAX {
            return None;
        }
        let left = deadline.saturating_sub(now);
        if left > in_cycles(SELDOM) && !(now + 1..=deadline).contains(&self.timer_at) {
            self.timer_at = if self.timer.reset(duration(left), None).is_ok() { deadline } else { 0 };
        }
        // If the timer cannot be set, or is missed, the worker must not sleep too long.
        Some(duration(left).min(SECOND))
    }

    pub(super) fn unwatch(&mut self, slot: Slot, direction: Direction) {
        let Some(index) = self.kicks.iter().position(|&(s, d, _)| (s, d) == (slot, direction)) else { return };
        let (_, _, kick) = self.kicks.swap_remove(index);
        // The front end may hold the same file open, so closing this descriptor does not end the watch.
        let _ = self.epoll.ctl(ControlOperation::Delete, kick.as_raw_fd(), EpollEvent::default());
    }
}

/// Outcome of arming a source that was awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    /// The virtqueue has frames, or its receiver has room.
    News,
    /// The driver kicks from now on.
    Kicked,
    /// The driver does not kick, or not for the event that the queue waits for: the ring is looked at in that moment.
    Unkicked(Cycles),
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
        self.rest.moderation.moved(self.now);
        self.poll_events_if_due();
    }

    /// After a poll iteration that moved nothing.
    pub(super) fn rest(&mut self) {
        let Self { rest, sources, egress, now, .. } = self;
        match rest.moderation.next(!sources.awake.is_empty(), || egress.expect_soon(*now), *now) {
            Next::Look => {}
            Next::Pause => std::hint::spin_loop(),
            Next::Yield => {
                std::thread::yield_now();
                let after = cycles();
                if rest.moderation.yielded(*now, after) {
                    rest.affinity.leave(after);
                }
            }
            Next::Sleep => return self.arm_and_sleep(),
        }
        self.poll_events_if_due();
    }

    #[inline]
    fn poll_events_if_due(&mut self) {
        if self.rest.moderation.polls_events(self.now) {
            self.await_events(Some(Duration::ZERO));
            self.check_memory();
        }
    }

    /// Sleeps until a notification or a deadline, unless there is work after all.
    fn arm_and_sleep(&mut self) {
        self.check_memory();
        let (has_news, until) = self.arm();
        if !has_news && !self.peers.have_backlog() {
            self.sleep(until);
        }
    }

    /// Arms the rings that are awake and the receivers that frames wait for. Returns whether there is work after all, and the moment
    /// until which the worker may sleep over the rings that it leaves unkicked.
    fn arm(&mut self) -> (bool, Cycles) {
        let (mut has_news, mut until, mut index) = (false, Cycles::MAX, 0);
        while let Some(&slot) = self.sources.awake.get(index) {
            match self.arm_source(slot) {
                Armed::News => has_news = true,
                Armed::Unkicked(moment) => until = until.min(moment),
                Armed::Kicked => {
                    self.sources.set_state(slot, PollState::Asleep);
                    self.sources.happened(slot, self.now);
                    // The last source moved here.
                    continue;
                }
            }
            index += 1;
        }
        (has_news | self.egress.arm_waiting(), until)
    }

    /// Arms the source at `slot`, or the receiver that it waits for.
    fn arm_source(&mut self, slot: Slot) -> Armed {
        let Some(source) = self.sources.get(slot) else { return Armed::News };
        let unkicked = self.now.saturating_add(in_cycles(UNKICKED_INTERVAL));
        let blocked = source.blocked().filter(|blocked| !matches!(blocked, Blocked::TimerPoll(_)));
        let until = source.poll_by_timer(self.rest.moderation.times_streams() && blocked.is_none(), self.now);
        let memory_until = source.memory_until();
        let (has_news, until) = match blocked {
            // No kick tells that memory was filled.
            _ if memory_until.is_some() => (false, memory_until),
            // A transmit queue at its rate limit has no work before the limit opens. A change that lifts the limit wakes the source.
            Some(Blocked::RateLimit(opens_at)) => (false, Some(opens_at)),
            // A frame under backpressure blocks those behind it until its receiver has buffers.
            Some(Blocked::NoRoom(entry)) if entry.worker == self.index => {
                (self.egress.arm(entry.slot), self.egress.opens_at(entry.slot, self.now))
            }
            // The other worker wakes this one when it has taken packets.
            Some(Blocked::NoRoom(entry)) => (self.peers.has_room(entry.worker, source.port()), None),
            _ if until.is_some() => (false, until),
            // Chains that were seen and not taken are work too.
            _ => {
                let has_news = source.feed.arm() || source.feed.ring().is_some_and(|ring| ring.has_untaken());
                if !has_news && !source.polled {
                    return Armed::Kicked;
                }
                (has_news, None)
            }
        };
        if has_news { Armed::News } else { Armed::Unkicked(until.unwrap_or(unkicked)) }
    }

    /// Sleeps until a notification, at most until the moment `until` or the next deadline.
    fn sleep(&mut self, until: Cycles) {
        let mailbox = std::sync::Arc::clone(&self.mailbox);
        mailbox.sleep.announce();
        if mailbox.has_post() || self.peers.have_news() {
            mailbox.sleep.cancel();
            return;
        }
        let from = cycles_after(self.now);
        self.shared.workers[usize::from(self.index)].sleeps.add(1);
        let deadline = self.egress.deadline().into_iter().chain(self.sources.deadline()).fold(until, Cycles::min);
        if driven::is_on() {
            self.rest.sleeps = Some((from, deadline));
            return;
        }
        let timeout = self.rest.timeout(deadline, from);
        let woken = self.await_events(timeout);
        let now = self.wake(from, woken);
        if ablation::AFFINITY {
            self.rest.affinity.woke(now);
        }
    }

    /// Ends a sleep since `from`, by an event or by a deadline; returns the present moment.
    fn wake(&mut self, from: Cycles, woken: bool) -> Cycles {
        self.mailbox.sleep.cancel();
        let now = cycles_after(from);
        self.cpu_time.slept(now - from);
        if let Some(since) = self.rest.moderation.woke(!woken, now) {
            self.sources.wake_recent(since);
        }
        now
    }

    /// One round of [`Self::run`] on a clock that is [driven]: a worker that sleeps does nothing before a notification or its deadline. Returns
    /// that deadline, [`Cycles::MAX`] if there is none, while it sleeps, and `None` while it is awake.
    pub fn drive(&mut self) -> Option<Cycles> {
        if let Some((from, deadline)) = self.rest.sleeps {
            let woken = self.await_events(Some(Duration::ZERO));
            if !woken && driven::now() < deadline {
                return Some(deadline);
            }
            self.rest.sleeps = None;
            self.wake(from, woken);
        }
        if self.step() == 0 {
            self.rest()
        } else {
            self.poll_events()
        }
        self.rest.sleeps.map(|(_, deadline)| deadline)
    }

    /// Waits for events, for `timeout` at most, and handles them; true if there was one beside those of timers.
    pub(super) fn await_events(&mut self, timeout: Option<Duration>) -> bool {
        let mut events = std::mem::take(&mut self.rest.events);
        if timeout == Some(Duration::ZERO) {
            self.shared.workers[usize::from(self.index)].polls.add(1);
        }
        // An epoll call interrupted by a signal has no events.
        let count = wait_for_events(&self.rest.epoll, timeout, &mut events).unwrap_or(0);
        let mut woken = false;
        // A descriptor whose other end was closed is ready too, without a kick.
        for event in events[..count].iter().filter(|event| event.event_set().intersects(EventSet::IN | EventSet::OUT)) {
            let token = event.data();
            woken |= token != TIMER;
            match token {
                WAKE_UP => {}
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
