//! Ablations: builds without one idea of the switch, to measure its worth (`make ablation`, the lab's `what_each_idea_is_worth`).
//!
//! Each is a Cargo feature, none of them in the default build. A constant here says if its idea is there; in the default build the
//! compiler removes every branch that asks it.

use std::cell::RefCell;

use crate::memory::Iovec;

/// Flow cache: a frame like the one before needs no new verdict.
pub const FLOW_CACHE: bool = !cfg!(feature = "ablation-no-flow-cache");
/// Fast path: frames that fit the flow cache go from ring to ring without a packet in between.
pub const FAST_PATH: bool = FLOW_CACHE && !cfg!(feature = "ablation-no-fast-path");
/// Fairness: accounts of the senders to a receiver, CPU-time fairness, and quotas of shared rings and queues. Without it the first sender
/// that comes is served first, until all is taken.
pub const FAIRNESS: bool = !cfg!(feature = "ablation-no-fairness");
/// Batching. Without it a service quantum is one frame, and a receiver is served one enqueued frame in a poll iteration.
pub const BATCHING: bool = !cfg!(feature = "ablation-no-batching");
/// One copy. Without it the payload is copied once more, by way of [`Buffers`].
pub(crate) const ONE_COPY: bool = !cfg!(any(feature = "ablation-copy-warm", feature = "ablation-copy-cold"));

/// Whether this build lacks none of them.
pub const IS_WHOLE: bool = FAST_PATH && FAIRNESS && ONE_COPY && BATCHING;

/// Bytes of all buffers of a second copy: more than caches hold, as the packet pools of DPDK; or so few that they stay in the cache.
const BUFFERS: usize = if cfg!(feature = "ablation-copy-cold") { 32 << 20 } else { 64 << 10 };
/// A buffer begins at a multiple of this, as DPDK's do.
const BUFFER: usize = 2048;
/// Bytes that are copied at once: more than a frame has.
const AT_ONCE: u32 = 64 << 10;
/// So few at once are stored through the cache ([`crate::copy`]).
const THROUGH_CACHE: usize = 16 << 10;

thread_local! {
    static OF_WORKER: RefCell<Buffers> = RefCell::new(Buffers::new(BUFFERS));
}

/// The buffers of a second copy, used in turn.
#[derive(Debug)]
struct Buffers {
    bytes: Vec<u8>,
    next: usize,
}

impl Buffers {
    fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes.max(AT_ONCE as usize)], next: 0 }
    }

    /// The next buffer, of so many bytes, at most [`AT_ONCE`].
    fn take(&mut self, length: usize) -> &mut [u8] {
        let from = if length > self.bytes.len() - self.next { 0 } else { self.next };
        self.next = (from + length.next_multiple_of(BUFFER)).min(self.bytes.len());
        &mut self.bytes[from..from + length]
    }

    fn copy(&mut self, from: Iovec, to: Iovec) {
        let length = from.length().min(to.length());
        for at in (0..length).step_by(AT_ONCE as usize) {
            let from = from.skip(at).first((length - at).min(AT_ONCE));
            let buffer = self.take(from.length() as usize);
            for (part, at) in buffer.chunks_mut(THROUGH_CACHE).zip((0..).step_by(THROUGH_CACHE)) {
                from.skip(at).copy_in(part);
            }
            to.skip(at).write(buffer);
        }
    }
}

/// Copies the bytes of `from` to `to`, as many as fit, by way of a buffer of this thread.
#[inline(never)]
pub(crate) fn copy_twice(from: Iovec, to: Iovec) {
    OF_WORKER.with_borrow_mut(|buffers| buffers.copy(from, to));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "buffer segments of the test's own memory")]
    fn a_second_copy_brings_the_same_bytes_whatever_their_number() {
        let mut buffers = Buffers::new(200_000);
        for length in [1, 1500, 2048, 16_384, 40_000, 65_535, 65_536, 65_537, 300_000] {
            let mut from: Vec<u8> = (0..length).map(|n: u32| (n * 7 + length) as u8).collect();
            let mut to = vec![0; from.len() + 1];
            for _ in 0..5 {
                to.fill(0);
                // SAFETY: the vectors outlive the buffer segments.
                let [source, target] =
                    [&mut from, &mut to].map(|bytes| unsafe { Iovec::new(bytes.as_mut_ptr(), bytes.len() as u32) });
                buffers.copy(source, target);
                assert_eq!((&to[..from.len()], to[from.len()]), (&from[..], 0), "{length}");
            }
        }
    }

    #[test]
    fn buffers_are_used_in_turn() {
        let mut buffers = Buffers::new(1 << 20);
        let places: Vec<usize> = (0..600).map(|_| buffers.take(60).as_ptr().addr()).collect();
        assert_eq!(places.iter().collect::<std::collections::HashSet<_>>().len(), (1 << 20) / BUFFER);
        assert_eq!(places[0], places[(1 << 20) / BUFFER]);
    }
}
