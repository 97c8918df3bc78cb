//! The transmit end (TX) of a stream port: reads large chunks from the socket and copies each frame to a packet buffer of its
//! own.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::sync::Arc;

use super::Connection;
use super::checksums::ChecksumTracker;
use super::wire::{self, PREFIX, TooLong};
use crate::frame::MAX_FRAME;
use crate::packet::Packet;
use crate::pool::Pool;
use crate::port::end::TransmitEnd;
use crate::ring::OpenOutcome;
use crate::store::Store;

/// Bytes that are read and not yet split into frames: two of the longest.
const STAGE: usize = 2 * (PREFIX + MAX_FRAME as usize);

/// See the module.
#[derive(Debug)]
pub(super) struct StreamTransmit {
    connection: Arc<Connection>,
    tracker: ChecksumTracker,
    store: Store,
    stage: Box<[u8]>,
    /// The range of `stage` that is read and not yet split into frames.
    begin: usize,
    end: usize,
    /// The last read found the socket empty or closed.
    drained: bool,
}

impl StreamTransmit {
    pub(super) fn new(connection: Arc<Connection>, pool: Arc<Pool>, tracker: ChecksumTracker) -> Self {
        let stage = vec![0; STAGE].into_boxed_slice();
        Self { connection, tracker, store: Store::new(pool), stage, begin: 0, end: 0, drained: false }
    }

    /// Splits the bytes read into frames, until `most` can be opened or no buffer is free.
    fn part(&mut self, most: usize) -> Result<(), TooLong> {
        while self.store.filled() < most {
            let Some(frame) = wire::first(&self.stage[self.begin..self.end])? else { break };
            if self.store.make_room(1) == 0 {
                break;
            }
            let Some(index) = self.store.take_free() else { break };
            let length = frame.len();
            let bytes = &mut self.store.bytes(index)[..length];
            bytes.copy_from_slice(frame);
            self.tracker.look_after(bytes);
            self.store.fill(index, length as u32);
            self.begin += PREFIX + length;
        }
        Ok(())
    }

    /// Reads once. The session thread detects the end of the connection and its cause.
    fn read(&mut self) {
        self.stage.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let room = &mut self.stage[self.end..];
        if room.is_empty() {
            return;
        }
        let wanted = room.len();
        match (&self.connection.socket).read(room) {
            Ok(length) => {
                self.end += length;
                self.drained = length < wanted;
            }
            Err(error) => self.drained = error.kind() != ErrorKind::Interrupted,
        }
    }

    fn fail(&mut self, fault: TooLong) {
        let _ = self.connection.fault.set(fault);
        // The session thread sees the hang-up and reports the cause.
        let _ = self.connection.socket.shutdown(Shutdown::Both);
        (self.begin, self.end, self.drained) = (0, 0, true);
    }
}

impl TransmitEnd for StreamTransmit {
    fn look(&mut self, most: u16) -> u16 {
        if self.drained {
            self.store.give_back_spare();
        }
        let mut parted = self.part(most.into());
        if parted.is_ok() && self.store.filled() < usize::from(most) && !self.drained {
            self.read();
            parted = self.part(most.into());
        }
        if let Err(fault) = parted {
            self.fail(fault);
        }
        self.store.filled().min(most.into()) as u16
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        self.store.open(packet, false)
    }

    fn finish(&mut self, _packet: &Packet) {
        self.store.dispose();
    }

    fn keep_in_flight(&mut self, packet: &Packet, holders: u16) {
        self.store.keep_in_flight(packet, holders);
    }

    fn hold(&mut self, head: u16, more: u16) {
        self.store.hold(head, more);
    }

    fn come_back(&mut self, head: u16) {
        self.store.come_back(head);
    }

    fn in_flight(&self) -> u16 {
        self.store.in_flight()
    }

    fn size(&self) -> u16 {
        self.store.size()
    }

    fn has_news(&self) -> bool {
        let staged = matches!(wire::first(&self.stage[self.begin..self.end]), Ok(Some(_)));
        self.store.filled() > 0 || ((staged || !self.drained) && self.size() > self.in_flight())
    }

    fn wake(&mut self) {
        self.drained = false;
    }
}
