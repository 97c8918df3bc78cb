//! A feed: the queue from which a source takes frames, a transmit queue or the transmit end of another kind of port
//! ([`crate::port::end`]).

use crate::notice::Missed;
use crate::parcel::Parcel;
use crate::port::end::TransmitEnd;
use crate::ring::{Ring, RingFault, Taken, TransmitQueue};

/// Transmit queue of a guest, or the end of another kind of port. See [`TransmitQueue`] for the contract of the methods.
#[derive(Debug)]
pub(crate) enum Feed {
    Ring(Box<TransmitQueue>),
    Other(Box<dyn TransmitEnd>),
}

impl Feed {
    /// The ring, if it is one.
    #[inline]
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        match self {
            Self::Ring(transmit) => Some(transmit.ring()),
            Self::Other(_) => None,
        }
    }

    #[inline]
    pub(crate) fn look(&mut self, most: u16) -> Result<u16, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.look(most),
            Self::Other(end) => Ok(end.look(most)),
        }
    }

    pub(crate) fn open(&mut self, parcel: &mut Parcel) -> Result<Taken, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.open(parcel),
            Self::Other(end) => Ok(end.open(parcel)),
        }
    }

    /// Descriptors that were walked since this was last asked.
    #[inline]
    pub(crate) fn take_walked(&mut self) -> u64 {
        match self {
            Self::Ring(transmit) => transmit.take_walked(),
            Self::Other(_) => 0,
        }
    }

    /// True if there are more frames than were taken.
    pub(crate) fn has_more(&mut self) -> bool {
        match self {
            Self::Ring(transmit) => transmit.ring().has_untaken() || transmit.ring().has_news(),
            Self::Other(end) => end.has_news(),
        }
    }

    /// A notification that seems lost: an interrupt, or a kick while the source was `asleep`.
    pub(crate) fn missed(&mut self, asleep: bool) -> Option<Missed> {
        match self {
            Self::Ring(transmit) => {
                let ring = transmit.ring();
                if asleep && ring.has_news() { Some(Missed::Kick) } else { ring.awaits_call().then_some(Missed::Call) }
            }
            Self::Other(end) => (asleep && end.has_news()).then_some(Missed::Kick),
        }
    }

    pub(crate) fn discard(&mut self) -> Result<bool, RingFault> {
        match self {
            Self::Ring(transmit) => transmit.discard(),
            Self::Other(_) => Ok(false),
        }
    }

    pub(crate) fn finish(&mut self, parcel: &Parcel) {
        match self {
            Self::Ring(transmit) => transmit.finish(parcel),
            Self::Other(end) => end.finish(parcel),
        }
    }

    pub(crate) fn postpone(&mut self, parcel: &Parcel) {
        match self {
            Self::Ring(transmit) => transmit.postpone(parcel),
            Self::Other(end) => end.postpone(parcel),
        }
    }

    pub(crate) fn keep_out(&mut self, parcel: &Parcel, holders: u16) {
        match self {
            Self::Ring(transmit) => transmit.keep_out(parcel, holders),
            Self::Other(end) => end.keep_out(parcel, holders),
        }
    }

    pub(crate) fn hold(&mut self, head: u16, more: u16) {
        match self {
            Self::Ring(transmit) => transmit.hold(head, more),
            Self::Other(end) => end.hold(head, more),
        }
    }

    pub(crate) fn come_back(&mut self, head: u16) {
        match self {
            Self::Ring(transmit) => transmit.come_back(head),
            Self::Other(end) => end.come_back(head),
        }
    }

    pub(crate) fn out_count(&self) -> u16 {
        match self {
            Self::Ring(transmit) => transmit.out_count(),
            Self::Other(end) => end.out_count(),
        }
    }

    /// Maximum of frames in flight.
    pub(crate) fn size(&mut self) -> u16 {
        match self {
            Self::Ring(transmit) => transmit.ring().size(),
            Self::Other(end) => end.size(),
        }
    }

    /// Requests a notification of new frames; true if there are some already.
    pub(crate) fn arm(&mut self) -> bool {
        match self {
            Self::Ring(transmit) => transmit.ring().arm(),
            Self::Other(end) => end.arm(),
        }
    }

    /// Publishes completions to the sender.
    pub(crate) fn publish(&mut self) {
        match self {
            Self::Ring(transmit) => transmit.ring().publish(),
            Self::Other(end) => end.publish(),
        }
    }
}
