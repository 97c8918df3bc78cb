//! `xen`: a network interface of a guest under Xen.

use std::path::Path;

use memlane_backends::xen::Wanted;

use super::super::entry::PortEntry;
use super::super::resource::{Claim, Places};
use super::error::OpenError;
use super::kind::{About, FromEntry, Kind, Opening, PortEndpoint, USUAL, UnitLack};
use super::rights::Rights;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xen {
    /// Name or number of the domain.
    pub domain: String,
    /// Number of its interface.
    pub vif: u16,
}

impl FromEntry for Xen {
    const ABOUT: About = About {
        name: "xen",
        keys: &["vif"],
        // The guest's front end reads them as it starts.
        fixed: &["mac", "mtu"],
        // Event channels of a few queues.
        descriptors: 8,
        rights: Rights { xen: true, ..Rights::NONE },
        unit: UnitLack::Other("xen needs a unit of its own, as root"),
        ..USUAL
    };

    fn read(entry: &PortEntry, _folder: &Path) -> Option<Self> {
        Some(Self { domain: entry.xen.clone()?, vif: entry.vif })
    }
}

impl Kind for Xen {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        (entry.xen, entry.vif) = (Some(self.domain.clone()), self.vif);
    }

    fn place(&self) -> String {
        format!("{}/{}", self.domain, self.vif)
    }

    fn claim(&self, _places: &mut Places) -> Option<Claim<'_>> {
        Some(Claim::Vif(self.domain.as_str().into(), self.vif))
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        Ok(PortEndpoint::Xen(Wanted {
            domain: self.domain.clone(),
            vif: self.vif,
            queues: opening.queues,
            receive_offloads: opening.receive_offloads,
            has_address: opening.mac.is_some(),
        }))
    }
}
