//! The receive end (RX) of a stream port: copies frames behind each other during a poll iteration, writes them when it ends, and
//! writes the rest when the socket has room again.

#![expect(
    clippy::indexing_slicing,
    reason = "what was appended begins where the bytes ended before; what was sent is no more than there was"
)]

use std::io::ErrorKind;
use std::sync::Arc;

use socket2::SockRef;

use super::Connection;
use super::nat::Translated;
use super::wire::{PREFIX, prefix};
use crate::frame::MAX_FRAME;
use crate::id::PortId;
use crate::offload::checksum;
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Offloads, Plan, plan};
use crate::packet::Packet;
use crate::payload::append;
use crate::port::end::ReceiveEnd;
use crate::ring::PlaceOutcome;
use crate::stats::DropReason;

/// Most bytes buffered for the socket: a few of the longest frames.
const MOST: usize = 4 * (PREFIX + MAX_FRAME as usize);

/// See the module.
#[derive(Debug)]
pub(super) struct StreamReceive {
    connection: Arc<Connection>,
    /// Frames with their length prefixes; the first `sent` bytes are written.
    bytes: Vec<u8>,
    sent: usize,
    /// Frames in `bytes`, to be counted as dropped if the connection is lost.
    frames: u32,
    /// The last write was short: epoll reports when the socket has room (backpressure).
    full: bool,
    refused: u32,
}

impl StreamReceive {
    /// `unwritten` is to be written first, and was placed by another process of the network.
    pub(super) fn new(connection: Arc<Connection>, unwritten: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(MOST);
        bytes.extend_from_slice(unwritten);
        let mut end = Self { connection, bytes, sent: 0, frames: 0, full: false, refused: 0 };
        end.write();
        end
    }

    /// Starts a frame of `length` bytes if there is room for it in the buffer.
    fn begin(&mut self, length: u32) -> bool {
        if self.bytes.len() + PREFIX + length as usize > MOST {
            self.write();
            self.bytes.drain(..std::mem::take(&mut self.sent));
            if self.bytes.len() + PREFIX + length as usize > MOST {
                return false;
            }
        }
        self.bytes.extend_from_slice(&prefix(length));
        self.frames += 1;
        true
    }

    /// Writes as much as the socket accepts.
    fn write(&mut self) {
        let socket = SockRef::from(&self.connection.socket);
        while self.sent < self.bytes.len() {
            // MSG_NOSIGNAL: the default action of SIGPIPE would end the process.
            match socket.send_with_flags(&self.bytes[self.sent..], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.full = true;
                    return;
                }
                Err(_) => {
                    // The connection is closed, which ends the session.
                    self.refused += self.frames;
                    break;
                }
            }
        }
        self.bytes.clear();
        (self.sent, self.frames, self.full) = (0, 0, false);
    }

    fn place_unsegmented(&mut self, packet: &Packet, checksum: bool) -> PlaceOutcome {
        if !self.begin(packet.length) {
            return PlaceOutcome::NoRoom;
        }
        let begin = self.bytes.len();
        append(packet, 0, packet.length, &mut self.bytes);
        if checksum {
            let start = usize::from(packet.header.csum_start());
            checksum::complete(&mut self.bytes[begin..], start, start + usize::from(packet.header.csum_offset()));
        }
        self.translate(begin, packet.source).map_or(PlaceOutcome::Complete(1), PlaceOutcome::Refused)
    }

    /// Translates the frame from byte `begin` on, of `source`, if many guests share the other side. One that does not go there is removed;
    /// returns the reason if it is dropped.
    fn translate(&mut self, begin: usize, source: PortId) -> Option<DropReason> {
        let nat = self.connection.nat.as_ref()?;
        let translated = nat.outbound(self.bytes.get_mut(begin..)?, source);
        if translated != Translated::Sent {
            self.bytes.truncate(begin - PREFIX);
            self.frames -= 1;
        }
        for reset in nat.take_resets() {
            self.bytes.extend_from_slice(&prefix(reset.len() as u32));
            self.bytes.extend_from_slice(&reset);
        }
        if let Translated::Dropped(reason) = translated { Some(reason) } else { None }
    }

    /// Segments the frame (TSO in software) and buffers as many segments as there is room for.
    fn place_segments(&mut self, packet: &mut Packet) -> PlaceOutcome {
        let Some(mut cutter) = Cutter::new(packet, false) else { return PlaceOutcome::Refused(DropReason::BadSegmentation) };
        while u32::from(packet.segments_done) < cutter.count() {
            match self.place_segment(packet, &cutter.segment(packet.segments_done.into())) {
                PlaceOutcome::Complete(_) => {}
                other => return other,
            }
            packet.segments_done += 1;
        }
        PlaceOutcome::Complete(cutter.count())
    }

    fn place_segment(&mut self, packet: &Packet, segment: &Segment<'_>) -> PlaceOutcome {
        let headers = segment.headers;
        if !self.begin(headers.len() as u32 + segment.payload_length) {
            return PlaceOutcome::NoRoom;
        }
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(headers);
        append(packet, headers.len() as u32 + segment.payload_offset, segment.payload_length, &mut self.bytes);
        if let Some((start, field)) = segment.complete {
            checksum::complete(&mut self.bytes[begin..], start as usize, field as usize);
        }
        self.translate(begin, packet.source).map_or(PlaceOutcome::Complete(1), PlaceOutcome::Refused)
    }
}

impl ReceiveEnd for StreamReceive {
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome {
        match plan(packet, &Offloads::default()) {
            Plan::AsIs => self.place_unsegmented(packet, false),
            Plan::Checksum => self.place_unsegmented(packet, true),
            Plan::Segment { .. } => self.place_segments(packet),
        }
    }

    fn publish(&mut self) {
        self.write();
    }

    fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        [(DropReason::ReceiverAbsent, std::mem::take(&mut self.refused)), (DropReason::ReceiverAbsent, 0)]
    }

    fn has_room(&mut self) -> bool {
        !self.full
    }

    fn hand_over(&mut self) {
        self.connection.rest().unwritten = self.bytes[self.sent..].to_vec();
    }
}
