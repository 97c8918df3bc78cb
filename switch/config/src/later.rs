//! The key `sandbox`: rights for ports that are attached later.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rights that the process keeps for ports attached later, beside those that the ports of the file need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[schemars(extend("examples" = [{ "kinds": ["tap"], "folders": ["/run/vms"] }]))]
pub struct Later {
    /// Kinds of ports.
    pub kinds: Vec<LaterKind>,
    /// Folders of sockets, relative to the file's folder.
    pub folders: Vec<PathBuf>,
}

impl Later {
    /// The same with absolute paths; relative ones lie in `folder`.
    pub fn in_folder(&self, folder: &Path) -> Self {
        Self { kinds: self.kinds.clone(), folders: self.folders.iter().map(|path| folder.join(path)).collect() }
    }
}

/// A kind of port that needs more than sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LaterKind {
    /// TAP ports and uplinks.
    Tap,
    /// Ports at interfaces by AF_PACKET, as those of containers.
    AfPacket,
    /// NICs as uplinks of segments.
    Nic,
    /// passt ports that the file does not have, with which there is no sandbox at all: passt makes its own.
    Passt,
    /// Xen ports.
    Xen,
}
