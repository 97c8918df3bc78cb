//! `passt`: passt(1) as the port's other side, the way out of its segment.

use std::path::Path;

use memlane_backends::stream::Other;

use super::super::entry::{PasstEntry, PortEntry};
use super::super::way_out;
use super::error::OpenError;
use super::kind::{About, FromEntry, Kind, Opening, PortEndpoint, USUAL, UnitLack};
use super::rights::Rights;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passt {
    /// Arguments beside memlane's own.
    pub arguments: Vec<String>,
}

impl FromEntry for Passt {
    const ABOUT: About = About {
        name: "passt",
        keys: &["forward"],
        // passt is told of them as it is started.
        fixed: &["mtu", "mac", "addresses"],
        descriptors: 4,
        rights: Rights { passt: true, ..Rights::NONE },
        unit: UnitLack::Other("passt needs the unit of a user: systemctl --user enable --now memlane@NETWORK"),
        ..USUAL
    };

    fn read(entry: &PortEntry, _folder: &Path) -> Option<Self> {
        match entry.passt.as_ref()? {
            PasstEntry::With(arguments) => Some(Self { arguments: arguments.clone() }),
            PasstEntry::Plain(is_used) => is_used.then(|| Self { arguments: Vec::new() }),
        }
    }
}

impl Kind for Passt {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        entry.passt = Some(match self.arguments.is_empty() {
            true => PasstEntry::Plain(true),
            false => PasstEntry::With(self.arguments.clone()),
        });
    }

    fn place(&self) -> String {
        self.arguments.join(" ")
    }

    fn passt(&self) -> Option<&[String]> {
        Some(&self.arguments)
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        let failed = |cause| OpenError::Passt { port: opening.name.into(), cause };
        let passt = way_out::passt(&self.arguments, opening.mtu, (opening.nat)());
        Ok(PortEndpoint::Stream(Other::Passt((opening.passt)(passt).map_err(failed)?), None))
    }
}
