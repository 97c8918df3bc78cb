//! SIGINT and SIGTERM end a run early but in order.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static QUIT: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    QUIT.store(true, Ordering::Relaxed);
}

/// The flag that SIGINT and SIGTERM set from now on. A second signal ends the process at once.
pub(super) fn quit_flag() -> anyhow::Result<&'static AtomicBool> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESETHAND, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores into an atomic, which a signal handler may do.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(&QUIT)
}
