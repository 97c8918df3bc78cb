//! A guest without a machine around it: memory, queue pairs and a front end, driven by hand.
//!
//! Nouns, in the order in which a test meets them:
//! 1. [`GuestBuilder`] ([`ToyGuest::builder`]): the guest's settings; `connect` or `listen` makes it.
//! 2. [`Habit`]: in which order its front end speaks.
//! 3. [`ToyGuest`]: `send` and `receive`; stop, start, reconnect; and everything inside it open for hostile hands.
//! 4. [`Layout`]: how a sent frame lies in descriptors. [`Frame`]: a received frame with its header.
//! 5. [`SavedGuest`]: a guest as a monitor saves it, and restores it as often as wanted.
//!
//! Directions are the guest's: it fills its [`TransmitQueue`]s and reads its [`ReceiveQueue`]s.

mod builder;
mod control;
mod habit;
mod handshake;
mod queue;
mod receive;
mod saved;
mod transmit;

use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::{self, Deadline};
use crate::frames::NetHeader;
use crate::frontend::features::{self, Features};
use crate::frontend::{Frontend, FrontendError, Inflight};
use crate::memory::{GuestMemory, MemoryError};
use crate::ring::{Interrupts, RingError};

pub use builder::{GuestBuilder, ReceiveBuffers, SendBuffers};
pub use control::ControlQueue;
pub use habit::{Habit, RingStep, Step, ToldBase};
pub use queue::Queue;
pub use receive::{Frame, ReceiveQueue};
pub use saved::SavedGuest;
pub use transmit::{Layout, TransmitQueue};

/// Why a guest cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The conversation with the back end failed.
    #[error(transparent)]
    Frontend(#[from] FrontendError),
    /// A ring is full, or the back end broke its rules.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The guest's memory is too small, or an address is outside it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Nothing came in time.
    #[error("{what} did not happen within {waited:?}")]
    TimedOut {
        /// The event that did not come.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The back end broke the rules of virtio-net.
    #[error("the back end broke the rules of virtio-net: {0}")]
    BadReceive(String),
    /// All send buffers are in flight.
    #[error("all {0} send buffers are in flight: wait for the back end, or give the guest more")]
    NoSendBuffer(u16),
    /// The frame does not fit a send buffer.
    #[error("a frame of {length} bytes with its header and layout does not fit a send buffer of {room}")]
    TooLong {
        /// Bytes of the frame.
        length: usize,
        /// Bytes of a send buffer.
        room: u32,
    },
    /// The guest has lost its back end, or never had one.
    #[error("the guest is not connected")]
    NotConnected,
    /// The back end does not offer a feature that the guest needs.
    #[error("the back end does not offer {0}")]
    NotOffered(String),
    /// The kernel refused something.
    #[error("{step}: {cause}")]
    Refused {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        cause: std::io::Error,
    },
}

type Result<T> = std::result::Result<T, GuestError>;

/// Where a guest finds its back end.
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// The back end listens here.
    Connect(PathBuf),
    /// The back end connects here.
    Listen(UnixListener),
    /// A connection that was there before the guest: it cannot be had again.
    Given,
}

/// A transmit queue and the receive queue beside it.
#[derive(Debug)]
pub struct Pair {
    /// The ring that the back end fills (index 2n).
    pub receive: ReceiveQueue,
    /// The ring that the guest fills (index 2n+1).
    pub transmit: TransmitQueue,
}

impl Pair {
    /// The two rings without their buffers: receive and transmit queue, for callers that bring buffers of their own.
    pub fn into_queues(self) -> (Queue, Queue) {
        (self.receive.queue, self.transmit.queue)
    }

    /// After its rings were reset: nothing is in flight, the receive buffers are posted anew, the bases are 0.
    fn begin_anew(&mut self) -> Result<()> {
        (self.transmit.queue.base, self.receive.queue.base) = (0, 0);
        self.transmit.forget();
        self.receive.forget();
        self.receive.fill()
    }
}

/// A guest; see the module's page.
#[derive(Debug)]
pub struct ToyGuest {
    plan: GuestBuilder,
    memory: GuestMemory,
    endpoint: Endpoint,
    frontend: Option<Frontend>,
    offered: Features,
    features: Features,
    pairs: Vec<Pair>,
    /// Which regions of the memory the back end shall know.
    announced: Vec<usize>,
    /// Which of them it was told of on this connection.
    told: Vec<usize>,
    /// Our end of the channel for the back end's own requests.
    channel: Option<UnixStream>,
    /// The back end's record of chains in flight, which outlives it.
    inflight: Option<Inflight>,
}

impl ToyGuest {
    /// A guest to be.
    pub fn builder() -> GuestBuilder {
        GuestBuilder::default()
    }

    /// The guest's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.plan.mac
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Features that the back end offered.
    pub fn offered(&self) -> Features {
        self.offered
    }

    /// Negotiated features.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Bytes of the header before each frame.
    pub fn header_bytes(&self) -> usize {
        features::header_bytes(self.features)
    }

    /// The queue pairs.
    pub fn pairs(&mut self) -> &mut [Pair] {
        &mut self.pairs
    }

    /// Queue pair `index`.
    ///
    /// # Panics
    /// When there is no such pair.
    pub fn pair(&mut self, index: usize) -> &mut Pair {
        &mut self.pairs[index]
    }

    /// Takes the queue pairs away from a started guest, for callers that drive the rings themselves. The guest keeps memory and
    /// connection alive but can neither send nor receive any more.
    pub fn take_pairs(&mut self) -> Vec<Pair> {
        std::mem::take(&mut self.pairs)
    }

    /// The conversation, for messages by hand.
    ///
    /// # Errors
    /// [`GuestError::NotConnected`].
    pub fn frontend(&mut self) -> Result<&mut Frontend> {
        self.frontend.as_mut().ok_or(GuestError::NotConnected)
    }

    /// Our end of the channel for the back end's own requests, if it was negotiated.
    pub fn backend_channel(&self) -> Option<&UnixStream> {
        self.channel.as_ref()
    }

    /// The back end's record of chains in flight, if that was negotiated.
    pub fn inflight(&self) -> Option<&Inflight> {
        self.inflight.as_ref()
    }

    /// Whether there is a back end at the other end of the socket.
    pub fn connected(&self) -> bool {
        self.frontend.as_ref().is_some_and(|frontend| !frontend.hung_up())
    }

    /// Sends one frame without offloads from the first queue pair, header and frame in one descriptor.
    ///
    /// # Errors
    /// [`GuestError::NoSendBuffer`], [`GuestError::TooLong`], [`GuestError::Ring`].
    pub fn send(&mut self, frame: &[u8]) -> Result<u16> {
        self.send_with(&NetHeader::default(), &Layout::single(), frame)
    }

    /// Sends one frame from the first queue pair with that header, laid out over descriptors like that. The head of its chain.
    ///
    /// # Errors
    /// The errors of [`ToyGuest::send`].
    pub fn send_with(&mut self, header: &NetHeader, layout: &Layout, frame: &[u8]) -> Result<u16> {
        self.send_from(0, header, layout, frame)
    }

    /// The same from queue pair `pair`.
    ///
    /// # Errors
    /// The errors of [`ToyGuest::send`].
    ///
    /// # Panics
    /// When there is no such pair.
    pub fn send_from(&mut self, pair: usize, header: &NetHeader, layout: &Layout, frame: &[u8]) -> Result<u16> {
        let header = &header.bytes()[..self.header_bytes()];
        let transmit = &mut self.pairs[pair].transmit;
        let head = transmit.add(&self.memory, header, layout, frame)?;
        transmit.queue.publish();
        Ok(head)
    }

    /// The next frame from any queue pair, waiting for it up to `timeout`.
    ///
    /// # Errors
    /// [`GuestError::TimedOut`]; [`GuestError::BadReceive`] and [`GuestError::Ring`] when the back end broke the rules.
    pub fn receive(&mut self, timeout: Duration) -> Result<Frame> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            if !self.wait_for_calls(deadline, |pair| &mut pair.receive.queue)? {
                return Err(GuestError::TimedOut { what: "the arrival of a frame", waited: timeout });
            }
        }
    }

    /// The next frame from any queue pair, if one has arrived.
    ///
    /// # Errors
    /// [`GuestError::BadReceive`] and [`GuestError::Ring`] when the back end broke the rules.
    pub fn try_receive(&mut self) -> Result<Option<Frame>> {
        let header = features::header_bytes(self.features);
        let mergeable = self.features & features::MRG_RXBUF != 0;
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            if let Some(mut frame) = pair.receive.take(&self.memory, header, mergeable)? {
                frame.pair = index;
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Waits until every sent chain is completed.
    ///
    /// # Errors
    /// [`GuestError::TimedOut`]; [`GuestError::Ring`] when the back end broke the rules.
    pub fn wait_sent(&mut self, timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(timeout);
        loop {
            let mut out = 0;
            for pair in &mut self.pairs {
                pair.transmit.reclaim()?;
                out += pair.transmit.queue.ring.in_flight();
            }
            if out == 0 {
                return Ok(());
            }
            if !self.wait_for_calls(deadline, |pair| &mut pair.transmit.queue)? {
                return Err(GuestError::TimedOut { what: "the return of all sent chains", waited: timeout });
            }
        }
    }

    /// Asks for an interrupt of one queue of each pair and waits for one: `true` when there may be something new, `false` when the
    /// deadline is over.
    fn wait_for_calls(&mut self, deadline: Deadline, which: impl Fn(&mut Pair) -> &mut Queue) -> Result<bool> {
        let mut waitable: Vec<BorrowedFd<'_>> = Vec::with_capacity(self.pairs.len());
        for pair in &mut self.pairs {
            let queue = which(pair);
            queue.call.drain();
            if queue.ring.set_interrupts(Interrupts::Next) {
                return Ok(true);
            }
            waitable.extend(queue.call.waitable());
        }
        if waitable.is_empty() {
            let something = || self.pairs.iter_mut().any(|pair| !matches!(which(pair).ring.completed(), Ok(0)));
            return Ok(deadline::until(deadline, something));
        }
        deadline::any_readable(&waitable, deadline).map_err(|cause| GuestError::Refused { step: "waiting for a call", cause })
    }
}
