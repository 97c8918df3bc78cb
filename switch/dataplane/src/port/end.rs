//! The interface between the worker and the kinds of ports.
//!
//! A kind of port is a [`Backend`] in the crate `memlane-backends`. It brings two **ends** to a worker, and takes them away again:
//!
//! 1. a [`TransmitEnd`], where frames enter the switch: the worker looks for frames, opens each as a packet, and completes it;
//! 2. a [`ReceiveEnd`], where they leave: the worker places packets during a poll iteration, and publishes them when it ends;
//! 3. with them, in [`Ends`], the descriptors that notify the worker when there is more to read or room to write.
//!
//! Virtqueues of vhost-user guests are ends too. The worker knows them by their own types, because nearly all frames go from
//! virtqueue to virtqueue; every other kind it knows by these traits only. `null` and `loopback` of the crate `memlane-backends`
//! are the shortest examples.
//!
//! An end belongs to one worker and is called by its thread only. No method may block: all ports of the worker would wait with it.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::packet::Packet;
use crate::pool::Pool;
use crate::ring::{OpenOutcome, PlaceOutcome};
use crate::stats::DropReason;

/// The back end of a port without virtqueues: a TAP device, a stream socket, a loopback.
///
/// [`Network::serve`](crate::network::Network::serve) starts it at a worker, [`Network::stop_port`](crate::network::Network::stop_port) ends it.
/// A port may be served again by another value of its back end, as when a stream connects again.
///
/// ```
/// use std::io;
/// use std::sync::Arc;
///
/// use memlane_dataplane::network::{Network, AttachSettings};
/// use memlane_dataplane::pool::Pool;
/// use memlane_dataplane::port::end::{Backend, Ends, ReceiveEnd, TransmitEnd};
/// use memlane_dataplane::port::settings::PortSettings;
/// use memlane_dataplane::port::{Offer, PortState};
/// use memlane_dataplane::settings::Settings;
/// use memlane_dataplane::shared::Shared;
/// use memlane_virtq::packet::Packet;
/// use memlane_virtq::ring::{PlaceOutcome, OpenOutcome};
///
/// /// Sends nothing, and takes every frame that it is sent.
/// #[derive(Debug)]
/// struct Sink;
///
/// impl Backend for Sink {
///     fn into_ends(self, _: &Arc<Pool>) -> io::Result<Ends> {
///         Ok(Ends { transmit: Box::new(Self), receive: Box::new(Self), readable: None, writable: None, room: None })
///     }
/// }
///
/// impl TransmitEnd for Sink {
///     fn look(&mut self, _most: u16) -> u16 {
///         0
///     }
///     fn open(&mut self, _: &mut Packet) -> OpenOutcome {
///         OpenOutcome::Nothing
///     }
///     fn keep(&mut self, _: &Packet) {}
///     fn release(&mut self, _head: u16) {}
///     fn size(&self) -> u16 {
///         0
///     }
///     fn has_news(&self) -> bool {
///         false
///     }
///     fn wake(&mut self) {}
/// }
///
/// impl ReceiveEnd for Sink {
///     fn place(&mut self, _: &mut Packet) -> PlaceOutcome {
///         PlaceOutcome::Complete(1)
///     }
///     fn publish(&mut self) {}
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let network = Network::start(Shared::new(1, 7, Settings::default()), &[])?;
/// let (settings, offer) = (PortSettings::default(), Offer::default());
/// let attach_settings = AttachSettings { name: "sink", segment: "lan", settings: &settings, offer };
/// let port = network.add_port(&attach_settings, 1)?;
/// network.serve(&port, Sink)?;
/// assert_eq!(port.state(), PortState::Running);
/// network.shut_down();
/// # Ok(())
/// # }
/// ```
pub trait Backend {
    /// The ends, for a worker. Packet buffers come from `pool`.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    fn into_ends(self, pool: &Arc<Pool>) -> io::Result<Ends>;
}

/// No frames were lost: an answer of [`TransmitEnd::take_lost`].
pub const NOTHING_LOST: [(DropReason, u32); 2] = [(DropReason::SocketFull, 0); 2];

/// The transmit side: frames enter the switch. A frame stays in place from [`Self::open`] until [`Self::release`]. The worker counts
/// its holders ([`InFlight`](crate::in_flight::InFlight)), or leaves it for a later attempt ([`Self::backpressure`]).
pub trait TransmitEnd: Debug + Send {
    /// Frames that can be opened now, at most `most`.
    fn look(&mut self, most: u16) -> u16;

    /// Opens the next frame into `packet`: all fields but `transmit`, `source` and `segments_done`.
    fn open(&mut self, packet: &mut Packet) -> OpenOutcome;

    /// Backpressure: leaves the opened frame in place, to be opened again. An end that lends a buffer for it takes that back.
    fn backpressure(&mut self, _: &Packet) {}

    /// Moves on to the next frame. The opened one stays in place, under the number `packet.head`, until it is released.
    fn keep(&mut self, packet: &Packet);

    /// Completes the frame `head`, which was kept; called once for each.
    fn release(&mut self, head: u16);

    /// Completes the opened frame.
    fn finish(&mut self, packet: &Packet) {
        self.keep(packet);
        self.release(packet.head);
    }

    /// Maximum of frames in flight at present.
    fn size(&self) -> u16;

    /// True if there are frames without a further notification.
    fn has_news(&self) -> bool;

    /// Requests a notification of more frames; true if there are some already.
    fn arm(&mut self) -> bool {
        self.has_news()
    }

    /// The end's descriptor is readable.
    fn wake(&mut self);

    /// Publishes completions to the sender. Receivers have all placed frames by then.
    fn publish(&mut self) {}

    /// The worker stands still, and another process of the network goes on with the other side (takeover): frames that were read and not
    /// yet opened are kept where the port's session finds them. The end is used again only if the takeover fails.
    fn hand_over(&mut self) {}

    /// Frames of the other side that were lost before they could be opened, since this was last asked, and the reasons.
    fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        NOTHING_LOST
    }
}

/// The receive side: frames leave the switch.
pub trait ReceiveEnd: Debug + Send {
    /// Takes `packet`, with a header that was checked on transmit. Its buffer segments stay valid until [`Self::publish`], and no
    /// longer.
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome;

    /// Sends the placed frames.
    fn publish(&mut self);

    /// Frames that were placed and then refused by the other side, since this was last asked, and the reasons.
    fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        [(DropReason::ReceiverAbsent, 0); 2]
    }

    /// True if there is room without a further notification.
    fn has_room(&mut self) -> bool {
        false
    }

    /// Like [`TransmitEnd::hand_over`], of frames that were placed and are not yet written.
    fn hand_over(&mut self) {}

    /// Whether it takes foreign packets ([`Packet::is_foreign`], Xen grants); else they are fetched for it.
    fn takes_foreign(&self) -> bool {
        false
    }

    /// A descriptor of [`Ends::room`] is readable: there may be room.
    fn wake(&mut self) {}
}

/// The ends that a port brings to its worker.
#[derive(Debug)]
pub struct Ends {
    /// The transmit end: frames enter the switch.
    pub transmit: Box<dyn TransmitEnd>,
    /// The receive end: frames leave it.
    pub receive: Box<dyn ReceiveEnd>,
    /// Becomes readable when there are more frames, if the end can tell.
    pub readable: Option<File>,
    /// Becomes writable when there is room again, if the end can tell.
    pub writable: Option<File>,
    /// Becomes readable when there is room again, if the end can tell so.
    pub room: Option<File>,
}
