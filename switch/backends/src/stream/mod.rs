//! Stream ports: length-prefixed Ethernet frames over a Unix stream socket, the protocol of QEMU's `-netdev stream` and of passt.
//!
//! 1. [`session`]: connects to, or accepts, the other side, or starts [`passt`], again and again.
//! 2. [`wire`]: the length prefix, and where a frame ends.
//! 3. [`StreamReader`](transmit) (TX): frames read from the socket into packet buffers; [`checksums`] completes checksums that
//!    the sender left to offload.
//! 4. [`StreamReceive`](receive) (RX): packets written as plain frames. The protocol has no virtio-net header, so checksums are
//!    completed and GSO frames are segmented here.
//! 5. [`nat`]: translates addresses and ports, so that many guests share one passt.

pub mod checksums;
pub mod nat;
mod passt;
mod receive;
pub mod saved;
mod session;
mod transmit;
pub mod wire;

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use passt::{Passt, StartPasst};
pub use session::{Other, StreamSettings, run};

use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::store::Buffered;
use checksums::ChecksumTracker;
use nat::Nat;
use receive::StreamReceive;
use saved::Rest;
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
    fn new(socket: UnixStream, nat: Option<Arc<Nat>>) -> std::io::Result<Arc<Self>> {
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
    fn into_ends(self, pool: &Arc<Pool>) -> std::io::Result<Ends> {
        let Self(connection, tracker, rest) = self;
        let file =
            || Ok::<_, std::io::Error>(Some(std::fs::File::from(std::os::fd::OwnedFd::from(connection.socket.try_clone()?))));
        Ok(Ends {
            transmit: Box::new(Buffered::new(StreamReader::new(Arc::clone(&connection), tracker, rest.read), Arc::clone(pool))),
            receive: Box::new(StreamReceive::new(Arc::clone(&connection), &rest.unwritten)),
            readable: file()?,
            writable: file()?,
            room: None,
        })
    }
}
