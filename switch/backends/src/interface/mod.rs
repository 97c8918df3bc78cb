//! Ports that are network interfaces of the host's kernel, by a file descriptor with a virtio-net header before each frame: TAP
//! devices, which memlane makes, and existing interfaces by AF_PACKET, as an end of a veth pair; and NICs by rings shared with the kernel.
//!
//! - [`tap`]: creates a TAP device or attaches to it, and negotiates offloads.
//! - [`af_packet`]: opens a packet socket and binds it to an interface.
//! - [`batch`]: many reads or writes in one system call: of a TAP by io_uring, of a packet socket by its [`messages`].
//! - [`nic`]: the way to other hosts, by AF_XDP where that is possible; its ends are of its own.
//! - [`handle`]: the descriptor of an interface, and why there is none.
//! - [`session`]: watches the interface, and opens it again if another program deletes it.
//! - [`InterfaceReader`]: TX, frames read from the kernel into packet buffers.
//! - [`InterfaceReceive`]: RX, packets written to the kernel straight from guests' memory, one batch for each poll iteration.

pub mod af_packet;
mod batch;
mod handle;
mod messages;
pub mod nic;
mod receive;
mod session;
pub mod tap;
mod transmit;

use std::io;
use std::sync::Arc;

pub use handle::{Interface, InterfaceError};
pub use session::{Origin, PresentInterface, run};

use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::store::Buffered;
use receive::InterfaceReceive;
use transmit::InterfaceReader;

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
