//! Shared-memory check: whether a guest's memory is shared with the switch at all.
//!
//! A front end without shared memory does not report that. Some send no memory, so that no virtqueue ever starts; others send a
//! file of which the guest uses only a private copy: its queues run and kicks arrive, but the rings in the file stay empty. The
//! guest then has no network, and the operator needs the cause. So a session with unused queues checks from time to
//! time, until they are.

use std::sync::Mutex;
use std::time::Duration;

use super::device::{self, Device};
use crate::port::Port;

/// First and longest pause before the next check. QEMU kicks when a queue starts, and the guest fills the receive queue when its
/// interface goes up, which takes seconds in a slow guest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(40));

/// The evidence against shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedMemoryProblem {
    /// Queues run, but their rings are empty and no kick has arrived. An idle guest looks the same.
    Silence,
    /// Kicks arrived, and the rings are empty.
    Private,
    /// Queues are set up, and there is no memory.
    Missing,
    /// Queues lie in holes of the memory that are still to be filled: `why` tells which wait.
    Unfilled,
}

impl SharedMemoryProblem {
    /// The advice to the operator.
    fn advice(self) -> Option<&'static str> {
        match self {
            Self::Silence | Self::Unfilled => None,
            Self::Private => Some(
                "its guest kicks, but its rings stay empty: if its interface is up, guest memory is a private copy of the file (share=off); \
                 set share=on at QEMU's memory back end (memlane qemu --memory prints it), libvirt's domain <access mode='shared'/>",
            ),
            Self::Missing => Some(
                "its front end passed no guest memory: it has no file, or one with share=off, which newer QEMU does not pass to back ends; \
                 give QEMU -object memory-backend-memfd,share=on or its memory-backend-file share=on (memlane qemu --memory prints it), \
                 libvirt's domain <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>",
            ),
        }
    }
}

/// The checks of a session until its next message.
pub(super) struct SharedMemoryCheck<'s> {
    port: &'s Port,
    device: &'s Mutex<Device>,
    /// Kicks that were counted before this session.
    kicks: u64,
    pause: Duration,
}

impl<'s> SharedMemoryCheck<'s> {
    /// The checks of the session with `device`; `kicks` were counted before it.
    pub(super) fn new(port: &'s Port, device: &'s Mutex<Device>, kicks: u64) -> Self {
        Self { port, device, kicks, pause: PAUSE.0 }
    }

    fn problem(&self) -> Option<SharedMemoryProblem> {
        let kicked = self.port.totals().kicks > self.kicks;
        device::lock(self.device).shared_memory_problem(kicked)
    }

    /// The pause before the next check; `None` if none is needed.
    pub(super) fn pause(&self) -> Option<Duration> {
        let is_needed = self.problem().is_some();
        if !is_needed {
            self.port.set_advice(None);
        }
        is_needed.then_some(self.pause)
    }

    /// Checks after a pause; returns false if only a message can change what it finds.
    pub(super) fn check(&mut self) -> bool {
        let problem = self.problem();
        if let Some(problem) = problem {
            self.port.set_advice(problem.advice());
        }
        self.pause = (self.pause * 2).min(PAUSE.1);
        // Memory can come only by a message.
        problem != Some(SharedMemoryProblem::Missing)
    }
}
