//! Leased addresses outlast the network: a thread writes them to the state file after changes.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::managed::Managed;
use super::problem::Refusal;
use crate::daemon::StartError;

/// Pause after each writing of the file, so that guests that ask for addresses again and again cause few.
const PAUSE: Duration = Duration::from_secs(1);

/// Stores DHCP leases whenever they change, until the network ends; does nothing without a state file or responders.
///
/// # Errors
/// The network ends, or the kernel refuses a thread.
pub fn keep(managed: &Arc<Managed>) -> Result<(), Refusal> {
    if !managed.has_state() || managed.config()?.names.is_empty() {
        return Ok(());
    }
    let (sender, news) = channel();
    managed.ask(|daemon| daemon.tell_of_leases(sender))?;
    let managed = Arc::downgrade(managed);
    let started = std::thread::Builder::new().name("leases".into()).stack_size(256 * 1024).spawn(move || {
        // The responders, which end with the network, hold the sender.
        while news.recv().is_ok() {
            // Further changes of this moment are written with it.
            news.try_iter().for_each(drop);
            let Some(managed) = managed.upgrade() else { return };
            // Refused only while the network ends.
            let _ = managed.keep_leases();
            drop(managed);
            std::thread::sleep(PAUSE);
        }
    });
    started.map(drop).map_err(|error| StartError::from(error).into())
}
