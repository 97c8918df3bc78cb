//! `stream`: Ethernet frames over a Unix stream socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlane_backends::stream::Other;
use memlane_backends::stream::checksums::Checksums;

use super::super::entry::PortEntry;
use super::error::OpenError;
use super::kind::{About, FromEntry, Kind, Opening, PortEndpoint, SavedResources, Socket, USUAL};
use super::listening::listen;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The socket.
    pub path: PathBuf,
    /// Whether memlane connects to it instead of listening.
    pub connect: bool,
    /// Treatment of the checksums of arriving frames.
    pub checksums: Checksums,
}

impl FromEntry for Stream {
    const ABOUT: About = About {
        name: "stream",
        keys: &["connect", "access", "second", "checksums"],
        descriptors: 4,
        prints_address: true,
        ..USUAL
    };

    fn read(entry: &PortEntry, folder: &Path) -> Option<Self> {
        Some(Self { path: folder.join(entry.stream.as_ref()?), connect: entry.connect, checksums: entry.checksums })
    }
}

impl Kind for Stream {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        (entry.stream, entry.connect, entry.checksums) = (Some(self.path.clone()), self.connect, self.checksums);
    }

    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket { path: &self.path, connect: self.connect })
    }

    fn checksums(&self) -> Checksums {
        self.checksums
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        let other = match self.connect {
            true => Other::Connect(self.path.clone()),
            false => listen(opening, &self.path, Other::listen)?,
        };
        Ok(PortEndpoint::Stream(other, None))
    }

    fn restore(&self, opening: &Opening<'_>, saved: SavedResources) -> Result<PortEndpoint, OpenError> {
        if self.connect {
            return self.open(opening);
        }
        let listener = saved.listener.ok_or_else(|| OpenError::Description(opening.name.into()))?;
        Ok(PortEndpoint::Stream(Other::Listen(Arc::new(listener.kept_before())), None))
    }
}
