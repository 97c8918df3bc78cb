//! The seam between the worker and the kinds of ports.
//!
//! A kind of port is a folder beside this file. It brings two **ends** to a worker, and takes them away again:
//!
//! 1. a [`TransmitEnd`], where frames come in: the worker looks, opens a frame as a parcel, and disposes of it;
//! 2. a [`ReceiveEnd`], where they leave: the worker places parcels during a pass, and publishes when the pass ends;
//! 3. with them, in [`Ends`], the descriptors that tell the worker when there is more to read or room to write.
//!
//! Rings of vhost-user guests are ends too. The worker knows them by their own types, because nearly all frames go from ring to ring; every
//! other kind it knows by these traits only. [`super::null`] and [`super::loopback`] are the shortest examples.
//!
//! An end belongs to one worker and is called by its thread only. No method may wait: whatever is behind an end, all ports of the worker would
//! wait with it.

use std::fmt::Debug;
use std::fs::File;

use crate::parcel::Parcel;
use crate::ring::{Placed, Taken};
use crate::stats::DropReason;

/// Where frames come in. A frame stays where it is from [`Self::open`] until it is disposed of: by [`Self::finish`], or by
/// [`Self::keep_out`] and as many [`Self::come_back`] as it has holders; [`Self::postpone`] only puts it off.
pub trait TransmitEnd: Debug + Send {
    /// Frames that can be opened now, at most `most`.
    fn look(&mut self, most: u16) -> u16;

    /// Opens the next frame into `parcel`: all fields but `transmit`, `source` and `segments_done`.
    fn open(&mut self, parcel: &mut Parcel) -> Taken;

    /// Done with the opened frame.
    fn finish(&mut self, parcel: &Parcel);

    /// Leaves the opened frame where it is: it will be opened again. Whoever lends room for it takes that back.
    fn postpone(&mut self, _: &Parcel) {}

    /// Moves on without the opened frame, which `holders` parties hold.
    fn keep_out(&mut self, parcel: &Parcel, holders: u16);

    /// So many `more` parties hold the frame `head`.
    fn hold(&mut self, head: u16, more: u16);

    /// One party lets the frame `head` go.
    fn come_back(&mut self, head: u16);

    /// Frames that are held.
    fn out_count(&self) -> u16;

    /// Frames that may be held at most, as things are.
    fn size(&self) -> u16;

    /// True if there are frames that nobody will tell of again.
    fn has_news(&self) -> bool;

    /// Asks to be told of more frames; true if there are some already.
    fn arm(&mut self) -> bool {
        self.has_news()
    }

    /// Its descriptor says that there is something to read.
    fn wake(&mut self);

    /// Tells whoever is behind it what is done with. Receivers have what was placed by then.
    fn publish(&mut self) {}
}

/// Where frames leave.
pub trait ReceiveEnd: Debug + Send {
    /// Takes `parcel`, whose header was checked on transmit. Its pieces stay as they are until [`Self::publish`], and no longer.
    fn place(&mut self, parcel: &mut Parcel) -> Placed;

    /// Carries out what was placed.
    fn publish(&mut self);

    /// Frames that were placed and then not taken by whoever is behind it, since this was last asked, and why.
    fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        [(DropReason::ReceiverAbsent, 0); 2]
    }

    /// True if there is room that nobody will tell of again.
    fn has_room(&mut self) -> bool {
        false
    }

    /// Whether it takes parcels whose rest is only named ([`Parcel::is_foreign`]); else they are fetched for it.
    fn takes_foreign(&self) -> bool {
        false
    }

    /// A descriptor of [`Ends::room`] says that there may be room.
    fn wake(&mut self) {}
}

/// What a port brings to its worker.
#[derive(Debug)]
pub struct Ends {
    /// Where frames come in.
    pub transmit: Box<dyn TransmitEnd>,
    /// Where they leave.
    pub receive: Box<dyn ReceiveEnd>,
    /// Becomes readable when more frames have come, if it can tell.
    pub readable: Option<File>,
    /// Becomes writable when there is room again, if it can tell.
    pub writable: Option<File>,
    /// Becomes readable when there is room again, if it tells so.
    pub room: Option<File>,
}
