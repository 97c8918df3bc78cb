//! Network namespaces by their names under `/run/netns`, as `ip netns` makes them.

#![expect(unsafe_code, reason = "no safe crate moves one thread into a namespace")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Runs `action` in a thread that is in the namespace called `name`.
///
/// # Errors
/// There is no such namespace, or it may not be entered; the action was not run then.
pub fn inside<T: Send>(name: &str, action: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: a plain system call; it changes this thread only, which ends with the action.
            if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(action())
        });
        inside.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}
