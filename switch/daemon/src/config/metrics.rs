//! Where metrics are served beside the control socket.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use memlane_backends::vhost_user::access::Access;

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// A checked place for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsListener {
    /// A Unix socket, and who may connect to it.
    Unix(PathBuf, Access),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl MetricsListener {
    /// The place that the keys `metrics` and `metrics-access` state; relative paths lie in `folder`. `None` for what is neither.
    pub fn parse(text: &str, access: &Access, folder: &Path) -> Option<Self> {
        match text.strip_prefix(UNIX) {
            Some(path) => Some(Self::Unix(folder.join(path), access.clone())),
            None => text.parse().ok().map(Self::Tcp),
        }
    }
}

/// The path of the Unix socket that `text` states, if it states one.
pub fn socket(text: &str) -> Option<&Path> {
    text.strip_prefix(UNIX).map(Path::new)
}

/// `text` with the path of its Unix socket made absolute.
pub fn in_folder(text: &str, folder: &Path) -> String {
    socket(text).map_or_else(|| text.into(), |path| format!("{UNIX}{}", folder.join(path).display()))
}
