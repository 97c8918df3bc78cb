//! `loopback`: sends frames for its MAC address back to their source.

use std::path::Path;

use memlane_backends::loopback::Loopback as Ends;

use super::super::entry::PortEntry;
use super::error::OpenError;
use super::kind::{About, ByWorker, FromEntry, Kind, Opening, PortEndpoint, USUAL};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loopback;

impl FromEntry for Loopback {
    const ABOUT: About = About { name: "loopback", fixed: &["mac"], descriptors: 2, has_guest: false, in_snapshot: true, ..USUAL };

    fn read(entry: &PortEntry, _folder: &Path) -> Option<Self> {
        entry.loopback.then_some(Self)
    }
}

impl Kind for Loopback {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        entry.loopback = true;
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        Ok(opening.offer.as_ref().map_or(PortEndpoint::Later, |offer| PortEndpoint::Worker(ByWorker::new(Ends(offer.mac)))))
    }
}
