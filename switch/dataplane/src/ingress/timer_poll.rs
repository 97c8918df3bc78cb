//! Timer polling (interrupt moderation): the transmit queue of a one-way stream is polled by a timer, instead of by a kick for
//! every few frames.
//!
//! Where all CPUs are busy, a kick for each frame costs all of them: it wakes the worker, which interrupts the receiver, and both
//! preempt other tasks. A sender that does not wait for answers gains more from being served in batches than it loses by the time
//! until the next poll. A sender that waits for answers (TCP, requests) never gets timer polling, nor does one that might fill its
//! ring meanwhile.

use crate::time::{Cycles, in_cycles};
use crate::tuning::{LONGEST_POLL, STREAM_PROOF};

/// Observed behaviour of a sender. See the module.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Rests in a row after which frames came.
    rests: u8,
    rested_at: Cycles,
    /// Frames that the sender's port had received when the worker last rested.
    delivered: u64,
    /// Frames that were sent since.
    pub came: u32,
    /// When to poll next.
    pub until: Option<Cycles>,
}

impl Stream {
    /// The worker rests in moment `now`: whether this sender gets timer polling, at [`Self::until`], instead of being armed. Its port
    /// received `delivered` frames so far; its ring has `room` for so many frames.
    pub(crate) fn update_timer_poll(&mut self, room: u16, delivered: u64, now: Cycles) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        let few = (1..=u32::from(room) / 4).contains(&std::mem::take(&mut self.came));
        let goes_on = few && delivered == self.delivered && now.wrapping_sub(self.rested_at) < 2 * in_cycles(LONGEST_POLL);
        self.rests = if goes_on { self.rests.saturating_add(1) } else { 0 };
        (self.rested_at, self.delivered) = (now, delivered);
        self.until = (self.rests >= STREAM_PROOF).then(|| now.saturating_add(in_cycles(LONGEST_POLL)));
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ROOM: u16 = 256;

    /// A stream of `rests` rests, each 10 us after the last, with `frames` in between; the moment of the last.
    fn stream(rests: u64, frames: u32) -> (Stream, Cycles) {
        let step = in_cycles(Duration::from_micros(10));
        let mut stream = Stream::default();
        for rest in 1..=rests {
            stream.came = frames;
            let is_timed = stream.update_timer_poll(ROOM, 0, rest * step);
            assert!(!is_timed || rest >= STREAM_PROOF.into());
        }
        (stream, rests * step)
    }

    #[test]
    fn who_sends_on_without_an_answer_is_looked_at_later() {
        let (mut sender, now) = stream(20, 1);
        assert!(sender.until.is_some_and(|until| until > now));
        let later = now + in_cycles(LONGEST_POLL) + 1;
        sender.came = 7;
        assert!(sender.update_timer_poll(ROOM, 0, later), "it sent on");
        assert!(!sender.update_timer_poll(ROOM, 0, later + in_cycles(LONGEST_POLL) + 1), "it fell silent");
    }

    #[test]
    fn who_gets_answers_is_not() {
        let (mut sender, now) = stream(u64::from(STREAM_PROOF) - 1, 1);
        sender.came = 1;
        assert!(!sender.update_timer_poll(ROOM, 1, now + 2));
    }

    #[test]
    fn who_sends_seldom_is_not() {
        let mut sender = Stream::default();
        for rest in 1..100 {
            sender.came = 1;
            assert!(!sender.update_timer_poll(ROOM, 0, rest * 3 * in_cycles(LONGEST_POLL)));
        }
    }

    #[test]
    fn who_might_fill_its_ring_meanwhile_is_not() {
        let (sender, _) = stream(100, u32::from(ROOM) / 4 + 1);
        assert!(sender.until.is_none());
    }
}
