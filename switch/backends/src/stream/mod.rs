//! Stream ports: length-prefixed Ethernet frames over a Unix stream socket, the protocol of QEMU's `-netdev stream` and of passt.
//!
//! 1. [`session`]: connects to, or accepts, the other side, or starts [`passt`], again and again.
//! 2. [`wire`]: the length prefix, and where a frame ends.
//! 3. [`StreamReader`](transmit) (TX): frames read from the socket into packet buffers; [`checksums`] completes checksums that
//!    the sender left to offload.
//! 4. [`StreamReceive`](receive) (RX): packets written as plain frames. The protocol has no virtio-net header, so checksums are
//!    completed and GSO frames are segmented here.
//! 5. [`nat`]: translates addresses and ports, so that many guests share one passt.
//! 6. [`SavedStream`]: a connection that another process of the network goes on with (takeover). Frames have no bounds in a stream: that
//!    process must have each byte that was read and is part of no frame yet, and each that was placed and is not yet written.

pub mod checksums;
pub mod nat;
mod passt;
mod receive;
mod session;
mod transmit;
pub mod wire;

use std::fmt;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

pub use passt::{Passt, StartPasst};
pub use session::{Other, StreamSettings, run};

use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::store::Buffered;
use crate::takeover::{FilesToSend, ReceivedFiles};
use checksums::ChecksumTracker;
use nat::Nat;
use nat::flows::SavedFlow;
use receive::StreamReceive;
use transmit::StreamReader;

/// A connection, shared by its ends and its session.
#[derive(Debug)]
struct Connection {
    /// Non-blocking.
    socket: UnixStream,
    /// The protocol violation of the other side, if any.
    fault: OnceLock<wire::TooLong>,
    /// Bytes that its ends leave to the next process of the network.
    rest: Mutex<Rest>,
    /// Translation of its frames, if many guests share the other side.
    nat: Option<Arc<Nat>>,
}

impl Connection {
    fn new(socket: UnixStream, nat: Option<Arc<Nat>>) -> io::Result<Arc<Self>> {
        socket.set_nonblocking(true)?;
        Ok(Arc::new(Self { socket, fault: OnceLock::new(), rest: Mutex::default(), nat }))
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, the state of its frames' checksums, and bytes that another process of the network has left.
struct Stream(Arc<Connection>, ChecksumTracker, Rest);

impl Backend for Stream {
    fn into_ends(self, pool: &Arc<Pool>) -> io::Result<Ends> {
        let Self(connection, tracker, rest) = self;
        let file = || Ok::<_, io::Error>(Some(File::from(OwnedFd::from(connection.socket.try_clone()?))));
        Ok(Ends {
            transmit: Box::new(Buffered::new(StreamReader::new(Arc::clone(&connection), tracker, rest.read), Arc::clone(pool))),
            receive: Box::new(StreamReceive::new(Arc::clone(&connection), &rest.unwritten)),
            readable: file()?,
            writable: file()?,
            room: None,
        })
    }
}

/// Most bytes of frames that all connections together leave, since guests wait while they are handed over.
pub const MOST_LEFT: usize = 8 << 20;

/// Bytes that the ends of a connection leave to the next process.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rest {
    /// Bytes that were read: whole frames that were not opened, and the beginning of the next.
    pub read: Vec<u8>,
    /// Bytes that are still to be written: the rest of a frame, and whole ones.
    pub unwritten: Vec<u8>,
}

impl Rest {
    fn len(&self) -> usize {
        self.read.len() + self.unwritten.len()
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rest({} B read, {} B unwritten)", self.read.len(), self.unwritten.len())
    }
}

/// A connection, described.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedStream {
    /// Number of the socket's descriptor.
    pub socket: u32,
    /// See there.
    pub rest: Rest,
    /// Number of the descriptor of passt's standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<u32>,
    /// Flows of guests that share the other side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<SavedFlow>,
}

/// A connection that another process of the network has left.
#[derive(Debug)]
pub struct RestoredStream {
    socket: UnixStream,
    rest: Rest,
    /// Standard error of passt, if that is the other side.
    log: Option<File>,
    flows: Vec<SavedFlow>,
}

impl SavedStream {
    /// The connection, with its descriptor out of `files`; `None` without one, or with more bytes than any connection leaves.
    pub fn restore(self, files: &mut ReceivedFiles) -> Option<RestoredStream> {
        let socket = files.take(self.socket)?;
        let log = self.log.and_then(|number| files.take(number));
        (self.rest.len() <= MOST_LEFT).then(|| RestoredStream {
            socket: OwnedFd::from(socket).into(),
            rest: self.rest,
            log,
            flows: self.flows,
        })
    }
}

/// The present connection of a port, if it has one, and passt's standard error.
#[derive(Clone, Debug, Default)]
pub struct PresentStream(Arc<Mutex<Option<Present>>>);

#[derive(Debug)]
struct Present {
    connection: Arc<Connection>,
    log: Option<File>,
}

impl PresentStream {
    fn show(&self, present: Option<Present>) {
        *self.get() = present;
    }

    fn get(&self) -> MutexGuard<'_, Option<Present>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of frames that the connection leaves, while the workers stand still.
    pub fn left(&self) -> usize {
        self.get().as_ref().map_or(0, |present| present.connection.rest().len())
    }

    /// Describes the connection, while the workers stand still; `None` if there is none.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save(&self, files: &mut FilesToSend) -> io::Result<Option<SavedStream>> {
        let present = self.get();
        let Some(Present { connection, log }) = &*present else { return Ok(None) };
        let rest = std::mem::take(&mut *connection.rest());
        let log = log.as_ref().map(File::try_clone).transpose()?.map(|log| files.add(log));
        let flows = connection.nat.as_ref().map(|nat| nat.save()).unwrap_or_default();
        Ok(Some(SavedStream { socket: files.add(connection.socket.try_clone()?), rest, log, flows }))
    }

    /// Ends the connection: another process may have read or written a part of a frame.
    pub fn cut(&self) {
        if let Some(Present { connection, .. }) = &*self.get() {
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_leaves_its_bytes_and_no_more_than_all_may() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let connection = Connection::new(ours, None).unwrap();
        let rest = Rest { read: vec![1, 2, 3], unwritten: vec![4] };
        *connection.rest() = rest.clone();
        let present = PresentStream::default();
        assert_eq!((present.left(), present.save(&mut FilesToSend::default()).unwrap()), (0, None), "no connection");
        present.show(Some(Present { connection, log: None }));
        let mut files = FilesToSend::default();
        assert_eq!(present.left(), 4);
        let saved = present.save(&mut files).unwrap().unwrap();
        let mut files = ReceivedFiles::new(files.into_files().into_iter().map(File::from));
        let large = SavedStream { rest: Rest { read: vec![0; MOST_LEFT], unwritten: vec![0] }, ..saved.clone() };
        assert_eq!(saved.restore(&mut files).unwrap().rest, rest);
        let mut files = ReceivedFiles::new([tempfile::tempfile().unwrap()]);
        assert!(large.restore(&mut files).is_none());
    }
}
