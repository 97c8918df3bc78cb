//! A sink: the destination of an egress queue's frames, a receive queue or the receive end of another kind of port
//! ([`crate::port::end`]).

use crate::memory::Fetch;
use crate::memory::faults::bring_in;
use crate::packet::{Loan, Packet};
use crate::port::end::ReceiveEnd;
use crate::ring::{PlaceOutcome, ReceiveQueue, Ring, RingFault};
use crate::stats::DropReason;

/// Runs `act` on the frame of `packet` with its payload fetched into `memory`; `None` if that fails.
pub(super) fn fetched<R>(
    packet: &mut Packet,
    fetch: Option<&dyn Fetch>,
    memory: &mut Vec<u8>,
    act: impl FnOnce(&mut Packet) -> R,
) -> Option<R> {
    let mut copy = packet.fetched(fetch?, memory)?;
    let result = act(&mut copy);
    packet.segments_done = copy.segments_done;
    Some(result)
}

/// Has the buffer segments of `packet` in memory; false if that takes too many page faults. A few buffer segments need no check.
pub(super) fn is_in_memory(packet: &Packet) -> bool {
    packet.loan == Loan::NONE || packet.is_foreign() || bring_in(packet.rest())
}

/// Destination of an egress queue's frames.
#[derive(Debug)]
pub(crate) enum Sink {
    Ring(Box<ReceiveQueue>),
    Other(Box<dyn ReceiveEnd>),
}

impl Sink {
    /// The ring, if it is one.
    #[inline]
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        match self {
            Self::Ring(receive) => Some(receive.ring()),
            Self::Other(_) => None,
        }
    }

    /// See [`ReceiveEnd::hand_over`]; the positions of a ring are in guest memory.
    pub(crate) fn hand_over(&mut self) {
        if let Self::Other(end) = self {
            end.hand_over();
        }
    }

    /// Whether it takes foreign frames, which carry Xen grants instead of bytes.
    #[inline]
    pub(crate) fn takes_foreign(&self) -> bool {
        matches!(self, Self::Other(end) if end.takes_foreign())
    }

    /// Whether frames go to the kernel, which reports holes of their senders' memory as errors (EFAULT).
    #[inline]
    pub(crate) fn lets_kernel_read(&self) -> bool {
        matches!(self, Self::Other(_))
    }

    pub(crate) fn place(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        match self {
            Self::Ring(receive) => receive.place(packet),
            Self::Other(_) if !is_in_memory(packet) => Ok(PlaceOutcome::Refused(DropReason::SenderMemory)),
            Self::Other(end) => Ok(end.place(packet)),
        }
    }

    /// Publishes placed frames to the receiver.
    pub(crate) fn publish(&mut self) {
        match self {
            Self::Ring(receive) => receive.ring().publish(),
            Self::Other(end) => end.publish(),
        }
    }

    /// Frames that were refused after they were placed, and the reasons.
    pub(crate) fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        match self {
            Self::Ring(_) => [(DropReason::ReceiverAbsent, 0); 2],
            Self::Other(end) => end.take_refused(),
        }
    }

    /// Receive descriptors that were walked to find room since this was last asked.
    pub(crate) fn take_walked(&mut self) -> u64 {
        match self {
            Self::Ring(receive) => receive.take_walked(),
            Self::Other(_) => 0,
        }
    }

    pub(crate) fn take_bad_chains(&mut self) -> u32 {
        match self {
            Self::Ring(receive) => receive.take_bad_chains(),
            Self::Other(_) => 0,
        }
    }

    /// Requests a notification of new room; true if there is some already, or if there are no notifications.
    pub(crate) fn arm(&mut self) -> bool {
        match self {
            Self::Ring(receive) => receive.ring().arm(),
            Self::Other(end) => end.has_room(),
        }
    }
}
