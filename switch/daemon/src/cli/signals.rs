//! Senders of the signals to a network, for its log: sigaction(2) tells the process that called kill(2).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use crate::author::Author;
use crate::control::author::of_process;
use crate::system;

/// A signal with a record of its last sender.
#[derive(Debug)]
pub(super) struct Recorded {
    number: i32,
    name: &'static str,
    /// User and process of the last sender, by 32 bits each; 0 while there is none.
    sender: AtomicU64,
}

/// Ends the network.
pub(super) static TERMINATE: Recorded = Recorded::new(SIGTERM, "SIGTERM");
/// Ends the network, by Ctrl-C.
pub(super) static INTERRUPT: Recorded = Recorded::new(SIGINT, "SIGINT");
/// Has the network read its file again.
pub(super) static HANG_UP: Recorded = Recorded::new(SIGHUP, "SIGHUP");
/// Has the installed program take the network over.
pub(super) static UPGRADE: Recorded = Recorded::new(SIGUSR2, "SIGUSR2");

impl Recorded {
    const fn new(number: i32, name: &'static str) -> Self {
        Self { number, name, sender: AtomicU64::new(0) }
    }

    /// Records the senders of this signal from now on. A handler that acts on it is to be installed later, so that it runs after this one.
    ///
    /// # Errors
    /// The kernel refuses the handler.
    pub(super) fn record(&'static self) -> io::Result<()> {
        system::record_sender(self.number, &self.sender)
    }

    /// The last sender. One from the terminal, or of another PID namespace, has no process.
    pub(super) fn sender(&self) -> Author {
        let packed = self.sender.load(Ordering::Relaxed);
        of_process((packed >> 32) as u32, (packed as u32).cast_signed())
    }

    /// The end that it causes, in words: `memlane down` sends a signal, too.
    pub(super) fn cause(&self, sender: &Author) -> String {
        if sender.program == "memlane" { format!("memlane down ({})", self.name) } else { self.name.into() }
    }
}
