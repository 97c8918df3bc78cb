//! Why a port cannot be opened.

use std::io;

use thiserror::Error;

use memlane_backends::interface::InterfaceError;
use memlane_backends::xen::XenError;

/// See the module.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A listening socket cannot be bound.
    #[error("port {port}: cannot listen at {path}: {cause}. {remedy}")]
    Listen {
        /// The port.
        port: String,
        /// The socket.
        path: String,
        /// The error of the kernel.
        cause: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// A TAP device or a packet socket cannot be opened.
    #[error("port {port}: {cause}")]
    Interface {
        /// The port.
        port: String,
        /// The cause and its remedy.
        cause: InterfaceError,
    },
    /// Xen is not available, and a port needs it.
    #[error("port {port}: {cause}")]
    Xen {
        /// The port.
        port: String,
        /// The cause and its remedy.
        cause: XenError,
    },
    /// passt cannot be started.
    #[error("port {port}: cannot start passt: {cause}. Install it: apt install passt")]
    Passt {
        /// The port.
        port: String,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The description of a port by the process that served it does not fit the port.
    #[error(
        "port {0}: its description by the running process lacks a part. Restart the network: `memlane down`, then `memlane up`"
    )]
    Description(String),
}
