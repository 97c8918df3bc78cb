//! `af-packet`: an interface of the host, by a packet socket; the interface may come later.

use std::path::Path;

use memlane_backends::interface::af_packet::{PacketSettings, PacketSocket};
use memlane_backends::interface::{InterfaceError, Origin};

use super::super::entry::PortEntry;
use super::error::OpenError;
use super::kind::{About, FromEntry, HostInterface, Kind, Opening, PortEndpoint, SavedResources, USUAL, UnitLack};
use super::rights::Rights;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfPacket {
    /// Interface name.
    pub name: String,
    /// Network namespace of the interface, by its name under `/run/netns`.
    pub netns: Option<String>,
}

impl AfPacket {
    fn settings(&self) -> PacketSettings {
        PacketSettings { name: self.name.clone(), netns: self.netns.clone() }
    }
}

impl FromEntry for AfPacket {
    const ABOUT: About = About {
        name: "af-packet",
        keys: &["netns"],
        descriptors: 9,
        rights: Rights { packet: true, ..Rights::NONE },
        unit: UnitLack::Devices,
        has_usual_address: false,
        ..USUAL
    };

    fn read(entry: &PortEntry, _folder: &Path) -> Option<Self> {
        Some(Self { name: entry.af_packet.clone()?, netns: entry.netns.clone() })
    }
}

impl Kind for AfPacket {
    fn about(&self) -> &'static About {
        &Self::ABOUT
    }

    fn state(&self, entry: &mut PortEntry) {
        (entry.af_packet, entry.netns) = (Some(self.name.clone()), self.netns.clone());
    }

    fn interface(&self) -> Option<HostInterface<'_>> {
        Some(HostInterface { what: "interface", name: &self.name, netns: &self.netns })
    }

    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError> {
        endpoint(opening, PacketSocket::open(&self.settings()))
    }

    fn restore(&self, opening: &Opening<'_>, saved: SavedResources) -> Result<PortEndpoint, OpenError> {
        let socket = saved.file.ok_or_else(|| OpenError::Description(opening.name.into()))?;
        endpoint(opening, PacketSocket::taken_over(&self.settings(), socket))
    }
}

fn endpoint(opening: &Opening<'_>, socket: Result<PacketSocket, InterfaceError>) -> Result<PortEndpoint, OpenError> {
    let socket = socket.map_err(|cause| OpenError::Interface { port: opening.name.into(), cause })?;
    Ok(PortEndpoint::Interface(Origin::Packet(socket), None))
}
