//! The start of the program that takes the network over on SIGUSR2, from where it is installed now: in the unit of a service manager, it
//! is to have the same control group, namespaces and limits.
//!
//! The rights of a process never grow, also by exec, so a confined process cannot start a successor that would confine itself by its
//! own newer rules. A small process does it, forked before the sandbox is entered. It takes an order with no content: to start the
//! program and arguments of this process; and those of a [`Guard`]. A thread that a guest has taken over could give these, and no other.

use std::ffi::{CString, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use memlane_confine::system::{self, StarterSockets};

use crate::author::Author;
use crate::daemon::takeover::give::Guard;

/// The process that starts the successor of this one.
#[derive(Debug)]
pub(super) struct Starter {
    stream: UnixStream,
    order: Order,
}

/// The author of the order for a successor that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Order(Arc<Mutex<Option<Author>>>);

impl Order {
    /// The author, while a successor is under way.
    pub(super) fn author(&self) -> Option<Author> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the author; false if a successor is under way.
    fn begin(&self, author: Author) -> bool {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = order.is_none();
        order.get_or_insert(author);
        is_free
    }

    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Starter {
    /// Forks it before the sandbox; it is the guard of takeovers too.
    ///
    /// # Errors
    /// The kernel refuses, or does not tell the path of this program.
    pub(super) fn fork() -> io::Result<(Self, Guard)> {
        let mut arguments: Vec<_> = std::env::args_os().collect();
        let named = arguments.first().cloned().unwrap_or_default();
        let program = if named.as_bytes().contains(&b'/') { named } else { std::env::current_exe()?.into_os_string() };
        arguments.retain(|argument| argument != "--takeover");
        arguments.push("--takeover".into());
        let text = |text: OsString| CString::new(text.into_vec()).map_err(io::Error::from);
        let arguments = arguments.into_iter().map(text).collect::<io::Result<Vec<_>>>()?;
        let StarterSockets { starts, ends } = system::fork_starter(&text(program)?, &arguments)?;
        Ok((Self { stream: starts, order: Order::default() }, Guard::new(ends)))
    }

    /// The order for a successor, which names its author while one is under way.
    pub(super) fn order(&self) -> Order {
        self.order.clone()
    }

    /// Has it start the successor for `author`, unless one is under way.
    pub(super) fn start(&self, author: Author) {
        if !self.order.begin(author) {
            return tracing::warn!("a process that is to take the network over runs already");
        }
        let order = self.order.clone();
        let ordered = self.stream.try_clone().and_then(|mut stream| {
            stream.write_all(&[0])?;
            let wait = move || {
                // The successor lives on when this process has ended; else it has logged the reason.
                report(&stream);
                order.end();
            };
            std::thread::Builder::new().name("successor".into()).stack_size(256 * 1024).spawn(wait).map(drop)
        });
        if let Err(cause) = ordered {
            self.order.end();
            tracing::error!(%cause, "the installed program cannot be started to take the network over");
        }
    }
}

/// Waits for the end of the successor, and logs it.
fn report(mut stream: &UnixStream) {
    let mut status = [0; size_of::<i32>()];
    match stream.read_exact(&mut status).map(|()| ExitStatus::from_raw(i32::from_ne_bytes(status))) {
        Ok(status) if status.code() == Some(system::NOT_STARTED) => {
            tracing::error!(
                "the installed program cannot be started to take the network over: its file is missing or not executable"
            );
        }
        Ok(status) => tracing::warn!(%status, "the process that was to take the network over has ended"),
        Err(cause) => tracing::error!(%cause, "no process can be started any more to take the network over"),
    }
}
