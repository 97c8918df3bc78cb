//! Sockets at which front ends connect.

use std::io;
use std::path::Path;

use memlane_backends::vhost_user::access::Access;

use super::error::OpenError;
use super::kind::Opening;
use crate::{descriptors, folder};

/// Target of lines of the log, by which operators choose them.
const LOG: &str = "memlane::config::kinds::listening";

/// Has `listen` make the socket of the port at `path`.
pub(super) fn listen<T>(
    opening: &Opening<'_>,
    path: &Path,
    listen: impl FnOnce(&Path, &Access) -> io::Result<T>,
) -> Result<T, OpenError> {
    let failed = |cause, remedy| OpenError::Listen { port: opening.name.into(), path: path.display().to_string(), cause, remedy };
    folder::provide(path, !opening.access.is_private()).map_err(|cause| {
        let remedy = match cause.kind() {
            io::ErrorKind::PermissionDenied => "Choose another folder, or set XDG_RUNTIME_DIR to one of your own.",
            _ => "Make the folder, or correct the path: memlane makes only its run-time folder.",
        };
        failed(cause, remedy)
    })?;
    if let Some(note) = (opening.shut_out)() {
        tracing::warn!(target: LOG, port = %opening.name, "{note}");
    }
    listen(path, opening.access).map_err(|cause| {
        let remedy = match cause.kind() {
            _ if descriptors::is_shortage(&cause) => descriptors::REMEDY,
            io::ErrorKind::AddrInUse => "Stop the process that listens there, or choose another path.",
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
                if *opening.access != Access::default() =>
            {
                "Set access to an existing user or group, and run memlane as root or as a member of that group (`memlane check --unit`)."
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "A packaged unit makes sockets in /run/memlane; `memlane check --unit` prints the drop-in for another folder."
            }
            io::ErrorKind::PermissionDenied => "Choose a folder that you may write to, such as $XDG_RUNTIME_DIR.",
            _ => "Check that the folder exists and is on a local filesystem.",
        };
        failed(cause, remedy)
    })
}
