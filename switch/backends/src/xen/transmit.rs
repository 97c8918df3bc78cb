//! The transmit end (TX) of a Xen port: reads requests from the transmit ring and has the hypervisor copy the headers of each
//! frame into pages of ours, a batch by one grant copy request; the payload is only named by its grants.
//!
//! A frame of one request and of the usual MTU is copied entirely. The cost of grant copies depends on their number, hardly on
//! their bytes: a frame of which only the headers were copied takes three copies on the way to a Xen receiver, a frame copied as
//! a whole two. It can be delivered from the copy, since no guest can write there.
//!
//! Requests are answered in the order in which they came ([`BackRing`]), so a frame that is in flight to a slow receiver delays
//! the responses behind it, though not the frames (no head-of-line blocking of frames).

#![expect(
    clippy::indexing_slicing,
    reason = "records are numbered by the transmit itself, a start's length is that of its array at most"
)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::layer::GrantCopy;
use super::link::{QueueContext, SharedChannel, Shelf, Stage};
use super::netif::{GsoKind, MOST_SLOTS, Place, RING, TX_REQUEST, TxFrame, status, tx_response};
use super::ring::BackRing;
use crate::cpu_time::work_units::BATCH;
use crate::frame::{COPIED, ETHERNET, Layers, NetHeader, START, TCP, UDP};
use crate::memory::{Foreign, Iovec};
use crate::packet::{ChunkPool, Loan, Packet};
use crate::port::end::TransmitEnd;
use crate::ring::OpenOutcome;
use crate::stats::DropReason;

/// Pages for the headers of a batch.
const STAGE: u16 = 2;
/// Pages for frames copied entirely, a batch of them ([`BATCH`]); when all are in use, only headers of the next ones are
/// copied.
const SHELF: u16 = BATCH as u16 / 2;
/// Bytes that suffice to decide on most frames: Ethernet, IPv4, TCP. If the first request holds them, the others are not copied
/// from.
const ENOUGH: u32 = 54;

/// A frame that was read from the ring and is not answered.
#[derive(Debug)]
struct Record {
    frame: TxFrame,
    /// Headers of the frame, if it was not copied entirely.
    start: [u8; START],
    start_length: u32,
    /// The headers could be copied.
    readable: bool,
    /// Place of the entire frame, if it was copied.
    whole: Option<u16>,
    loan: Loan,
    /// Status of the response, once the frame is no longer in flight.
    answer: Option<i16>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct XenTransmit {
    link: Arc<QueueContext>,
    channel: SharedChannel,
    ring: BackRing,
    stage: Stage,
    shelf: Shelf,
    records: Box<[Record]>,
    free: Vec<u16>,
    /// Frames that are read and not yet opened.
    read: VecDeque<u16>,
    /// All frames without a response, in order.
    order: VecDeque<u16>,
    /// Frames released since the last [`TransmitEnd::publish`]: until then, copies to their receivers may be pending.
    settled: Vec<u16>,
    chunks: ChunkPool,
    copies: Vec<GrantCopy>,
    /// Destinations of the copies: a record, and the place of its headers or of the whole frame.
    starts: Vec<(u16, Iovec)>,
    iovecs: Vec<Iovec>,
}

impl XenTransmit {
    pub(super) fn new(link: Arc<QueueContext>, channel: SharedChannel, ring: BackRing) -> std::io::Result<Self> {
        let stage = Stage::new(&*link.layer, STAGE)?;
        let shelf = Shelf::new(&*link.layer, SHELF)?;
        let record = || Record {
            frame: TxFrame::new(),
            start: [0; START],
            start_length: 0,
            readable: false,
            whole: None,
            loan: Loan::NONE,
            answer: None,
        };
        Ok(Self {
            link,
            channel,
            ring,
            stage,
            shelf,
            records: (0..RING).map(|_| record()).collect(),
            free: (0..RING as u16).collect(),
            read: VecDeque::with_capacity(RING as usize),
            order: VecDeque::with_capacity(RING as usize),
            settled: Vec::with_capacity(RING as usize),
            // A list of buffer segments for each frame that the ring holds.
            chunks: ChunkPool::new(RING as u16),
            copies: Vec::new(),
            starts: Vec::new(),
            iovecs: Vec::with_capacity(MOST_SLOTS),
        })
    }

    /// Reads up to `most` frames and copies the headers or the whole of each. If the ring violates the protocol, none of this
    /// batch counts.
    fn read_ahead(&mut self, most: u16) {
        self.stage.empty();
        self.copies.clear();
        self.starts.clear();
        let mut waiting = match self.ring.waiting() {
            Ok(waiting) => waiting,
            Err(fault) => return self.link.fail(fault),
        };
        for _ in 0..most {
            if waiting == 0 || self.stage.left() < START as u32 {
                break;
            }
            let Some(index) = self.free.pop() else { break };
            let record = &mut self.records[usize::from(index)];
            let ring = &mut self.ring;
            let next = || {
                waiting = waiting.checked_sub(1)?;
                Some(ring.take::<TX_REQUEST>())
            };
            if let Err(fault) = record.frame.read(self.link.domain, next) {
                self.free.push(index);
                return self.link.fail(fault);
            }
            record.start_length = 0;
            (record.readable, record.answer, record.loan) = (true, None, Loan::NONE);
            self.order.push_back(index);
            self.read.push_back(index);
            let wanted = first_bytes(&record.frame);
            if !self.plan_entire(index) {
                self.plan_start(index, wanted);
            }
        }
        self.copy_starts();
    }

    /// Plans the copy of a whole frame, if it is short, in one request, and a place is free.
    fn plan_entire(&mut self, index: u16) -> bool {
        let record = &mut self.records[usize::from(index)];
        let &[part] = record.frame.parts.as_slice() else { return false };
        if !(START as u32 + 1..=Shelf::PLACE).contains(&part.length) {
            return false;
        }
        record.whole = self.shelf.take();
        let Some(place) = record.whole else { return false };
        let (to, iovec) = self.shelf.at(place);
        self.copies.push(GrantCopy::new(part.place, to, part.length));
        self.starts.push((index, iovec.first(part.length)));
        true
    }

    /// Plans the copy of the first `wanted` bytes of a frame, as far as they exist and are not copied yet.
    fn plan_start(&mut self, index: u16, wanted: u32) {
        let record = &self.records[usize::from(index)];
        let (mut skip, mut left) = (record.start_length, wanted.saturating_sub(record.start_length));
        for part in &record.frame.parts {
            let within = skip.min(part.length);
            skip -= within;
            let length = (part.length - within).min(left);
            if length == 0 {
                continue;
            }
            let Some((place, iovec)) = self.stage.take_contiguous(length) else { return };
            self.copies.push(GrantCopy::new(part.place.after(within), place, length));
            self.starts.push((index, iovec));
            left -= length;
        }
    }

    /// Makes the planned grant copies.
    fn copy_starts(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        self.link.layer.copy(&mut self.copies);
        for (copy, (index, iovec)) in self.copies.drain(..).zip(self.starts.drain(..)) {
            let record = &mut self.records[usize::from(index)];
            let at = record.start_length as usize;
            let length = (iovec.length() as usize).min(START - at);
            record.readable &= copy.is_done();
            if copy.is_done() && record.whole.is_none() {
                iovec.copy_in(&mut record.start[at..at + length]);
            }
            record.start_length += length as u32;
        }
    }

    /// Fills `packet` with the frame of a record.
    fn fill(&mut self, index: u16, packet: &mut Packet) -> Result<(), DropReason> {
        let record = &self.records[usize::from(index)];
        if (record.frame.length as usize) < ETHERNET {
            return Err(DropReason::Runt);
        }
        let most = record.frame.length.min(COPIED as u32);
        if wants_headers(&record.frame) && record.start_length < most && !has_headers(record) {
            // Headers that go on in other requests, which is rare.
            self.stage.empty();
            self.plan_start(index, most);
            self.copy_starts();
        }
        let record = &self.records[usize::from(index)];
        if !record.readable {
            return Err(DropReason::GrantRefused);
        }
        (packet.length, packet.start_length, packet.head) = (record.frame.length, record.start_length, index);
        let start = &mut packet.start[..record.start_length as usize];
        if let Some(place) = record.whole {
            let (granted, iovec) = self.shelf.at(place);
            iovec.copy_in(start);
            packet.header = header(&record.frame, start)?;
            packet.set_single_rest(iovec.first(packet.length).skip(packet.start_length));
            packet.set_granted(granted);
            return Ok(());
        }
        start.copy_from_slice(&record.start[..start.len()]);
        packet.header = header(&record.frame, start)?;
        self.iovecs.clear();
        self.iovecs.extend(after(&record.frame.parts, record.start_length).map(Iovec::naming));
        packet.set_named_rest(&self.iovecs, &mut self.chunks).map_err(|_| DropReason::ChainTooLong)
    }

    /// Releases a frame and sets the status of its response.
    fn settle(&mut self, index: u16, answer: i16, loan: Loan) {
        self.chunks.give_back(loan);
        self.records[usize::from(index)].answer = Some(answer);
        self.settled.push(index);
    }

    /// Writes the responses that are next in the ring's order.
    fn answer(&mut self) {
        while let Some(&index) = self.order.front()
            && let Some(answer) = self.records[usize::from(index)].answer
        {
            for place in &self.records[usize::from(index)].frame.places {
                let (id, status) = match place {
                    Place::Request(id) => (*id, answer),
                    Place::Extra => (0, status::NULL),
                };
                self.ring.answer(&tx_response(id, status));
            }
            self.order.pop_front();
            self.free.push(index);
        }
    }

    /// Frees the places of released frames, even if their responses wait for an earlier frame's.
    fn free_places(&mut self) {
        for index in self.settled.drain(..) {
            if let Some(place) = self.records[usize::from(index)].whole.take() {
                self.shelf.give_back(place);
            }
        }
    }
}

/// Bytes of a frame to copy at first: those of the first request, or else as many as mostly suffice.
fn first_bytes(frame: &TxFrame) -> u32 {
    let first = frame.parts.first().map_or(0, |part| part.length);
    first.max(ENOUGH.min(frame.length)).min(COPIED as u32)
}

/// The parts of a frame but for their first `skip` bytes.
fn after(parts: &[Foreign], skip: u32) -> impl Iterator<Item = Foreign> {
    let mut skip = skip;
    parts.iter().filter_map(move |part| {
        let within = skip.min(part.length);
        skip -= within;
        let length = part.length - within;
        (length > 0).then(|| Foreign { place: part.place.after(within), length })
    })
}

/// Whether the switch must know all headers of a frame.
fn wants_headers(frame: &TxFrame) -> bool {
    frame.checksum_blank || frame.gso.is_some()
}

/// Whether the copied bytes hold all headers of a record's frame.
fn has_headers(record: &Record) -> bool {
    let start = &record.start[..record.start_length as usize];
    let Some(layers) = Layers::find(start) else { return false };
    let length = match layers.protocol {
        TCP => start.get(layers.transport + 12).map_or(usize::MAX, |offset| usize::from(offset >> 4) * 4),
        _ => 8,
    };
    layers.transport.checked_add(length).is_some_and(|end| end <= start.len())
}

/// The GSO and checksum offload that a frame beginning with `start` asks for, as a virtio-net header: this protocol does not
/// state the checksum's offset.
fn header(frame: &TxFrame, start: &[u8]) -> Result<NetHeader, DropReason> {
    if !wants_headers(frame) {
        return Ok(NetHeader::default());
    }
    let layers = Layers::find(start).ok_or(DropReason::ChecksumMisplaced)?;
    let field = match layers.protocol {
        TCP => 16,
        UDP => 6,
        _ => return Err(DropReason::ChecksumMisplaced),
    };
    let transport = u16::try_from(layers.transport).map_err(|_| DropReason::ChecksumMisplaced)?;
    let Some(gso) = frame.gso else { return Ok(NetHeader::partial_checksum(transport, field)) };
    let kind = match gso.kind {
        GsoKind::Tcp4 => NetHeader::GSO_TCPV4,
        GsoKind::Tcp6 => NetHeader::GSO_TCPV6,
    };
    Ok(NetHeader::partial_checksum(transport, field).cut(kind, gso.size))
}

impl TransmitEnd for XenTransmit {
    fn look(&mut self, most: u16) -> u16 {
        if self.link.is_broken() {
            return 0;
        }
        if self.read.is_empty() {
            self.read_ahead(most);
        }
        // Requests of a ring that violates the protocol were read but not copied.
        if self.link.is_broken() { 0 } else { (self.read.len() as u16).min(most) }
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        let Some(&index) = self.read.front() else { return OpenOutcome::Nothing };
        match self.fill(index, packet) {
            Ok(()) => OpenOutcome::Packet,
            Err(reason) => {
                self.read.pop_front();
                self.settle(index, status::ERROR, Loan::NONE);
                OpenOutcome::Dropped(reason)
            }
        }
    }

    fn backpressure(&mut self, packet: &Packet) {
        self.chunks.give_back(packet.loan);
    }

    fn keep(&mut self, packet: &Packet) {
        self.read.pop_front();
        if let Some(record) = self.records.get_mut(usize::from(packet.head)) {
            record.loan = packet.loan;
        }
    }

    fn release(&mut self, head: u16) {
        let Some(record) = self.records.get_mut(usize::from(head)) else { return };
        let loan = std::mem::replace(&mut record.loan, Loan::NONE);
        self.settle(head, status::OKAY, loan);
    }

    /// The size is as many frames as the ring holds if all have as many slots as the last one.
    fn size(&self) -> u16 {
        let places = self.order.back().map_or(1, |&index| self.records[usize::from(index)].frame.places.len());
        (RING as usize / places.max(1)) as u16
    }

    fn has_news(&self) -> bool {
        !self.link.is_broken() && (!self.read.is_empty() || self.ring.has_requests())
    }

    fn arm(&mut self) -> bool {
        !self.link.is_broken() && (!self.read.is_empty() || self.ring.arm(1))
    }

    fn wake(&mut self) {
        self.channel.clear();
    }

    fn publish(&mut self) {
        self.free_places();
        self.answer();
        if self.ring.publish() {
            self.channel.notify();
        }
    }
}
