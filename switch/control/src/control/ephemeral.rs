//! A thread that detaches ephemeral ports after their front ends have left ([`Ephemeral`](crate::port::ephemeral::Ephemeral)).

use std::sync::Arc;

use super::managed::Managed;
use super::problem::Refusal;
use crate::daemon::StartError;

/// Starts the thread, which ends with the network.
///
/// # Errors
/// The network ends, or the kernel refuses a thread.
pub fn detach(managed: &Arc<Managed>) -> Result<(), Refusal> {
    let Some(closed) = managed.ask(|daemon| daemon.take_closed())? else { return Ok(()) };
    let managed = Arc::downgrade(managed);
    let started = std::thread::Builder::new().name("ephemeral".into()).stack_size(256 * 1024).spawn(move || {
        // The network has the senders.
        while let Ok(first) = closed.recv() {
            let Some(managed) = managed.upgrade() else { return };
            let names: Vec<String> = std::iter::once(first).chain(closed.try_iter()).collect();
            // Refused only while the network ends.
            let _ = managed.detach_closed(&names);
        }
    });
    started.map(drop).map_err(|error| StartError::from(error).into())
}
