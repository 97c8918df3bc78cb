//! The state of a virtqueue that waits for memory that is still to be filled ([`super::waiting`]).

use crate::time::Cycles;

/// Attempts to read a descriptor chain, available ring or used ring while other threads cover pages of the guest's memory: a guest that makes
/// holes all the time costs a worker no more, and its virtqueue waits.
pub(super) const ATTEMPTS: u32 = 8;

/// Outcome of a look at the available index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Available {
    /// The index.
    Index(u16),
    /// The index lies in a hole.
    Hole,
    /// Another thread covers pages all the time.
    Unknown,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Since when the virtqueue has waited, without a publication in the used ring since.
    pub(super) since: Option<Cycles>,
    /// When it is looked at again; zero if the last attempt met no hole.
    pub(super) until: Cycles,
    /// The virtqueue was met in a hole after its driver had kicked.
    pub(super) suspect: bool,
    /// The fill timeout ended without evidence.
    pub(super) tired: bool,
    /// The used ring lay in a hole when it was read.
    pub(super) used_hole: bool,
    /// The used ring is there, or may be filled.
    pub(super) may_complete: bool,
}

impl Waiting {
    pub(super) fn new(used_hole: bool) -> Self {
        Self { used_hole, ..Self::default() }
    }

    /// The virtqueue is in other memory now.
    pub(super) fn move_memory(&mut self) {
        self.may_complete = false;
    }

    /// Chains were completed.
    #[inline]
    pub(super) fn end(&mut self) {
        if self.since.is_some() {
            (self.since, self.until) = (None, 0);
        }
    }

    /// Whether the used ring lies in a hole that is not to be filled now.
    #[inline]
    pub(super) fn is_used_hole(&self) -> bool {
        self.used_hole && !self.may_complete
    }
}
