//! Stream ports: frames over a Unix stream socket, each behind its length; what QEMU's `-netdev stream` speaks, and passt.
//!
//! 1. [`session`]: meets whoever is on the other side, or starts [`passt`], again and again.
//! 2. [`wire`]: where one frame ends and the next begins.
//! 3. [`StreamTransmit`](transmit): frames read from the socket into buffers of ours; [`checksums`]: what their sender left to the device.
//! 4. [`StreamReceive`](receive): parcels written to it as plain frames, since the protocol has no virtio-net header: checksums are completed and
//!    large frames cut.

pub mod checksums;
mod passt;
mod receive;
mod session;
mod transmit;
pub mod wire;

use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

pub use passt::Passt;
pub use session::{Other, run};

use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use checksums::Keeper;
use receive::StreamReceive;
use transmit::StreamTransmit;

/// A connection, shared by its ends and its session.
#[derive(Debug)]
struct Connection {
    /// Never blocks.
    socket: UnixStream,
    /// The rule that the other side broke, if it did.
    fault: OnceLock<wire::TooLong>,
}

impl Connection {
    fn new(socket: UnixStream) -> std::io::Result<Arc<Self>> {
        socket.set_nonblocking(true)?;
        Ok(Arc::new(Self { socket, fault: OnceLock::new() }))
    }
}

/// A connection, and what looks after the checksums of frames from it.
struct Stream(Arc<Connection>, Keeper);

impl Backend for Stream {
    fn into_ends(self, pool: &Arc<Pool>) -> std::io::Result<Ends> {
        let Self(connection, keeper) = self;
        let file =
            || Ok::<_, std::io::Error>(Some(std::fs::File::from(std::os::fd::OwnedFd::from(connection.socket.try_clone()?))));
        Ok(Ends {
            transmit: Box::new(StreamTransmit::new(Arc::clone(&connection), Arc::clone(pool), keeper)),
            receive: Box::new(StreamReceive::new(Arc::clone(&connection))),
            readable: file()?,
            writable: file()?,
            room: None,
        })
    }
}
