//! The receive end (RX) of an interface: gathers frames during a poll iteration and writes them as one batch when it ends.
//!
//! A frame's payload is not copied: it stays in the guest's memory until it is written. Its descriptor chain is completed when
//! the poll iteration ends, and the worker writes the batch before it publishes the used ring. The headers are copied.

#![expect(clippy::indexing_slicing, reason = "headers are within their array, and as long as the kind says")]

use std::sync::Arc;

use super::batch::{Batch, Gathered};
use super::handle::Interface;
use crate::frame::NetHeader;
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Plan, plan};
use crate::packet::Packet;
use crate::payload::range;
use crate::port::end::ReceiveEnd;
use crate::ring::PlaceOutcome;
use crate::stats::DropReason;

/// Errors while the interface is down, and after it was deleted: of tun (drivers/net/tun.c), and of packet(7).
const ABSENT: [i32; 5] = [libc::EIO, libc::EBADFD, libc::ENETDOWN, libc::ENXIO, libc::ENODEV];

/// See the module.
#[derive(Debug)]
pub(super) struct InterfaceReceive {
    interface: Arc<Interface>,
    batch: Batch,
    gathered: Gathered,
    refused: u32,
    /// Frames dropped because the interface was down or deleted.
    absent: u32,
}

impl InterfaceReceive {
    pub(super) fn new(interface: Arc<Interface>) -> Self {
        let batch = Batch::new(interface.kind);
        Self { interface, batch, gathered: Gathered::new(), refused: 0, absent: 0 }
    }

    fn place_unsegmented(&mut self, packet: &Packet) -> PlaceOutcome {
        let from = packet.start().len() as u32;
        if self.add(packet.header, packet.start(), packet, from, packet.rest_length()) {
            PlaceOutcome::Complete(1)
        } else {
            TOO_LONG
        }
    }

    fn place_segments(&mut self, packet: &mut Packet, partial: bool) -> PlaceOutcome {
        let Some(mut cutter) = Cutter::new(packet, partial) else { return PlaceOutcome::Refused(DropReason::BadSegmentation) };
        for index in 0..cutter.count() {
            if !self.add_segment(packet, &cutter.segment(index)) {
                return TOO_LONG;
            }
        }
        packet.segments_done = cutter.count() as u16;
        PlaceOutcome::Complete(cutter.count())
    }

    fn add_segment(&mut self, packet: &Packet, segment: &Segment<'_>) -> bool {
        let from = segment.headers.len() as u32 + segment.payload_offset;
        self.add(segment.header, segment.headers, packet, from, segment.payload_length)
    }

    /// Gathers a frame: `header`, `headers`, then `length` bytes of the packet's frame from byte `from` on. False if it has too
    /// many buffer segments.
    fn add(&mut self, header: NetHeader, headers: &[u8], packet: &Packet, from: u32, length: u32) -> bool {
        if self.gathered.is_full() {
            self.flush();
        }
        let own = packet.start().get(from as usize..).unwrap_or_default();
        let own = &own[..own.len().min(length as usize)];
        let after = (from + own.len() as u32).saturating_sub(packet.start().len() as u32);
        let rest = range(packet.rest(), after, length - own.len() as u32);
        self.gathered.add([&header.bytes()[..self.interface.kind.header()], headers, own], rest)
    }

    /// Writes the gathered frames.
    fn flush(&mut self) {
        let results = self.batch.write(&self.interface.file, &mut self.gathered);
        for &result in results.iter().filter(|&&result| result < 0) {
            *(if ABSENT.contains(&-result) { &mut self.absent } else { &mut self.refused }) += 1;
        }
    }
}

impl ReceiveEnd for InterfaceReceive {
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome {
        match plan(packet, &self.interface.offloads) {
            Plan::Segment { partial } => self.place_segments(packet, partial),
            // The kernel always accepts partial checksums.
            Plan::AsIs | Plan::Checksum => self.place_unsegmented(packet),
        }
    }

    fn publish(&mut self) {
        self.flush();
    }

    fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        let (refused, absent) = (std::mem::take(&mut self.refused), std::mem::take(&mut self.absent));
        [(DropReason::TapRefused, refused), (DropReason::ReceiverAbsent, absent)]
    }
}

const TOO_LONG: PlaceOutcome = PlaceOutcome::Refused(DropReason::TooLongForReceiver);
