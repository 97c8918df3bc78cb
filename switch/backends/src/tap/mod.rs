//! TAP ports: network devices of the host's kernel.
//!
//! - [`device`]: creates the device or attaches to it, and negotiates offloads.
//! - [`batch`]: many reads or writes in one system call (io_uring).
//! - [`session`]: watches the device, and creates it again if another program deletes it.
//! - [`TapReader`]: TX, frames read from the kernel into packet buffers.
//! - [`TapReceive`]: RX, packets written to the kernel straight from guests' memory, one batch for each poll iteration.

mod batch;
mod device;
mod receive;
mod session;
mod transmit;

use std::sync::Arc;

pub use device::{Tap, TapError, TapSettings};
pub use session::{PresentTap, run};

use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::store::Buffered;
use receive::TapReceive;
use transmit::TapReader;

impl Backend for Tap {
    fn into_ends(self, pool: &Arc<Pool>) -> std::io::Result<Ends> {
        let readable = Some(self.file.try_clone()?);
        let tap = Arc::new(self);
        Ok(Ends {
            transmit: Box::new(Buffered::new(TapReader::new(Arc::clone(&tap)), Arc::clone(pool))),
            receive: Box::new(TapReceive::new(tap)),
            readable,
            writable: None,
            room: None,
        })
    }
}
