//! Identity of a network: its name, file and process, which distinguish networks of the same name.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::claim::place;

/// A network's file, which distinguishes networks of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NetFile {
    /// Absolute path, with links to folders resolved when it was named.
    pub path: PathBuf,
    /// Absolute path as given: links in it may lead elsewhere by now.
    #[serde(default)]
    pub stated: PathBuf,
    /// Device of its file system.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
}

impl NetFile {
    /// The file at `path`.
    ///
    /// # Errors
    /// There is none.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self { path: place(path), stated: std::path::absolute(path)?, device: metadata.dev(), inode: metadata.ino() })
    }

    /// The file that is now at the given path: editors replace a file by a new one, and deployments point a link at a new folder.
    /// Without one, the file known before.
    pub fn now(&self) -> Self {
        Self::at(&self.stated).map_or_else(|_| self.clone(), |now| Self { path: self.path.clone(), ..now })
    }

    /// Whether both are the same file, or were given by the same path.
    pub fn is(&self, other: &Self) -> bool {
        self.path == other.path || self.stated == other.stated || (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Identity of the network at a control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// Name of the network.
    pub name: String,
    /// Version of memlane.
    pub version: String,
    /// Process id, as the network knows it; in `Running`, as it is known here, or 0 if it is in a PID namespace that is not
    /// visible here.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime: u64,
    /// Its file, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<NetFile>,
    /// Number of ports.
    pub ports: usize,
}

impl Identity {
    /// Name of the network, file and process, for a sentence.
    pub fn told(&self) -> String {
        let file = self.file.as_ref().map(|file| format!(" of {}", file.path.display())).unwrap_or_default();
        format!("network {}{file} (process {})", self.name, self.pid).replace(char::is_control, "?")
    }
}
