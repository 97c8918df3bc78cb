//! The listening socket of a port that has a front end.
//!
//! A port serves one front end at a time. A second connection is refused within 50 ms: it is closed before a message is exchanged, and
//! log and status name the program that holds the port. If it were left in the listen queue, it would hang for as long as the
//! first session lasts. With `second = "replace"` the first session ends instead: its virtqueues stop, then its connection ends, then
//! the second one is served. A vhost-user front end replaces the first only when it sets up its device.

use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::executor::Context;
use crate::peer::Peer;
use crate::port::Port;

/// Time that the old connection has to end before a further one is refused: a front end that reconnects closes the old
/// connection first, but a child process that it has just forked holds the descriptor until execve(2). The pause also limits the CPU
/// time of a program that connects in a loop.
pub(crate) const GRACE: Duration = Duration::from_millis(50);

/// Treatment of a second front end that connects while the port has one (configuration key `second`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Second {
    /// It is refused.
    #[default]
    Refuse,
    /// It replaces the first, at a vhost-user port once it sets up memory or a queue.
    Replace,
}

/// The peer of `stream` (SO_PEERCRED, unix(7)).
pub fn peer(stream: &UnixStream) -> Option<Peer> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials).ok()?;
    let (pid, uid) = (credentials.pid(), credentials.uid());
    // A process may call itself anything: control characters are not for terminals.
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = String::from_utf8_lossy(&comm).trim_end().replace(char::is_control, "?");
    Some(Peer { pid, uid, program: if program.is_empty() { "a program".into() } else { program } })
}

/// The reason why a session ended, if nothing else is wrong with it; `is_replaced` if another front end is to have the port.
pub(crate) fn end(is_replaced: bool) -> &'static str {
    if is_replaced { "another front end replaces it" } else { "the connection ended" }
}

/// A connection is pending at the non-blocking `listener` of `port`, which has a front end: accepts and closes it, unless the front end makes way for it
/// within [`GRACE`] (`makes_way` has a result).
pub(crate) async fn refuse(context: &Context, listener: &UnixListener, port: &Port, makes_way: impl FnMut() -> Option<()>) {
    if context.wait(Some(Instant::now() + GRACE), makes_way).await.is_none()
        && let Ok((second, _)) = listener.accept()
    {
        port.turned_away(peer(&second));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use std::io::{ErrorKind, Read};

    /// Whether the other end has not closed the connection.
    fn is_open(mut stream: &UnixStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn a_front_end_that_closed_its_connection_before_the_next_is_not_in_the_way_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = Port::row(&Shared::new(1, 7, Settings::default()), 1).remove(0);
        let executor = Executor::new().unwrap();
        let refuse_beside = |stream: &UnixStream| {
            executor.run_here(|context| {
                let stream = context.watch_end(stream.try_clone().unwrap()).unwrap();
                let (listener, port) = (&listener, &port);
                async move { refuse(&context, listener, port, || stream.is_ready().then_some(())).await }
            });
        };
        let first = UnixStream::connect(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();

        let second = UnixStream::connect(&path).unwrap();
        refuse_beside(&stream);
        assert!(!is_open(&second), "the port is in use");

        drop(first);
        let third = UnixStream::connect(&path).unwrap();
        refuse_beside(&stream);
        assert!(is_open(&third), "the port is free");
        assert_eq!(port.front_end().1, 1);
    }
}
