//! One outlet: a sink, what the operator and its driver let in, and what waits for it in turns or on a line.

use std::sync::Arc;
use std::time::Duration;

use super::sink::{Sink, fetched, is_in_memory};
use crate::airtime::effort::{self, BATCH};
use crate::airtime::slice::Slice;
use crate::id::{Direction, PortId, RingKey, Slot};
use crate::link::Line;
use crate::notice::{Missed, Notice, Spans};
use crate::parcel::Parcel;
use crate::port::Port;
use crate::ring::{BURDEN, Placed, Ring, RingFault};
use crate::schedule::race::Race;
use crate::schedule::{Parking, Turns};
use crate::stats::{DropReason, PortCounters};
use crate::time::{Cycles, in_cycles};

/// Frames that one receiver is served from its waiting ones in a pass: no more than a sender may add in one, so that none runs short of what
/// its turns are worth.
pub(super) const TURN: usize = BATCH;

/// Fetched frames that are kept until they are shown, at most.
const MOST_FETCHED: usize = 64;

/// No frame was lost on a line.
const NOTHING_OFF_LINE: [(DropReason, u32); 2] = [(DropReason::LinkLoss, 0), (DropReason::LinkFull, 0)];

/// A sink and its circumstances.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub key: RingKey,
    pub(super) port: Arc<Port>,
    /// Times that its limit was met since the counters were last told.
    limited: u64,
    pub(super) sink: Sink,
    /// Enabled, started, and not at fault: frames may go in.
    pub(super) open: bool,
    enabled: bool,
    /// A kick came, or none is needed.
    started: bool,
    /// Its driver has never given it a buffer: it is to kick for the first.
    unfilled: bool,
    /// Broke its ring.
    faulty: bool,
    pub(super) turns: Turns,
    /// What its driver has perhaps not heard of, and whether it takes nothing though something waits.
    pub(super) notice: Notice,
    /// It took nothing for longer than the patience, and nothing since.
    pub(super) stalled: bool,
    pub(super) touched: bool,
    /// What its driver was seen to have posted when there was no room.
    posted: Posted,
    /// Whose frame was postponed last, and when.
    pub(super) postponed_last: Option<(PortId, Cycles)>,
    /// What keeps senders abreast whose frames are postponed, if there are several.
    pub(super) race: Option<Box<Race>>,
    /// What frames take before they are here, if the port is on a link.
    pub(super) line: Option<Box<Line>>,
    /// It is among the lines that are served in every pass.
    pub(super) at_hand: bool,
    /// Frames of the wire that its link lost, and those that it had no room for, since the counters were last told.
    off_line: [(DropReason, u32); 2],
    /// Frames and bytes since the counters were last told.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Where it is among outlets.
    pub(super) slot: Slot,
    /// Frames that were fetched, and may be referred to until they are shown.
    fetched: Vec<Vec<u8>>,
    /// Its receiver's buffers were a burden: nobody looks at them until then.
    pub(super) shut_until: Cycles,
}

/// How long things may take at outlets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// A receiver may take nothing before what waits for it is given up.
    pub patience: Cycles,
    /// A receiver may take nothing before it counts as stuck.
    pub stuck_after: Cycles,
    /// Before a frame comes to the end of its line a worker gets up, for waking takes that long.
    pub early: Cycles,
    pub spans: Spans,
}

/// What was done at outlets.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// All of it, see [`effort`].
    pub effort: u64,
    /// At which outlets buffers were a burden, whose, and how much.
    pub burdens: Vec<(Slot, PortId, u64)>,
}

/// What a receiver without room has posted, and for how long that was seen to be all.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    /// The driver's index.
    seen: u16,
    looked_at: Cycles,
    age: Cycles,
}

/// What a look adds to an age at most: a worker that had no CPU meanwhile has seen nothing.
const LOOK: Duration = Duration::from_micros(200);

impl Posted {
    fn look(&mut self, seen: u16, now: Cycles) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        self.age = if self.seen == seen { self.age.saturating_add(passed.min(in_cycles(LOOK))) } else { 0 };
        self.seen = seen;
    }
}

/// How a receiver that has no room is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It took something lately.
    Moving,
    /// It took nothing for longer than `STUCK_AFTER`.
    Stuck,
    /// It took nothing for longer than the patience, and nothing since.
    Stalled,
}

/// What became of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Delivered.
    Done,
    /// The receiver has no room now.
    MustWait,
    /// It never will be, for this reason.
    Dropped(DropReason),
}

impl Outlet {
    /// For queue pair `pair` of `port`, whose frames go into `sink`, with nothing waiting.
    pub(crate) fn new((port, pair): (&Arc<Port>, u16), sink: Sink, enabled: bool, started: bool) -> Self {
        let mut outlet = Self {
            key: RingKey { port: port.id, pair, direction: Direction::Receive },
            port: Arc::clone(port),
            limited: 0,
            sink,
            open: false,
            enabled,
            started,
            unfilled: false,
            faulty: false,
            turns: Turns::default(),
            notice: Notice::default(),
            stalled: false,
            touched: false,
            posted: Posted::default(),
            postponed_last: None,
            race: None,
            line: port.line(pair).map(Box::new),
            at_hand: false,
            off_line: NOTHING_OFF_LINE,
            frames: 0,
            bytes: 0,
            slot: Slot::default(),
            fetched: Vec::new(),
            shut_until: 0,
        };
        outlet.settle();
        outlet
    }

    /// The ring, if it is one.
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        self.sink.ring()
    }

    /// Has the driver kick when it posts buffers; true if it has posted some already. Where a limit holds back, buffers are no news.
    pub(super) fn arm(&mut self, now: Cycles) -> bool {
        self.port.policy.receive.is_open(now) && self.sink.arm()
    }

    /// When its notice is due: while something waits for its driver, that is when a limit opens, the driver is to be called again, or patience
    /// ends.
    pub(super) fn due(&mut self, now: Cycles, times: &Times) -> Option<Cycles> {
        let loses = self.sink.ring().is_some_and(|ring| ring.loses_interrupts());
        let due = self.notice.due(now, if loses { times.spans.look_soon } else { times.spans.look })?;
        let Some(since) = self.notice.stuck_since() else { return Some(due) };
        let limiter = &self.port.policy.receive;
        Some(if limiter.is_open(now) { due.min(since.saturating_add(times.patience)) } else { limiter.opens_at() })
    }

    /// Calls a driver again that may have missed a call, if it is time for that.
    pub(super) fn call_again_if_stuck(&mut self, now: Cycles, times: &Times, faults: &mut Vec<(PortId, RingFault)>) -> bool {
        let again = self.notice.calls_again(now, &times.spans);
        if again {
            self.call_again(faults);
        }
        again
    }

    /// Calls the driver once more.
    pub(super) fn call_again(&mut self, faults: &mut Vec<(PortId, RingFault)>) {
        if let Some(Err(fault)) = self.sink.ring().map(Ring::call_again) {
            self.fail(fault, faults);
        }
    }

    /// Looks again whether its driver seems to have missed a call; true if it has done so for two looks.
    pub(super) fn look(&mut self) -> bool {
        let ring = self.sink.ring();
        self.notice.look(|| ring.is_some_and(|ring| ring.awaits_call()).then_some(Missed::Call)).is_some()
    }

    /// The patience is over: all that waits is dropped; only frames `too_long`, of so many bytes or more, if there is room for others.
    pub(super) fn give_up(
        &mut self,
        too_long: u32,
        parking: &mut Parking,
        (now, times): (Cycles, &Times),
        mut dropped: impl FnMut(&Parcel, DropReason),
    ) {
        if too_long < u32::MAX {
            self.turns.remove_if(
                parking,
                |parcel| parcel.length >= too_long,
                |parcel| dropped(parcel, DropReason::TooLongForReceiver),
            );
            self.notice.begin_to_stand(now, &times.spans);
        } else {
            self.stalled = true;
            self.turns.remove_if(parking, |_| true, |parcel| dropped(parcel, DropReason::ReceiverStalled));
        }
    }

    /// Sends a copy of `parcel` along the line. What gets lost is counted here: of a frame that is cut, some segments may be.
    pub(super) fn send_along_line(&mut self, parcel: &mut Parcel, now: Cycles, work: &mut Work) -> Sent {
        let Some(line) = &mut self.line else { return Sent::Dropped(DropReason::ReceiverAbsent) };
        if !is_in_memory(parcel) {
            work.effort += effort::TURN;
            return Sent::Dropped(DropReason::SenderMemory);
        }
        let taken = if parcel.is_foreign() {
            fetched(parcel, self.port.foreign(), &mut Vec::new(), |parcel| line.take(parcel, now))
        } else {
            Some(line.take(parcel, now))
        };
        let Some(taken) = taken else { return Sent::Dropped(DropReason::GrantRefused) };
        self.off_line[0].1 += taken.lost;
        self.off_line[1].1 += taken.refused;
        // The sender pays for as many frames as it had cut.
        parcel.segments_done += taken.frames as u16;
        work.effort += u64::from(taken.frames) * effort::FRAME + u64::from(parcel.length);
        Sent::Done
    }

    /// Delivers what has come to the end of the line, which goes if nothing comes along it any more, and after the patience gives up what finds no
    /// room; returns the number of frames delivered, and whether the driver is to be shown anything.
    pub(super) fn serve_line(
        &mut self,
        parcel: &mut Parcel,
        now: Cycles,
        times: &Times,
        faults: &mut Vec<(PortId, RingFault)>,
        work: &mut Work,
        dropped: &mut impl FnMut(PortId, DropReason),
    ) -> (u32, bool) {
        let Some(mut line) = self.line.take() else { return (0, false) };
        line.forget_placed();
        if line.is_over() {
            return (0, false);
        }
        let (mut served, mut moved) = (0, false);
        // Bounded, so that a long line does not keep others waiting.
        let mut slice = Slice::new(work.effort, effort::TURN);
        for _ in 0..TURN {
            if slice.is_over(work.effort) {
                break;
            }
            // Where a limit holds back, it is not the receiver that does.
            let open = self.port.policy.receive.is_open(now);
            let given_up = open && self.is_stuck_for(times.patience, now);
            let place = |parcel: &mut Parcel| {
                let sent = self.place(parcel, now, faults, work);
                moved |= sent == Sent::Done;
                let sent = match sent {
                    Sent::MustWait if given_up => Sent::Dropped(DropReason::ReceiverStalled),
                    sent => sent,
                };
                (sent, sent != Sent::MustWait)
            };
            match line.serve(now, parcel, place) {
                Some(Sent::Done) => {
                    served += 1;
                    self.notice.move_on();
                }
                Some(Sent::Dropped(reason)) => dropped(self.key.port, reason),
                Some(Sent::MustWait) => {
                    self.stand_still(open, now, times);
                    moved |= self.call_again_if_stuck(now, times, faults);
                    break;
                }
                None => break,
            }
        }
        self.line = Some(line);
        (served, moved || self.has_unshown())
    }

    /// True if its ring's driver was not shown yet all that went there, be it buffers that broke a rule.
    pub(super) fn has_unshown(&mut self) -> bool {
        self.sink.ring().is_some_and(|ring| ring.has_unshown())
    }

    /// Notes among `touched` that the driver of this outlet, which is at `slot`, is to be shown something, or that there is something to count.
    #[inline]
    pub(super) fn touch(&mut self, slot: Slot, touched: &mut Vec<Slot>) {
        if !self.touched {
            self.touched = true;
            touched.push(slot);
        }
    }

    /// When the next frame comes to the end of its line.
    #[inline]
    pub(super) fn arrival(&self) -> Option<Cycles> {
        self.line.as_ref().and_then(|line| line.due())
    }

    /// Whether its line has something for a pass before `moment`: the next frame comes to its end, and will find room as far as is known; or frames
    /// that were placed are to be let go of.
    pub(super) fn needs_pass_before(&self, moment: Cycles) -> bool {
        let arrives = self.arrival().is_some_and(|due| due < moment);
        (arrives && self.notice.stuck_since().is_none()) || self.line.as_ref().is_some_and(|line| line.has_placed())
    }

    /// True if something would be delivered now if there were room.
    pub(super) fn awaits_room(&self, now: Cycles) -> bool {
        let at_end = self.arrival().is_some_and(|due| due <= now);
        self.turns.waiting() > 0 || (at_end && self.notice.stuck_since().is_some())
    }

    /// Something waits for its driver, which is to blame if its limit is `open`.
    fn stand_still(&mut self, open: bool, now: Cycles, times: &Times) {
        if open {
            self.notice.stand_still(now, &times.spans);
        } else {
            self.notice.begin_to_stand(now, &times.spans);
        }
    }

    /// It was served, or what waited for it was taken back: if nothing does any more, its driver has nothing to take.
    pub(super) fn move_on_if_served(&mut self, now: Cycles) {
        if !self.awaits_room(now) {
            self.notice.move_on();
        }
    }

    /// Whether it has taken nothing for longer `than` that, though something waits for it.
    pub(super) fn is_stuck_for(&self, than: Cycles, now: Cycles) -> bool {
        self.notice.stuck_since().is_some_and(|since| now.wrapping_sub(since) > than)
    }

    /// Whether `sender` may have room, as far as others are concerned whose frames are postponed.
    #[inline]
    pub(super) fn may_go(&mut self, sender: PortId, now: Cycles, races: &mut usize) -> bool {
        let Some(race) = &mut self.race else { return true };
        if race.begin_pass(now) {
            return race.may_go(sender);
        }
        self.race = None;
        *races -= 1;
        true
    }

    #[inline(never)]
    pub(super) fn place(
        &mut self,
        parcel: &mut Parcel,
        now: Cycles,
        faults: &mut Vec<(PortId, RingFault)>,
        work: &mut Work,
    ) -> Sent {
        if !self.open {
            return Sent::Dropped(DropReason::ReceiverAbsent);
        }
        if !self.port.policy.receive.is_open(now) {
            self.limited += 1;
            return Sent::MustWait;
        }
        if self.shut_until > now {
            return Sent::MustWait;
        }
        let before = parcel.segments_done;
        let placed =
            if parcel.is_foreign() && !self.sink.takes_foreign() { self.place_fetched(parcel) } else { self.sink.place(parcel) };
        let segments = u64::from(parcel.segments_done.saturating_sub(before)).max(1);
        work.effort += segments * effort::FRAME;
        let walked = self.sink.take_walked();
        if walked > segments * BURDEN + u64::from(parcel.length / effort::SMALL)
            || placed == Ok(Placed::Refused(DropReason::BadReceiveChains))
        {
            self.burden(walked, now, work);
        }
        match placed {
            Ok(Placed::Whole(frames)) => {
                work.effort += u64::from(parcel.length);
                self.frames += u64::from(frames);
                self.bytes += u64::from(parcel.length);
                self.port.policy.receive.charge(parcel.length.into(), frames.into(), now);
                self.stalled = false;
                Sent::Done
            }
            Ok(Placed::NoRoom) => {
                self.note_posted(now);
                Sent::MustWait
            }
            Ok(Placed::Refused(reason @ DropReason::ReceiverMemory)) => {
                // The time that it took is the receiver's.
                self.burden(effort::TURN / effort::DESCRIPTOR, now, work);
                Sent::Dropped(reason)
            }
            Ok(Placed::Refused(reason)) => {
                work.effort += if reason == DropReason::SenderMemory { effort::TURN } else { 0 };
                Sent::Dropped(reason)
            }
            Err(fault) => {
                self.fail(fault, faults);
                Sent::Dropped(DropReason::ReceiverAbsent)
            }
        }
    }

    /// Places a frame whose rest is only named where it is reached by address: it is fetched first.
    #[cold]
    fn place_fetched(&mut self, parcel: &mut Parcel) -> Result<Placed, RingFault> {
        if self.fetched.len() == MOST_FETCHED {
            self.show();
        }
        let mut memory = Vec::new();
        let placed = fetched(parcel, self.port.foreign(), &mut memory, |parcel| self.sink.place(parcel));
        if self.sink.ring().is_none() {
            self.fetched.push(memory);
        }
        placed.unwrap_or(Ok(Placed::Refused(DropReason::GrantRefused)))
    }

    /// Shows the receiver what was placed.
    pub(super) fn show(&mut self) {
        self.sink.publish();
        self.fetched.clear();
    }

    fn note_posted(&mut self, now: Cycles) {
        let seen = self.sink.ring().map_or(0, |ring| ring.seen());
        self.posted.look(seen, now);
    }

    /// True if a frame found no room in buffers that are there, and no more were posted for so long a `time`: its receiver may be satisfied with those, and
    /// others need not wait for it.
    pub(super) fn lets_pass(&mut self, time: Cycles, now: Cycles) -> bool {
        let still = self.shut_until <= now && self.posted.age > time && self.port.policy.receive.is_open(now);
        still && self.has_buffers()
    }

    /// True if its receiver has posted buffers that were not taken.
    pub(super) fn has_buffers(&mut self) -> bool {
        self.sink.ring().is_some_and(|ring| ring.has_untaken())
    }

    /// Notes that so many descriptors were walked for one frame, in vain or nearly so: once in a pass, its port pays for it, and gets no more looks
    /// than it has time.
    #[cold]
    fn burden(&mut self, walked: u64, now: Cycles, work: &mut Work) {
        let effort = effort::FRAME + walked * effort::DESCRIPTOR;
        work.effort += effort;
        work.burdens.push((self.slot, self.key.port, effort));
        self.shut_until = now + 1;
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.settle();
    }

    /// A kick came; more are needed only while something waits, or until the driver has given it a buffer. True if it has just given it the first.
    pub(crate) fn start(&mut self) -> bool {
        // A frame may have had the ring looked at, and buffers posted since the last kick are no news then.
        let first = self.unfilled && self.sink.ring().is_some_and(|ring| ring.arm() || ring.was_filled());
        self.unfilled &= !first;
        if !self.unfilled {
            self.sink.ring().map(Ring::disarm);
        }
        self.started = true;
        self.settle();
        first
    }

    /// Whether its driver has never given it a buffer.
    pub(crate) fn is_unfilled(&self) -> bool {
        self.unfilled
    }

    /// Notes whether that is so, of an outlet whose driver kicks.
    pub(crate) fn set_unfilled(&mut self, unfilled: bool) {
        self.unfilled = unfilled;
    }

    fn settle(&mut self) {
        self.open = self.enabled && self.started && !self.faulty;
    }

    /// Closes this outlet, whose ring broke a rule.
    pub(super) fn fail(&mut self, fault: RingFault, faults: &mut Vec<(PortId, RingFault)>) {
        self.faulty = true;
        self.settle();
        faults.push((self.key.port, fault));
    }

    pub(super) fn count(&mut self, counters: &PortCounters) {
        counters.receive_frames.add(std::mem::take(&mut self.frames));
        counters.receive_bytes.add(std::mem::take(&mut self.bytes));
        let under_way = self.line.as_ref().map_or(0, |line| line.len());
        counters.waiting.set(u64::from(self.turns.waiting()) + under_way as u64);
        counters.turns.add(self.turns.take_taken());
        counters.receive_limited.add(std::mem::take(&mut self.limited));
        let calls = self.sink.ring().map_or(0, Ring::take_calls);
        let bad = self.sink.take_bad_chains();
        let off_line = std::mem::replace(&mut self.off_line, NOTHING_OFF_LINE);
        for (reason, count) in self.sink.take_refused().into_iter().chain(off_line) {
            counters.drop_frames(reason, count);
        }
        if calls > 0 || bad > 0 {
            counters.calls.add(calls.into());
            counters.bad_receive_chains.add(bad.into());
        }
    }
}
