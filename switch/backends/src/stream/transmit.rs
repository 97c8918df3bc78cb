//! The transmit end (TX) of a stream port: reads large chunks from the socket and copies each frame to a packet buffer of its
//! own.

#![expect(
    clippy::indexing_slicing,
    reason = "begin, end and the stage's length follow each other; a frame was measured before it is copied"
)]

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::sync::Arc;

use super::Connection;
use super::checksums::ChecksumTracker;
use super::nat::Translated;
use super::wire::{self, PREFIX, TooLong};
use crate::frame::MAX_FRAME;
use crate::stats::DropReason;
use crate::store::{Reader, Store};

/// Bytes that are read and not yet split into frames: two of the longest.
const STAGE: usize = 2 * (PREFIX + MAX_FRAME as usize);

/// See the module.
#[derive(Debug)]
pub(super) struct StreamReader {
    connection: Arc<Connection>,
    tracker: ChecksumTracker,
    stage: Box<[u8]>,
    /// The range of `stage` that is read and not yet split into frames.
    begin: usize,
    end: usize,
    /// Frames that belong to no flow.
    lost: u32,
}

impl StreamReader {
    /// `read` was read before, by another process of the network.
    pub(super) fn new(connection: Arc<Connection>, tracker: ChecksumTracker, mut read: Vec<u8>) -> Self {
        let end = read.len();
        read.resize(STAGE.max(end), 0);
        Self { connection, tracker, stage: read.into_boxed_slice(), begin: 0, end, lost: 0 }
    }

    /// Splits the bytes read into frames, until `most` can be opened or no buffer is free.
    fn part(&mut self, store: &mut Store, most: usize) -> Result<(), TooLong> {
        while store.filled() < most {
            let Some(frame) = wire::first(&self.stage[self.begin..self.end])? else { break };
            if store.make_room(1) == 0 {
                break;
            }
            let Some(index) = store.take_free() else { break };
            let length = frame.len();
            let bytes = &mut store.bytes(index)[..length];
            bytes.copy_from_slice(frame);
            self.tracker.look_after(bytes);
            let translated = self.connection.nat.as_ref().map(|nat| nat.inbound(bytes));
            self.begin += PREFIX + length;
            match translated {
                None | Some(Translated::Sent) => store.fill(index, length as u32),
                Some(Translated::Ignored) => store.put_back(index),
                Some(Translated::Dropped(_)) => {
                    self.lost += 1;
                    store.put_back(index);
                }
            }
        }
        Ok(())
    }

    /// Reads once; true if the socket is empty or closed. The session detects the end of the connection and its cause.
    fn read_once(&mut self) -> bool {
        self.stage.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let room = &mut self.stage[self.end..];
        if room.is_empty() {
            return false;
        }
        let wanted = room.len();
        match (&self.connection.socket).read(room) {
            Ok(length) => {
                self.end += length;
                length < wanted
            }
            Err(error) => error.kind() != ErrorKind::Interrupted,
        }
    }

    /// Splits and reads; returns whether the socket is drained.
    fn part_and_read(&mut self, store: &mut Store, most: usize, drained: bool) -> Result<bool, TooLong> {
        self.part(store, most)?;
        if drained || store.filled() >= most {
            return Ok(drained);
        }
        let drained = self.read_once();
        self.part(store, most)?;
        Ok(drained)
    }

    fn fail(&mut self, fault: TooLong) {
        let _ = self.connection.fault.set(fault);
        // The session sees the hang-up and reports the cause.
        let _ = self.connection.socket.shutdown(Shutdown::Both);
        (self.begin, self.end) = (0, 0);
    }
}

impl Reader for StreamReader {
    const HEADED: bool = false;

    fn read(&mut self, store: &mut Store, most: usize, drained: bool) -> bool {
        self.part_and_read(store, most, drained).unwrap_or_else(|fault| {
            self.fail(fault);
            true
        })
    }

    fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        [(DropReason::NoFlow, std::mem::take(&mut self.lost)), (DropReason::NoFlow, 0)]
    }

    fn hand_over(&mut self, store: &Store) {
        let mut read = Vec::new();
        for frame in store.unopened() {
            read.extend_from_slice(&wire::prefix(frame.len() as u32));
            read.extend_from_slice(frame);
        }
        read.extend_from_slice(&self.stage[self.begin..self.end]);
        self.connection.rest().read = read;
    }

    fn has_staged(&self) -> bool {
        matches!(wire::first(&self.stage[self.begin..self.end]), Ok(Some(_)))
    }
}
