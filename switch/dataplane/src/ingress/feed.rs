//! A feed: the queue from which a source takes frames, a transmit queue or the transmit end of another kind of port
//! ([`crate::port::end`]).

use crate::in_flight::InFlight;
use crate::notification::{Missed, NotificationState};
use crate::packet::Packet;
use crate::port::end::{NOTHING_LOST, TransmitEnd};
use crate::ring::{OpenOutcome, Ring, RingFault, TransmitQueue};
use crate::stats::DropReason;

/// Transmit queue of a guest, or the end of another kind of port. See [`TransmitQueue`] for the contract of the methods.
#[derive(Debug)]
pub(crate) enum Feed {
    Ring(Box<TransmitQueue>),
    Other(Box<dyn TransmitEnd>, InFlight<()>),
}

impl Feed {
    /// The transmit end of another kind of port, with no frame in flight.
    pub(crate) fn other(end: Box<dyn TransmitEnd>) -> Self {
        Self::Other(end, InFlight::new(0, ()))
    }

    /// The ring, if it is one.
    #[inline]
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        match self {
            Self::Ring(transmit) => Some(transmit.ring()),
            Self::Other(..) => None,
        }
    }

    /// See [`TransmitEnd::hand_over`]; the positions of a ring are in guest memory.
    pub(crate) fn hand_over(&mut self) {
        if let Self::Other(end, _) = self {
            end.hand_over();
        }
    }

    #[inline]
    pub(crate) fn look(&mut self, most: u16) -> Result<u16, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.look(most),
            Self::Other(end, _) => Ok(end.look(most)),
        }
    }

    pub(crate) fn open(&mut self, packet: &mut Packet) -> Result<OpenOutcome, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.open(packet),
            Self::Other(end, _) => Ok(end.open(packet)),
        }
    }

    /// Descriptors that were walked since this was last asked.
    #[inline]
    pub(crate) fn take_walked(&mut self) -> u64 {
        match self {
            Self::Ring(transmit) => transmit.take_walked(),
            Self::Other(..) => 0,
        }
    }

    /// Frames that were lost before they could be opened, since this was last asked.
    pub(crate) fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        match self {
            Self::Ring(_) => NOTHING_LOST,
            Self::Other(end, _) => end.take_lost(),
        }
    }

    /// True if there are more frames than were taken.
    pub(crate) fn has_more(&mut self) -> bool {
        match self {
            Self::Ring(transmit) => transmit.ring().has_untaken() || transmit.ring().has_news(),
            Self::Other(end, _) => end.has_news(),
        }
    }

    /// Lost-notification check by its notification `state`, as [`Ring::look_after`].
    pub(super) fn look_after(&mut self, state: &mut NotificationState, asleep: bool) -> Result<Option<Missed>, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.ring().look_after(state, asleep),
            Self::Other(end, _) => Ok(state.look(|| (asleep && end.has_news()).then_some(Missed::Kick))),
        }
    }

    pub(crate) fn discard(&mut self) -> Result<bool, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.discard(),
            Self::Other(..) => Ok(false),
        }
    }

    pub(crate) fn finish(&mut self, packet: &Packet) {
        match self {
            Self::Ring(transmit) => transmit.finish(packet),
            Self::Other(end, _) => end.finish(packet),
        }
    }

    pub(crate) fn backpressure(&mut self, packet: &Packet) {
        match self {
            Self::Ring(transmit) => transmit.backpressure(packet),
            Self::Other(end, _) => end.backpressure(packet),
        }
    }

    pub(crate) fn keep_in_flight(&mut self, packet: &Packet, holders: u16) {
        match self {
            Self::Ring(transmit) => transmit.keep_in_flight(packet, holders),
            Self::Other(end, in_flight) => {
                end.keep(packet);
                in_flight.keep(packet.head, holders, ());
            }
        }
    }

    pub(crate) fn hold(&mut self, head: u16, more: u16) {
        match self {
            Self::Ring(transmit) => transmit.hold(head, more),
            Self::Other(_, in_flight) => in_flight.hold(head, more),
        }
    }

    pub(crate) fn come_back(&mut self, head: u16) {
        match self {
            Self::Ring(transmit) => transmit.come_back(head),
            Self::Other(end, in_flight) => in_flight.release(head).into_iter().for_each(|()| end.release(head)),
        }
    }

    pub(crate) fn in_flight(&self) -> u16 {
        match self {
            Self::Ring(transmit) => transmit.in_flight(),
            Self::Other(_, in_flight) => in_flight.count(),
        }
    }

    /// Maximum of frames in flight.
    pub(crate) fn size(&mut self) -> u16 {
        match self {
            Self::Ring(transmit) => transmit.ring().size(),
            Self::Other(end, _) => end.size(),
        }
    }

    /// Requests a notification of new frames; true if there are some already.
    pub(crate) fn arm(&mut self) -> bool {
        match self {
            Self::Ring(transmit) => transmit.ring().arm(),
            Self::Other(end, _) => end.arm(),
        }
    }

    /// Publishes completions to the sender.
    pub(crate) fn publish(&mut self) {
        match self {
            Self::Ring(transmit) => transmit.ring().publish(),
            Self::Other(end, _) => end.publish(),
        }
    }
}
