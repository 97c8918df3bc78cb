//! Why a network cannot be started, or a port attached.

use std::io;

use thiserror::Error;

use crate::config::kinds::OpenError;
use crate::descriptors;
use crate::network::AddError;
use crate::uplink::UplinkError;
use memlane_backends::xen::XenError;

/// See the module.
#[derive(Debug, Error)]
pub enum StartError {
    /// The port cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Xen is not available, and the configuration key `xen-vifs` needs it.
    #[error("xen-vifs: {0}")]
    XenVifs(XenError),
    /// An uplink of a segment to other hosts cannot be set up.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The descriptor limit leaves none for another port: the rest is for the existing ports.
    #[error("port {0}: no file descriptors are left for another port. {remedy}", remedy = descriptors::REMEDY)]
    Descriptors(String),
    /// The sandbox of the process refuses the port.
    #[error("port {port}: {cause}")]
    Sandbox {
        /// The port.
        port: String,
        /// The reason and its remedy.
        cause: String,
    },
    /// The sandbox of the process refuses an uplink.
    #[error("segment {segment}: {cause}")]
    UplinkSandbox {
        /// The segment.
        segment: String,
        /// The reason and its remedy.
        cause: String,
    },
    /// The network refuses the port.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The kernel refuses something else.
    #[error("cannot start the network: {0}{remedy}", remedy = descriptors::remedy(.0))]
    System(#[from] io::Error),
}
