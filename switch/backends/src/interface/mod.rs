//! Ports that are network interfaces of the host's kernel, by a file descriptor with a virtio-net header before each frame: TAP
//! devices, which memlane makes, and existing interfaces by AF_PACKET, as an end of a veth pair.
//!
//! - [`tap`]: creates a TAP device or attaches to it, and negotiates offloads.
//! - [`af_packet`]: opens a packet socket and binds it to an interface.
//! - [`batch`]: many reads or writes in one system call: of a TAP by io_uring, of a packet socket by its [`messages`].
//! - [`session`]: watches the interface, and opens it again if another program deletes it.
//! - [`InterfaceReader`]: TX, frames read from the kernel into packet buffers.
//! - [`InterfaceReceive`]: RX, packets written to the kernel straight from guests' memory, one batch for each poll iteration.

pub mod af_packet;
mod batch;
mod messages;
mod receive;
mod session;
pub mod tap;
mod transmit;

use std::fs::File;
use std::io;
use std::sync::Arc;

use thiserror::Error;

pub use session::{Origin, PresentInterface, run};

use crate::descriptors;
use crate::frame::NetHeader;
use crate::netns;
use crate::offload::Offloads;
use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::store::Buffered;
use receive::InterfaceReceive;
use transmit::InterfaceReader;

/// Why an interface cannot be opened.
#[derive(Debug, Error)]
#[error("{what}: {cause}. {remedy}")]
pub struct InterfaceError {
    what: String,
    cause: io::Error,
    remedy: &'static str,
}

impl InterfaceError {
    fn new(what: String, cause: io::Error, remedy: &'static str) -> Self {
        let remedy = if descriptors::is_shortage(&cause) { descriptors::REMEDY } else { remedy };
        Self { what, cause, remedy }
    }
}

/// An open interface: reads and writes are frames with a virtio-net header.
#[derive(Debug)]
pub struct Interface {
    /// Non-blocking.
    pub file: File,
    /// The offloads that the kernel accepts in frames written to it.
    pub offloads: Offloads,
    kind: Kind,
}

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A TAP device, with headers of [`NetHeader::SIZE`] bytes.
    Tap,
    /// A packet socket, with headers of so many bytes.
    Packet { header: usize },
}

impl Interface {
    /// A copy of its descriptor, for a takeover.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Backend for Interface {
    fn into_ends(self, pool: &Arc<Pool>) -> io::Result<Ends> {
        let readable = Some(self.file.try_clone()?);
        let interface = Arc::new(self);
        Ok(Ends {
            transmit: Box::new(Buffered::new(InterfaceReader::new(Arc::clone(&interface)), Arc::clone(pool))),
            receive: Box::new(InterfaceReceive::new(interface)),
            readable,
            writable: None,
            room: None,
        })
    }
}

/// Runs `action` in the interface's network namespace.
fn in_namespace<T: Send>(
    netns: Option<&str>,
    action: impl FnOnce() -> Result<T, InterfaceError> + Send,
) -> Result<T, InterfaceError> {
    let Some(netns) = netns else { return action() };
    let remedy = "Make it with `ip netns add`, and run memlane as root to enter it.";
    netns::inside(netns, action).map_err(|cause| InterfaceError::new(format!("network namespace {netns}"), cause, remedy))?
}

impl Kind {
    /// Bytes of the virtio-net header before each frame.
    fn header(self) -> usize {
        match self {
            Self::Tap => NetHeader::SIZE,
            Self::Packet { header } => header,
        }
    }
}
