//! Errors of the control socket, of its listener and its client.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::problem::Refusal;
use super::reach;
use crate::config::unit;

/// The remedy where a system call to listen at the address of `key` fails.
fn listening(cause: &io::Error, key: &str) -> String {
    let is_forbidden =
        [libc::EAFNOSUPPORT, libc::EACCES, libc::EPERM, libc::EROFS, libc::EINVAL].map(Some).contains(&cause.raw_os_error());
    let remedy = is_forbidden.then(unit::remedy).flatten();
    remedy.unwrap_or_else(|| format!("End the process that listens there, or set another with {key} = \"...\""))
}

/// Why the control socket cannot be served or reached.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The socket cannot be bound.
    #[error(
        "cannot listen for control at {path}: {cause}. Stop the network that runs there, or set another path with control = \"...\""
    )]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// Another network listens there.
    #[error(
        "cannot listen for control at {path}: {holder} listens there. End it with `memlane down --control {path}`, or set another path with \
         control = \"...\""
    )]
    Taken {
        /// The socket.
        path: PathBuf,
        /// The network or program.
        holder: String,
    },
    /// The socket of the metrics cannot be bound.
    #[error("cannot listen for scrapes of metrics at {place}: {cause}. {}", listening(cause, "metrics"))]
    Metrics {
        /// Path or address.
        place: String,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The address of the web page cannot be bound.
    #[error("cannot listen for browsers at {place}: {cause}. {}", listening(cause, "web"))]
    Web {
        /// The address.
        place: String,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The token of the web page cannot be read.
    #[error("the file {path} of web-token is no token: {cause}")]
    Token {
        /// The file.
        path: PathBuf,
        /// The error of the kernel, or the fault of the file.
        cause: io::Error,
    },
    /// No process listens there, or access is denied.
    #[error("cannot connect to the control socket {path}: {cause}. {hint}{}", reach::remedy(path, cause))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
        /// Hints to running networks of that name.
        hint: String,
    },
    /// No process listens there, but one runs the network.
    #[error(
        "the control socket {path} was deleted, and {holder} runs its network: that process makes the socket anew within a second, so try \
         again, and end the process if it does not"
    )]
    Lost {
        /// The socket.
        path: PathBuf,
        /// The process.
        holder: String,
    },
    /// No response within the timeout.
    #[error(
        "the network at {path} did not answer within {seconds} s: it is still applying a long change, is stopped (SIGSTOP), or has no file \
         descriptors left. See its log and `memlane doctor`"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The timeout.
        seconds: u64,
    },
    /// The connection was closed before the response.
    #[error("the network at {path} ended before it answered; `memlane list` shows the running networks")]
    Ended {
        /// The socket.
        path: PathBuf,
    },
    /// The response cannot be parsed.
    #[error("the network's answer cannot be read: {0}. Does another version of memlane run it? `memlane status` shows the version")]
    Answer(String),
    /// The network refused the request.
    #[error("the request was rejected: {0}")]
    Refused(Refusal),
    /// Another error of the kernel.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl ControlError {
    /// Whether no process listens at the socket: the network does not run.
    pub fn is_no_listener(&self) -> bool {
        let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        matches!(self, Self::Unreachable { cause, .. } if kinds.contains(&cause.kind()))
    }
}
