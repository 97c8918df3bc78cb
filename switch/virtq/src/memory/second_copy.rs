//! A second copy of the payload, for builds that measure the worth of one copy ([`crate::ablation`]).

#![expect(
    clippy::indexing_slicing,
    reason = "a place that is moved to the start where the end is too near; in builds for measurement only"
)]

use std::cell::RefCell;

use super::Iovec;

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
pub(super) struct Buffers {
    bytes: Vec<u8>,
    next: usize,
}

impl Buffers {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes.max(AT_ONCE as usize)], next: 0 }
    }

    /// The next buffer, of so many bytes, at most [`AT_ONCE`].
    fn take(&mut self, length: usize) -> &mut [u8] {
        let from = if length > self.bytes.len() - self.next { 0 } else { self.next };
        self.next = (from + length.next_multiple_of(BUFFER)).min(self.bytes.len());
        &mut self.bytes[from..from + length]
    }

    pub(super) fn copy(&mut self, from: Iovec, to: Iovec) {
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
pub(super) fn copy_twice(from: Iovec, to: Iovec) {
    OF_WORKER.with_borrow_mut(|buffers| buffers.copy(from, to));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_in_turn() {
        let mut buffers = Buffers::new(1 << 20);
        let places: Vec<usize> = (0..600).map(|_| buffers.take(60).as_ptr().addr()).collect();
        assert_eq!(places.iter().collect::<std::collections::HashSet<_>>().len(), (1 << 20) / BUFFER);
        assert_eq!(places[0], places[(1 << 20) / BUFFER]);
    }
}
