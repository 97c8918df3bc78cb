//! TAP ports: network devices of the host's kernel.
//!
//! - [`device`]: the device is made or attached to, and told what it may leave undone.
//! - [`batch`]: many reads or writes in one system call.
//! - [`session`]: the device is watched, and made anew if another program deletes it.
//! - [`TapTransmit`]: frames read from the kernel into buffers of ours.
//! - [`TapReceive`]: parcels written to the kernel straight from guests' memory, all of a pass together.

mod batch;
mod device;
mod receive;
mod session;
mod transmit;

use std::sync::Arc;

pub use device::{Tap, TapError, TapSettings};
pub use session::run;

use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use receive::TapReceive;
use transmit::TapTransmit;

impl Backend for Tap {
    fn into_ends(self, pool: &Arc<Pool>) -> std::io::Result<Ends> {
        let readable = Some(self.file.try_clone()?);
        let tap = Arc::new(self);
        Ok(Ends {
            transmit: Box::new(TapTransmit::new(Arc::clone(&tap), Arc::clone(pool))),
            receive: Box::new(TapReceive::new(tap)),
            readable,
            writable: None,
            room: None,
        })
    }
}
