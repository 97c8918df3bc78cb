//! The descriptor of an interface, and why there is none.

use std::fs::File;
use std::io;

use thiserror::Error;

use crate::descriptors;
use crate::frame::NetHeader;
use crate::netns;
use crate::offload::Offloads;

/// Why an interface cannot be opened.
#[derive(Debug, Error)]
#[error("{what}: {cause}. {remedy}")]
pub struct InterfaceError {
    what: String,
    cause: io::Error,
    remedy: &'static str,
}

impl InterfaceError {
    pub(super) fn new(what: String, cause: io::Error, remedy: &'static str) -> Self {
        let remedy = if descriptors::is_shortage(&cause) { descriptors::REMEDY } else { remedy };
        Self { what, cause, remedy }
    }
}

/// An open interface: reads and writes are frames with a virtio-net header.
#[derive(Debug)]
pub struct Interface {
    /// Non-blocking.
    pub file: File,
    /// The offloads that the kernel accepts in frames written to it.
    pub offloads: Offloads,
    pub(super) kind: Kind,
}

impl Interface {
    /// A copy of its descriptor, for a takeover.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A TAP device, with headers of [`NetHeader::SIZE`] bytes.
    Tap,
    /// A packet socket, with headers of so many bytes.
    Packet { header: usize },
}

impl Kind {
    /// Bytes of the virtio-net header before each frame.
    pub(super) fn header(self) -> usize {
        match self {
            Self::Tap => NetHeader::SIZE,
            Self::Packet { header } => header,
        }
    }
}

/// Runs `action` in the interface's network namespace.
pub(super) fn in_namespace<T: Send>(
    netns: Option<&str>,
    action: impl FnOnce() -> Result<T, InterfaceError> + Send,
) -> Result<T, InterfaceError> {
    let Some(netns) = netns else { return action() };
    let remedy = "Make it with `ip netns add`, and run memlane as root to enter it.";
    netns::inside(netns, action).map_err(|cause| InterfaceError::new(format!("network namespace {netns}"), cause, remedy))?
}
