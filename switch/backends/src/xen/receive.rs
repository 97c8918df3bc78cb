//! The receive end (RX) of a Xen port: frames are gathered during a poll iteration and, when it ends, copied by the hypervisor
//! into the pages that the guest's receive requests name, all by one grant copy request.
//!
//! Frames from memory of ours, or of a guest of another kind, are copied through the **stage**, granted pages of ours. Frames of
//! another Xen guest are copied straight from its pages, except for their headers: the switch has decided by its own copy of
//! these, so that copy is delivered. A frame that was copied entirely on transmit is delivered from there. Responses are
//! written in the order of the requests.

#![expect(clippy::indexing_slicing, reason = "copies and answers are counted where they are appended")]

use std::sync::Arc;

use super::layer::{GrantCopy, PAGE};
use super::link::{QueueContext, SharedChannel, Stage};
use super::netif::{Gso, GsoKind, MOST_SLOTS, RX_SLOT, rx_flag, rx_request, rx_response, status};
use super::ring::BackRing;
use crate::frame::{MAX_FRAME, NetHeader, Segmentation, ip_version};
use crate::memory::{Fetch, Foreign, Granted, Iovec};
use crate::offload::checksum;
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Offloads, Plan, plan};
use crate::packet::Packet;
use crate::payload::{append, range};
use crate::port::end::ReceiveEnd;
use crate::ring::PlaceOutcome;
use crate::stats::DropReason;

/// Pages of the stage: enough for any one frame.
const STAGE: u16 = (MAX_FRAME / PAGE) as u16 + 2;
/// Gathered copies after which the request is made before the poll iteration ends.
const MOST_COPIES: usize = 256;

/// Receive offloads and features of the front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Takes {
    /// Frames may span several pages (scatter-gather).
    pub(super) scattered: bool,
    /// Receive offloads for IPv4.
    pub(super) v4: Offloads,
    /// Receive offloads for IPv6.
    pub(super) v6: Offloads,
}

/// A response to be written once the copies are made.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Response to the request with this id: the number of bytes, and flags.
    Bytes { id: u16, length: u16, flags: u16 },
    /// An extra in place of a response.
    Extra([u8; RX_SLOT]),
}

/// A gathered frame: the ends of its copies and of its responses.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    copies: usize,
    answers: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct XenReceive {
    link: Arc<QueueContext>,
    channel: SharedChannel,
    ring: BackRing,
    takes: Takes,
    /// Fetches frames that need their checksum completed.
    fetch: Arc<dyn Fetch>,
    stage: Stage,
    copies: Vec<GrantCopy>,
    answers: Vec<Answer>,
    frames: Vec<Gathered>,
    /// The buffer segments of the frame that is being placed.
    runs: Vec<Foreign>,
    /// Bytes of the frame for each of the receiver's pages.
    slots: Vec<u32>,
    /// Scratch for frames that need their checksum completed.
    bytes: Vec<u8>,
    /// Receive requests that the last frame without room needed.
    wanted: u32,
    refused: u32,
}

/// The receive ring has too few requests at the moment.
struct NoRoom;

impl XenReceive {
    pub(super) fn new(
        link: Arc<QueueContext>,
        channel: SharedChannel,
        ring: BackRing,
        takes: Takes,
        fetch: Arc<dyn Fetch>,
    ) -> std::io::Result<Self> {
        let stage = Stage::new(&*link.layer, STAGE)?;
        Ok(Self {
            link,
            channel,
            ring,
            takes,
            fetch,
            stage,
            copies: Vec::with_capacity(MOST_COPIES),
            answers: Vec::new(),
            frames: Vec::new(),
            runs: Vec::with_capacity(MOST_SLOTS + 1),
            slots: Vec::with_capacity(MOST_SLOTS),
            bytes: Vec::new(),
            wanted: 1,
            refused: 0,
        })
    }

    /// The receive offloads that apply to the frame of `packet`.
    fn offloads(&self, packet: &Packet) -> Offloads {
        if self.takes.v4 == self.takes.v6 {
            return self.takes.v4;
        }
        let version = if packet.header.is_plain() { 4 } else { ip_version(packet.start()).unwrap_or(4) };
        if version == 6 { self.takes.v6 } else { self.takes.v4 }
    }

    /// Has `act` place the frame, fetched first if it is only named by grants.
    fn with_bytes(&mut self, packet: &mut Packet, act: impl FnOnce(&mut Self, &mut Packet) -> PlaceOutcome) -> PlaceOutcome {
        if !packet.is_foreign() {
            return act(self, packet);
        }
        let mut memory = Vec::new();
        let Some(mut fetched) = packet.fetched(&*self.fetch, &mut memory) else {
            return PlaceOutcome::Refused(DropReason::GrantRefused);
        };
        let placed = act(self, &mut fetched);
        packet.segments_done = fetched.segments_done;
        placed
    }

    fn place_unsegmented(&mut self, packet: &Packet, checksum: bool) -> PlaceOutcome {
        if !self.takes.scattered && packet.length > PAGE {
            return PlaceOutcome::Refused(DropReason::TooLongForReceiver);
        }
        let put = if checksum {
            let start = packet.header.csum_start();
            let field = (start.into(), usize::from(start) + usize::from(packet.header.csum_offset()));
            let (headers, rest) = (packet.start(), packet.rest_length());
            self.put(NetHeader::default(), packet.length, |this| {
                this.lay_completed(headers, packet, headers.len() as u32, rest, field)
            })
        } else if let Some(frame) = packet.granted() {
            self.put(packet.header, packet.length, |this| this.runs.push(frame))
        } else {
            let headers = packet.start();
            self.put(packet.header, packet.length, |this| {
                this.lay_staged(headers, packet, headers.len() as u32, packet.rest_length())
            })
        };
        match put {
            Ok(()) => PlaceOutcome::Complete(1),
            Err(NoRoom) => PlaceOutcome::NoRoom,
        }
    }

    /// Segments the frame (TSO in software) and places as many segments as there is room for.
    fn place_segments(&mut self, packet: &mut Packet, partial: bool) -> PlaceOutcome {
        let Some(mut cutter) = Cutter::new(packet, partial) else { return PlaceOutcome::Refused(DropReason::BadSegmentation) };
        while u32::from(packet.segments_done) < cutter.count() {
            if self.put_segment(packet, &cutter.segment(packet.segments_done.into())).is_err() {
                return PlaceOutcome::NoRoom;
            }
            packet.segments_done += 1;
        }
        PlaceOutcome::Complete(cutter.count())
    }

    fn put_segment(&mut self, packet: &Packet, segment: &Segment<'_>) -> Result<(), NoRoom> {
        let headers = segment.headers;
        let from = headers.len() as u32 + segment.payload_offset;
        let length = segment.payload_length;
        self.put(segment.header, headers.len() as u32 + length, |this| match segment.complete {
            None => this.lay_staged(headers, packet, from, length),
            Some((start, field)) => this.lay_completed(headers, packet, from, length, (start as usize, field as usize)),
        })
    }

    /// Gathers a frame of `whole` bytes, if there is room for it; `lay` fills `runs`.
    fn put(&mut self, header: NetHeader, whole: u32, lay: impl FnOnce(&mut Self)) -> Result<(), NoRoom> {
        let gso = gso(header);
        let extras = u32::from(gso.is_some());
        let (room, least) = (self.room()?, whole.div_ceil(PAGE) + extras);
        if room < least {
            self.wanted = least;
            return Err(NoRoom);
        }
        if self.copies.len() + 2 * MOST_SLOTS + usize::from(STAGE) > MOST_COPIES || self.stage.left() < whole + 2 * PAGE {
            self.carry_out();
        }
        let before = self.stage.used();
        self.runs.clear();
        lay(self);
        self.divide(room);
        let needed = self.slots.len() as u32 + extras;
        if room < needed {
            self.wanted = needed;
            self.stage.go_back(before);
            return Err(NoRoom);
        }
        self.fill(header, gso);
        Ok(())
    }

    /// Receive requests that are available.
    fn room(&mut self) -> Result<u32, NoRoom> {
        self.ring.waiting().map_err(|fault| {
            self.link.fail(fault);
            NoRoom
        })
    }

    /// Fills `runs` for a frame of `headers`, then `length` bytes of the packet's frame from byte `from` on.
    fn lay_staged(&mut self, headers: &[u8], packet: &Packet, from: u32, length: u32) {
        let whole = headers.len() as u32 + length;
        if whole <= PAGE && !packet.is_foreign() {
            self.stage.keep_together(whole);
        }
        self.stage_bytes(headers);
        self.gather(packet, from, length);
    }

    /// Like [`Self::lay_staged`], with the checksum completed: its sum begins at byte `start` and is stored at `field`. The whole
    /// frame must be readable here, no part of it named by grants only.
    fn lay_completed(&mut self, headers: &[u8], packet: &Packet, from: u32, length: u32, (start, field): (usize, usize)) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend_from_slice(headers);
        append(packet, from, length, &mut bytes);
        checksum::complete(&mut bytes, start, field);
        self.stage_bytes(&bytes);
        self.bytes = bytes;
    }

    /// Adds `bytes`, copied to the stage.
    fn stage_bytes(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        if left.len() as u32 <= PAGE
            && let Some((place, iovec)) = self.stage.take_contiguous(left.len() as u32)
        {
            iovec.write(left);
            return self.runs.push(Foreign { place, length: iovec.length() });
        }
        while !left.is_empty()
            && let Some((place, iovec)) = self.stage.take(left.len() as u32)
        {
            iovec.write(left);
            left = &left[iovec.length() as usize..];
            self.runs.push(Foreign { place, length: iovec.length() });
        }
    }

    /// Adds `length` bytes of the packet's frame from byte `from` on: granted memory by its grants, other bytes copied to the
    /// stage.
    fn gather(&mut self, packet: &Packet, from: u32, length: u32) {
        let own = packet.start().get(from as usize..).unwrap_or_default();
        let own = &own[..own.len().min(length as usize)];
        if !own.is_empty() {
            self.stage_bytes(own);
        }
        let (after, length) = ((from + own.len() as u32).saturating_sub(packet.start().len() as u32), length - own.len() as u32);
        if packet.is_foreign() {
            self.runs.extend(named_range(packet, after, length));
            return;
        }
        for iovec in range(packet.rest(), after, length) {
            self.stage_iovec(iovec);
        }
    }

    fn stage_iovec(&mut self, iovec: Iovec) {
        let mut left = iovec;
        while left.length() > 0
            && let Some((place, to)) = self.stage.take(left.length())
        {
            left.copy_to(to);
            left = left.skip(to.length());
            match self.runs.last_mut() {
                // Contiguous bytes in one page are one run.
                Some(run) if follows(run, place) => run.length += to.length(),
                _ => self.runs.push(Foreign { place, length: to.length() }),
            }
        }
    }

    /// Divides the runs among the receiver's pages, `room` of them at most: runs are not divided if the frame fits that way, for each
    /// part of one is a copy.
    fn divide(&mut self, room: u32) {
        let slots = &mut self.slots;
        slots.clear();
        let mut whole = 0;
        for run in &self.runs {
            whole += run.length;
            match slots.last_mut() {
                Some(slot) if *slot + run.length <= PAGE => *slot += run.length,
                _ => slots.push(run.length),
            }
        }
        let tight = whole.div_ceil(PAGE) as usize;
        if slots.len() > tight && (slots.len() > MOST_SLOTS || slots.len() >= room as usize) {
            slots.clear();
            slots.extend((0..tight as u32).map(|slot| (whole - slot * PAGE).min(PAGE)));
        }
    }

    /// Takes a receive request for each of the slots and plans the grant copies.
    fn fill(&mut self, header: NetHeader, gso: Option<Gso>) {
        let begin = self.copies.len();
        let slots = std::mem::take(&mut self.slots);
        let mut runs = std::mem::take(&mut self.runs);
        let mut rest = runs.iter_mut();
        let mut run = rest.next();
        for (index, &slot) in slots.iter().enumerate() {
            let (id, reference) = rx_request(self.ring.take());
            let mut to = Granted { reference, offset: 0, domain: self.link.domain };
            let mut left = slot;
            while left > 0
                && let Some(from) = &mut run
            {
                let length = from.length.min(left);
                self.copies.push(GrantCopy::new(from.place, to, length));
                left -= length;
                to = to.after(if left > 0 { length } else { 0 });
                if length < from.length {
                    **from = Foreign { place: from.place.after(length), length: from.length - length };
                } else {
                    run = rest.next();
                }
            }
            let mut flags = if index + 1 < slots.len() { rx_flag::MORE_DATA } else { 0 };
            if index == 0 {
                flags |= first_flags(header, gso);
            }
            self.answers.push(Answer::Bytes { id, length: slot as u16, flags });
            if index == 0
                && let Some(gso) = gso
            {
                self.ring.take::<RX_SLOT>();
                self.answers.push(Answer::Extra(gso.extra()));
            }
        }
        runs.clear();
        (self.runs, self.slots) = (runs, slots);
        if self.frames.len() % 2 == 1 {
            // In reverse order, so that copies from the stage are the last of this frame and the first of the next: the
            // hypervisor looks a page up once for copies in a row.
            self.copies[begin..].reverse();
        }
        self.frames.push(Gathered { copies: self.copies.len(), answers: self.answers.len() });
    }

    /// Makes the planned grant copies and writes the responses.
    fn carry_out(&mut self) {
        if !self.copies.is_empty() {
            self.link.layer.copy(&mut self.copies);
        }
        let (mut copies, mut answers) = (&self.copies[..], &self.answers[..]);
        let (mut copied, mut answered) = (0, 0);
        for frame in self.frames.drain(..) {
            let (its_copies, other_copies) = copies.split_at(frame.copies - copied);
            let (its_answers, other_answers) = answers.split_at(frame.answers - answered);
            let done = its_copies.iter().all(GrantCopy::is_done);
            self.refused += u32::from(!done);
            for answer in its_answers {
                match answer {
                    Answer::Extra(extra) => self.ring.answer(extra),
                    Answer::Bytes { id, length, flags } => {
                        let status = if done { *length as i16 } else { status::ERROR };
                        self.ring.answer(&rx_response(*id, *flags, status));
                    }
                }
            }
            (copies, answers) = (other_copies, other_answers);
            (copied, answered) = (frame.copies, frame.answers);
        }
        self.copies.clear();
        self.answers.clear();
        self.stage.empty();
    }
}

/// Whether `place` follows the last byte of `run` in the same page.
fn follows(run: &Foreign, place: Granted) -> bool {
    let end = u32::from(run.place.offset) + run.length;
    end < PAGE && run.place.after(run.length) == place
}

/// Bytes `from..from + length` of a payload that is named by grants.
fn named_range(packet: &Packet, from: u32, length: u32) -> impl Iterator<Item = Foreign> {
    let (mut skip, mut left) = (from, length);
    packet.rest().filter_map(|iovec| iovec.named()).filter_map(move |name| {
        let within = skip.min(name.length);
        skip -= within;
        let length = (name.length - within).min(left);
        left -= length;
        (length > 0).then(|| Foreign { place: name.place.after(within), length })
    })
}

/// The GSO metadata for the receiver.
fn gso(header: NetHeader) -> Option<Gso> {
    let kind = match header.segmentation() {
        Ok(Some(Segmentation::Tcp4)) => GsoKind::Tcp4,
        Ok(Some(Segmentation::Tcp6)) => GsoKind::Tcp6,
        // Other kinds are segmented before, since the front end cannot have negotiated them.
        _ => return None,
    };
    Some(Gso { kind, size: header.gso_size() })
}

fn first_flags(header: NetHeader, gso: Option<Gso>) -> u16 {
    let checksum = header.flags() & NetHeader::NEEDS_CSUM != 0;
    let flags = if checksum { rx_flag::CSUM_BLANK | rx_flag::DATA_VALIDATED } else { 0 };
    flags | if gso.is_some() { rx_flag::EXTRA_INFO } else { 0 }
}

impl ReceiveEnd for XenReceive {
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome {
        if self.link.is_broken() {
            return PlaceOutcome::Refused(DropReason::ReceiverAbsent);
        }
        match plan(packet, &self.offloads(packet)) {
            Plan::AsIs => self.place_unsegmented(packet, false),
            Plan::Segment { partial: true } => self.place_segments(packet, true),
            // A checksum is summed up over bytes that must have an address here.
            Plan::Checksum => self.with_bytes(packet, |end, packet| end.place_unsegmented(packet, true)),
            Plan::Segment { partial: false } => self.with_bytes(packet, |end, packet| end.place_segments(packet, false)),
        }
    }

    fn publish(&mut self) {
        self.carry_out();
        if self.ring.publish() {
            self.channel.notify();
        }
    }

    fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        [(DropReason::GrantRefused, std::mem::take(&mut self.refused)), (DropReason::ReceiverAbsent, 0)]
    }

    fn has_room(&mut self) -> bool {
        !self.link.is_broken() && self.ring.arm(self.wanted)
    }

    fn takes_foreign(&self) -> bool {
        true
    }

    fn wake(&mut self) {
        self.channel.clear();
    }
}
