//! Dozing: a sender that streams is looked at from time to time, instead of kicking for every few frames.
//!
//! Where all CPUs are busy, a kick for each frame disturbs everybody: it wakes the worker, which calls the receiver, and both take a CPU away
//! from somebody. A sender that sends on without waiting for any answer gains more by being served in batches than it loses by
//! the time until the next look. Who waits for answers (TCP, requests) is never left to a timer, nor is who might fill its ring meanwhile.

use std::time::Duration;

use crate::time::{Cycles, in_cycles};

/// Time between two looks: what a frame of a stream may lie in its ring.
const DOZE: Duration = Duration::from_micros(200);
/// Rests in a row between which frames came and none went back, before a sender is taken to stream.
const PROOF: u8 = 8;

/// What is known of a sender's habit. See the module.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Rests in a row after which frames came.
    rests: u8,
    rested_at: Cycles,
    /// Frames delivered to the sender's port when the worker last rested.
    delivered: u64,
    /// Frames that came since.
    pub came: u32,
    /// The next look.
    pub until: Option<Cycles>,
}

impl Stream {
    /// The worker rests in moment `now`: whether this sender, to whose port `delivered` frames went so far, is to be looked at
    /// [later](Self::until) instead of being armed. Its ring has `room` for so many frames.
    pub(crate) fn dozes(&mut self, room: u16, delivered: u64, now: Cycles) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        let few = (1..=u32::from(room) / 4).contains(&std::mem::take(&mut self.came));
        let goes_on = few && delivered == self.delivered && now.wrapping_sub(self.rested_at) < 2 * in_cycles(DOZE);
        self.rests = if goes_on { self.rests.saturating_add(1) } else { 0 };
        (self.rested_at, self.delivered) = (now, delivered);
        self.until = (self.rests >= PROOF).then(|| now.saturating_add(in_cycles(DOZE)));
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u16 = 256;

    /// A stream of `rests` rests, each 10 us after the last, with `frames` in between; the moment of the last.
    fn stream(rests: u64, frames: u32) -> (Stream, Cycles) {
        let step = in_cycles(Duration::from_micros(10));
        let mut stream = Stream::default();
        for rest in 1..=rests {
            stream.came = frames;
            let dozed = stream.dozes(ROOM, 0, rest * step);
            assert!(!dozed || rest >= PROOF.into());
        }
        (stream, rests * step)
    }

    #[test]
    fn who_sends_on_without_an_answer_is_looked_at_later() {
        let (mut sender, now) = stream(20, 1);
        assert!(sender.until.is_some_and(|until| until > now));
        let later = now + in_cycles(DOZE) + 1;
        sender.came = 7;
        assert!(sender.dozes(ROOM, 0, later), "it sent on");
        assert!(!sender.dozes(ROOM, 0, later + in_cycles(DOZE) + 1), "it fell silent");
    }

    #[test]
    fn who_gets_answers_is_not() {
        let (mut sender, now) = stream(u64::from(PROOF) - 1, 1);
        sender.came = 1;
        assert!(!sender.dozes(ROOM, 1, now + 2));
    }

    #[test]
    fn who_sends_seldom_is_not() {
        let mut sender = Stream::default();
        for rest in 1..100 {
            sender.came = 1;
            assert!(!sender.dozes(ROOM, 0, rest * 3 * in_cycles(DOZE)));
        }
    }

    #[test]
    fn who_might_fill_its_ring_meanwhile_is_not() {
        let (sender, _) = stream(100, u32::from(ROOM) / 4 + 1);
        assert!(sender.until.is_none());
    }
}
