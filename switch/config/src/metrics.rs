//! The endpoint for metrics beside the control socket.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use memlane_backends::vhost_user::access::Access;

/// Prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// A checked endpoint for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsListener {
    /// A Unix socket and its access rights.
    Unix(PathBuf, Access),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl MetricsListener {
    /// The endpoint of the keys `metrics` and `metrics-access`; relative paths lie in `folder`. `None` for text of neither form.
    pub fn parse(text: &str, access: &Access, folder: &Path) -> Option<Self> {
        match text.strip_prefix(UNIX) {
            Some(path) => Some(Self::Unix(folder.join(path), access.clone())),
            None => text.parse().ok().map(Self::Tcp),
        }
    }
}

/// The name in metrics of a label of ports, as label_task: other characters than ASCII letters and digits become "_".
pub fn label_of_metrics(label: &str) -> String {
    let name: String = label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("label_{name}")
}

/// The path of the Unix socket in `text`, if it names one.
pub fn socket(text: &str) -> Option<&Path> {
    text.strip_prefix(UNIX).map(Path::new)
}

/// `text` with the path of its Unix socket made absolute.
pub fn in_folder(text: &str, folder: &Path) -> String {
    socket(text).map_or_else(|| text.into(), |path| format!("{UNIX}{}", folder.join(path).display()))
}
