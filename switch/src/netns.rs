//! Network namespaces by their names under `/run/netns`, as `ip netns` makes them.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns};

/// Runs `action` in a thread that is in the namespace called `name`.
///
/// # Errors
/// There is no such namespace, or it may not be entered; the action was not run then.
pub fn inside<T: Send>(name: &str, action: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // Changes this thread only, which ends with the action.
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(action())
        });
        inside.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}
