//! `tap`: a TAP device of the kernel.

use std::path::Path;

use memlane_backends::interface::tap::{self, TapSettings};
use memlane_backends::interface::{InterfaceError, Origin};

use super::super::entry::PortEntry;
use super::error::OpenError;
use super::kind::{About, FromEntry, HostInterface, Kind, Opening, PortEndpoint, SavedResources, USUAL, UnitLack};
use super::rights::Rights;
use crate::port::Offer;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Interface name.
    pub name: String,
    /// Network namespace, by its name under `/run/netns`.
    pub netns: Option<String>,
}

impl Tap {
    fn settings(&self, opening: &Opening<'_>, offer: &Offer) -> TapSettings {
        TapSettings { name: self.name.clone(), netns: self.netns.clone(), mac: opening.mac, mtu: offer.mtu }
    }
}

impl FromEntry for Tap {
    const ABOUT: About = About {
        name: "tap",
        keys: &["netns"],
        // The kernel is told of them as the device is opened.
        fixed: &["mac", "mtu"],
        descriptors: 9,
        rights: Rights { tap: true, ..Rights::NONE },
        unit: UnitLack::Devices,
        has_usual_address: false,
        drops_reserved: true,
        ..USUAL
    };

    fn read(entry: &PortEntry, _folder: &Path) -> Option<Self> {
        Some(Self { name: entry.tap.clone()?, netns: entry.netns.clone() })
    }
}

impl Kind for Tap {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        (entry.tap, entry.netns) = (Some(self.name.clone()), self.netns.clone());
    }

    fn interface(&self) -> Option<HostInterface<'_>> {
        Some(HostInterface { what: "TAP device", name: &self.name, netns: &self.netns })
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        // The MTU may be an uplink's.
        let Some(offer) = &opening.offer else { return Ok(PortEndpoint::Later) };
        let settings = self.settings(opening, offer);
        let tap = tap::open(&settings).map_err(failed(opening))?;
        Ok(PortEndpoint::Interface(Origin::Tap(settings), Some(tap)))
    }

    fn restore(&self, opening: &Opening<'_>, saved: SavedResources) -> Result<PortEndpoint, OpenError> {
        let (Some(offer), Some(file)) = (&opening.offer, saved.file) else { return self.open(opening) };
        let tap = tap::taken_over(&self.name, file).map_err(failed(opening))?;
        Ok(PortEndpoint::Interface(Origin::Tap(self.settings(opening, offer)), Some(tap)))
    }
}

fn failed(opening: &Opening<'_>) -> impl FnOnce(InterfaceError) -> OpenError {
    |cause| OpenError::Interface { port: opening.name.into(), cause }
}
