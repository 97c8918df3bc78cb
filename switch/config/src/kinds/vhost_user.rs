//! `vhost-user`: a guest behind a vhost-user socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlane_backends::vhost_user::Endpoint;

use super::super::entry::PortEntry;
use super::error::OpenError;
use super::kind::{About, FromEntry, Kind, Opening, PortEndpoint, SavedResources, Socket, USUAL};
use super::listening::listen;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUser {
    /// The socket.
    pub path: PathBuf,
    /// Whether memlane connects to it instead of listening.
    pub connect: bool,
}

impl FromEntry for VhostUser {
    const ABOUT: About = About {
        name: "vhost-user",
        keys: &["connect", "access", "second", "lazy-memory"],
        // The listening socket.
        descriptors: 1,
        prints_address: true,
        has_front_end: true,
        in_snapshot: true,
        ..USUAL
    };

    fn read(entry: &PortEntry, folder: &Path) -> Option<Self> {
        Some(Self { path: folder.join(entry.vhost_user.as_ref()?), connect: entry.connect })
    }
}

impl Kind for VhostUser {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        (entry.vhost_user, entry.connect) = (Some(self.path.clone()), self.connect);
    }

    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket { path: &self.path, connect: self.connect })
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        Ok(PortEndpoint::FrontEnd(match self.connect {
            true => Endpoint::Connect(self.path.clone()),
            false => listen(opening, &self.path, Endpoint::listen)?,
        }))
    }

    fn restore(&self, opening: &Opening<'_>, saved: SavedResources) -> Result<PortEndpoint, OpenError> {
        if self.connect {
            return self.open(opening);
        }
        let listener = saved.listener.ok_or_else(|| OpenError::Description(opening.name.into()))?;
        Ok(PortEndpoint::FrontEnd(Endpoint::Listen(Arc::new(listener.kept_before()))))
    }
}
