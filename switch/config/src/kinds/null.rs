//! `null`: accepts every frame and sends none.

use std::path::Path;

use super::super::entry::PortEntry;
use super::error::OpenError;
use super::kind::{About, ByWorker, FromEntry, Kind, Opening, PortEndpoint, USUAL};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Null;

impl FromEntry for Null {
    const ABOUT: About = About { name: "null", has_usual_address: false, has_guest: false, in_snapshot: true, ..USUAL };

    fn read(entry: &PortEntry, _folder: &Path) -> Option<Self> {
        entry.null.then_some(Self)
    }
}

impl Kind for Null {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        entry.null = true;
    }

    fn open(&self, _opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        Ok(PortEndpoint::Worker(ByWorker::new(memlane_backends::null::Null)))
    }
}
