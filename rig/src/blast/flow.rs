//! The two ends of a flow: frames sent, and frames received, lost, reordered or duplicated.

use super::stamp::Stamp;

/// The sending end.
#[derive(Debug)]
pub struct Source {
    /// The flow's index.
    pub flow: u16,
    /// Sequence number of the next frame; so also how many were sent.
    pub next: u64,
    /// Bytes sent, without virtio-net headers.
    pub bytes: u64,
    /// Templates of the next frames and their lengths, over and over: how sizes are mixed.
    schedule: Vec<(u32, u32)>,
    turn: usize,
}

impl Source {
    /// A flow that takes these templates (with their lengths) in turn.
    pub fn new(flow: u16, schedule: Vec<(u32, u32)>) -> Self {
        Self { flow, next: 0, bytes: 0, schedule, turn: 0 }
    }

    /// The template of the next frame.
    #[inline(always)]
    pub fn template(&self) -> u32 {
        self.schedule[self.turn].0
    }

    /// Bytes of the next frame.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        self.schedule[self.turn].1
    }

    /// The stamp of the next frame.
    #[inline(always)]
    pub fn stamp(&self, ticks: u64) -> Stamp {
        Stamp { flow: self.flow, sequence: self.next, ticks }
    }

    /// Goes on to the frame after the next.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.next += 1;
        self.bytes += u64::from(self.length());
        self.turn += 1;
        if self.turn == self.schedule.len() {
            self.turn = 0;
        }
    }
}

/// Sequence numbers that are remembered, to tell a frame that comes late from one that comes twice.
const MEMORY: u64 = 4096;

/// The receiving end.
#[derive(Debug, Clone, Default)]
pub struct Sink {
    /// Frames that arrived as they were sent.
    pub received: u64,
    /// Bytes of those, without virtio-net headers.
    pub bytes: u64,
    /// Frames that arrived after a later one.
    pub reordered: u64,
    /// Frames that arrived again.
    pub duplicated: u64,
    /// Frames with a wrong length or a wrong payload.
    pub corrupt: u64,
    /// The sequence number that comes next if nothing is lost.
    expected: u64,
    /// Which of the last [`MEMORY`] numbers below `expected` arrived; only while one of them is missing.
    arrived: Option<Box<[u64; MEMORY as usize / 64]>>,
    /// The number up to which `arrived` is worth keeping.
    keep_until: u64,
}

impl Sink {
    /// Notes the arrival of a sound frame.
    #[inline(always)]
    pub fn note(&mut self, sequence: u64, bytes: u64) {
        if sequence == self.expected && self.arrived.is_none() {
            self.expected += 1;
        } else if !self.out_of_turn(sequence) {
            return;
        }
        self.received += 1;
        self.bytes += bytes;
    }

    /// Frames that were sent before the latest arrival and have not come themselves.
    pub fn missing(&self) -> u64 {
        self.expected - self.received
    }

    /// Notes a frame of a flow that has gaps; `false` if it was there before.
    #[cold]
    fn out_of_turn(&mut self, sequence: u64) -> bool {
        let arrived = self.arrived.get_or_insert_with(|| Box::new([u64::MAX; MEMORY as usize / 64]));
        if sequence >= self.expected {
            let forget = (sequence - self.expected).min(MEMORY);
            for gap in sequence - forget..sequence {
                set(arrived, gap, false);
            }
            set(arrived, sequence, true);
            self.expected = sequence + 1;
            if forget > 0 {
                self.keep_until = self.expected + MEMORY;
            } else if self.expected >= self.keep_until {
                self.arrived = None;
            }
            return true;
        }
        // Older than the remembered sequence numbers: counted as late, for no switch repeats a frame after so many others.
        let remembered = self.expected - sequence <= MEMORY;
        if remembered && get(arrived, sequence) {
            self.duplicated += 1;
            return false;
        }
        set(arrived, sequence, true);
        self.reordered += 1;
        true
    }
}

fn set(arrived: &mut [u64; MEMORY as usize / 64], sequence: u64, value: bool) {
    let at = sequence % MEMORY;
    let (word, bit) = (&mut arrived[(at / 64) as usize], 1 << (at % 64));
    *word = if value { *word | bit } else { *word & !bit };
}

fn get(arrived: &[u64; MEMORY as usize / 64], sequence: u64) -> bool {
    let at = sequence % MEMORY;
    arrived[(at / 64) as usize] & 1 << (at % 64) != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fate(sequences: &[u64]) -> Sink {
        let mut sink = Sink::default();
        sequences.iter().for_each(|&sequence| sink.note(sequence, 60));
        sink
    }

    #[test]
    fn loss_lateness_and_repetition_are_told_apart() {
        let sink = fate(&[0, 1, 2, 5, 6, 3, 6, 3, 7]);
        assert_eq!((sink.received, sink.reordered, sink.duplicated, sink.missing()), (7, 1, 2, 1));
        assert_eq!(sink.bytes, 7 * 60);
        let sink = fate(&[0, 10_000, 10_001, 9_999, 9_999]);
        assert_eq!((sink.received, sink.reordered, sink.duplicated, sink.missing()), (4, 1, 1, 9_998));
    }

    proptest! {
        /// Against a plain set: any disturbance within the memory is counted right.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0u64..3, 0u64..40), 1..300)) {
            let (mut sink, mut seen, mut next) = (Sink::default(), std::collections::BTreeSet::new(), 0u64);
            let (mut late, mut twice) = (0, 0);
            for (kind, distance) in steps {
                let sequence = match kind {
                    0 => next,
                    1 => next + distance,
                    _ => next.saturating_sub(distance),
                };
                if !seen.insert(sequence) {
                    twice += 1;
                } else if sequence < next {
                    late += 1;
                }
                next = next.max(sequence + 1);
                sink.note(sequence, 1);
            }
            prop_assert_eq!((sink.reordered, sink.duplicated), (late, twice));
            prop_assert_eq!((sink.received, sink.missing()), (seen.len() as u64, next - seen.len() as u64));
        }
    }
}
