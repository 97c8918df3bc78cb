//! Dirty pages: every write to the guest is marked in the front end's dirty log, while there is one (live migration, snapshots).
//!
//! Receive buffers and answers are marked at their guest addresses once they are written, used elements when they are published. A
//! ring without a log pays for this with a branch for each frame of the general path and each publication. The fast path has none:
//! it is left while its receiver is logged.

use std::sync::Arc;

use super::Ring;
use crate::memory::{DirtyLog, Iovec};

/// Bytes of a used element.
const ELEMENT: u64 = 8;
/// Bytes of the used ring's flags and index.
const HEAD: u64 = 4;
/// Bytes of its request for kicks.
const REQUEST: u64 = 2;

/// The dirty log of one ring.
#[derive(Clone, Debug)]
pub struct RingLog {
    /// The bitmap.
    pub log: Arc<DirtyLog>,
    /// Guest address at which writes to the used ring are marked, where the front end states it (VHOST_VRING_F_LOG); else they are
    /// marked where the memory map has the ring.
    pub used: Option<u64>,
}

impl Ring {
    /// Has writes marked in `log` from now on, or in none. The switch has written the used ring's flags when the ring began.
    pub fn set_log(&mut self, log: Option<RingLog>) {
        self.log = log.map(Box::new);
        self.log_used(0, HEAD);
    }

    /// Whether writes are marked.
    #[inline(always)]
    pub(super) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Marks the buffer segment `written`, which lies in the guest's memory.
    #[cold]
    pub(super) fn log_written(&self, written: Iovec) {
        if let (Some(log), Some(address)) = (&self.log, self.memory.guest_address(written.as_ptr())) {
            log.log.mark(address, written.length().into());
        }
    }

    /// Marks the used elements from position `from` on that were published, and the used index.
    #[cold]
    pub(super) fn log_published(&self, from: u16) {
        let count = u64::from(self.published_used.wrapping_sub(from)).min(self.size().into());
        let start = self.split.used_offset(from);
        let before_end = (self.split.request_offset() - start).min(ELEMENT * count);
        self.log_used(start, before_end);
        self.log_used(self.split.used_offset(0), ELEMENT * count - before_end);
        self.log_used(0, HEAD);
    }

    /// Marks the requests for kicks, by flags and by position.
    #[cold]
    pub(super) fn log_requests(&self) {
        self.log_used(0, HEAD);
        self.log_used(self.split.request_offset(), REQUEST);
    }

    /// Marks `length` bytes of the used ring from byte `offset` on.
    fn log_used(&self, offset: u64, length: u64) {
        let Some(log) = &self.log else { return };
        let start = log.used.or_else(|| self.memory.guest_address(self.split.used_ring()));
        if let Some(start) = start {
            log.log.mark(start.saturating_add(offset), length);
        }
    }
}
