//! The two ends of a way through the worker: a **feed** gives frames, a **sink** takes them. Either is a guest's ring,
//! or what another kind of port brought ([`crate::port::end`]).

use crate::parcel::Parcel;
use crate::port::end::{DeliveryEnd, IntakeEnd};
use crate::ring::{Delivery, Intake, Placed, Ring, RingFault, Taken};
use crate::stats::DropReason;

/// Where a source's frames come from. See [`Intake`] for what the methods owe each other.
#[derive(Debug)]
pub(super) enum Feed {
    Ring(Box<Intake>),
    Other(Box<dyn IntakeEnd>),
}

impl Feed {
    /// The ring, if it is one.
    #[inline]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        match self {
            Self::Ring(intake) => Some(intake.ring()),
            Self::Other(_) => None,
        }
    }

    #[inline]
    pub(super) fn look(&mut self, most: u16) -> Result<u16, RingFault> {
        match self {
            Self::Ring(intake) => intake.look(most),
            Self::Other(end) => Ok(end.look(most)),
        }
    }

    pub(super) fn open(&mut self, parcel: &mut Parcel) -> Result<Taken, RingFault> {
        match self {
            Self::Ring(intake) => intake.open(parcel),
            Self::Other(end) => Ok(end.open(parcel)),
        }
    }

    /// Descriptors that were walked since this was last asked.
    #[inline]
    pub(super) fn take_walked(&mut self) -> u64 {
        match self {
            Self::Ring(intake) => intake.take_walked(),
            Self::Other(_) => 0,
        }
    }

    /// True if more has come than was taken.
    pub(super) fn has_more(&mut self) -> bool {
        match self {
            Self::Ring(intake) => intake.ring().has_untaken() || intake.ring().has_news(),
            Self::Other(end) => end.has_news(),
        }
    }

    pub(super) fn discard(&mut self) -> Result<bool, RingFault> {
        match self {
            Self::Ring(intake) => intake.discard(),
            Self::Other(_) => Ok(false),
        }
    }

    pub(super) fn finish(&mut self, parcel: &Parcel) {
        match self {
            Self::Ring(intake) => intake.finish(parcel),
            Self::Other(end) => end.finish(parcel),
        }
    }

    pub(super) fn postpone(&mut self, parcel: &Parcel) {
        if let Self::Ring(intake) = self {
            intake.postpone(parcel);
        }
    }

    pub(super) fn keep_out(&mut self, parcel: &Parcel, holders: u16) {
        match self {
            Self::Ring(intake) => intake.keep_out(parcel, holders),
            Self::Other(end) => end.keep_out(parcel, holders),
        }
    }

    pub(super) fn hold(&mut self, head: u16, more: u16) {
        match self {
            Self::Ring(intake) => intake.hold(head, more),
            Self::Other(end) => end.hold(head, more),
        }
    }

    pub(super) fn come_back(&mut self, head: u16) {
        match self {
            Self::Ring(intake) => intake.come_back(head),
            Self::Other(end) => end.come_back(head),
        }
    }

    pub(super) fn out_count(&self) -> u16 {
        match self {
            Self::Ring(intake) => intake.out_count(),
            Self::Other(end) => end.out_count(),
        }
    }

    /// Frames that may be out at most.
    pub(super) fn size(&mut self) -> u16 {
        match self {
            Self::Ring(intake) => intake.ring().size(),
            Self::Other(end) => end.size(),
        }
    }

    /// Asks to be told of new frames; true if there are some already.
    pub(super) fn arm(&mut self) -> bool {
        match self {
            Self::Ring(intake) => intake.ring().arm(),
            Self::Other(end) => end.has_news(),
        }
    }
}

/// Where an outlet's frames go.
#[derive(Debug)]
pub(super) enum Sink {
    Ring(Box<Delivery>),
    Other(Box<dyn DeliveryEnd>),
}

impl Sink {
    /// The ring, if it is one.
    #[inline]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        match self {
            Self::Ring(delivery) => Some(delivery.ring()),
            Self::Other(_) => None,
        }
    }

    pub(super) fn place(&mut self, parcel: &mut Parcel) -> Result<Placed, RingFault> {
        match self {
            Self::Ring(delivery) => delivery.place(parcel),
            Self::Other(end) => Ok(end.place(parcel)),
        }
    }

    /// Shows the receiver what was placed.
    pub(super) fn publish(&mut self) {
        match self {
            Self::Ring(delivery) => delivery.ring().publish(),
            Self::Other(end) => end.publish(),
        }
    }

    /// Frames that were not taken after they were placed, and why.
    pub(super) fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        match self {
            Self::Ring(_) => [(DropReason::ReceiverAbsent, 0); 2],
            Self::Other(end) => end.take_refused(),
        }
    }

    /// Descriptors that were walked to find room since this was last asked.
    pub(super) fn take_walked(&mut self) -> u64 {
        match self {
            Self::Ring(delivery) => delivery.take_walked(),
            Self::Other(_) => 0,
        }
    }

    pub(super) fn take_bad_chains(&mut self) -> u32 {
        match self {
            Self::Ring(delivery) => delivery.take_bad_chains(),
            Self::Other(_) => 0,
        }
    }

    /// Asks to be told of new room; true if there is some already, or if nobody will tell.
    pub(super) fn arm(&mut self) -> bool {
        match self {
            Self::Ring(delivery) => delivery.ring().arm(),
            Self::Other(end) => end.has_room(),
        }
    }
}
