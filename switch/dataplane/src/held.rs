//! Frames of a frozen network: those that were in flight to a receiver, apart from all queues.

use std::time::{Duration, Instant};

use thiserror::Error;

use crate::budget::Permit;
use crate::frame::{ETHERNET, NetHeader};
use crate::id::{PortId, RingKey};
use crate::offload::{self, Offloads};
use crate::packet::Packet;
use crate::port::Port;
use crate::time::Cycles;

/// Why a network does not freeze; it goes on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FreezeError {
    /// See there.
    #[error("the network is frozen already: `memlane thaw NET` lets it go on")]
    Already,
    /// Descriptor chains stay in flight.
    #[error("a worker does not stop: see the log for a front end that holds it up")]
    Busy,
}

/// The freeze of a network.
#[derive(Debug)]
pub(crate) struct Frozen {
    /// The frames in flight.
    pub lines: Vec<HeldLine>,
    /// Beginning of the freeze.
    pub since: Instant,
    /// Virtqueues that ran and were enabled.
    pub running: Vec<RingKey>,
}

/// A network that was frozen, and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thawed {
    /// How long no frame moved.
    pub paused: Duration,
    /// Frames that were held.
    pub frames: u64,
    /// Frames that were dropped, because the queue of their receiver did not run.
    pub lost: u64,
}

/// Memory of a frame beside its bytes.
pub(crate) const OVERHEAD: u64 = 128;
/// Most bytes of a frame.
const LONGEST: usize = 1 << 17;

/// The frames in flight to one receive queue, and the state of the emulated link before it. Times are cycles after the thaw.
#[derive(Debug)]
pub struct HeldLine {
    /// The receiver.
    pub port: PortId,
    /// The queue pair.
    pub pair: u16,
    /// The frames, in the order in which they arrive.
    pub frames: Vec<HeldFrame>,
    /// State of the generator of losses and delays.
    pub seed: u64,
    /// The link is in the bad state of its bursts.
    pub bad: bool,
    /// When each frame in the queue of the link's transmitter has left.
    pub leaving: Vec<Cycles>,
    /// When the last frame arrives.
    pub last_due: Cycles,
}

/// A frame in flight.
#[derive(Debug)]
pub struct HeldFrame {
    /// The sender.
    pub source: PortId,
    /// Requested offloads, which were checked.
    pub header: NetHeader,
    /// The Ethernet frame.
    pub frame: Box<[u8]>,
    /// Segments that were delivered already.
    pub segments_done: u16,
    /// Time until it arrives.
    pub left: Cycles,
    pub(crate) permit: Permit,
}

impl HeldFrame {
    /// The frame with these `bytes`, from a sender to a `receiver`, at which it arrives after the time `left`. `None` if its offloads break a rule,
    /// its length is none of a frame, or there is no memory for it.
    pub fn new(
        (source, receiver): (PortId, &Port),
        header: NetHeader,
        bytes: Box<[u8]>,
        segments_done: u16,
        left: Cycles,
    ) -> Option<Self> {
        if !(ETHERNET..=LONGEST).contains(&bytes.len()) {
            return None;
        }
        let mut frame = bytes;
        let mut packet = Packet::default();
        // The packet ends before the frame does.
        packet.set_frame(header, &mut frame);
        offload::check(&mut packet, &Offloads::ALL).ok()?;
        let header = packet.header;
        let permit = receiver.on_links().take_again(frame.len() as u64 + OVERHEAD)?;
        Some(Self { source, header, frame, segments_done, left, permit })
    }
}
