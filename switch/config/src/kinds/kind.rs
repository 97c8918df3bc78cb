//! The interface of a kind of port to the rest of the program.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use memlane_backends::interface::{Interface, Origin};
use memlane_backends::stream::checksums::Checksums;
use memlane_backends::stream::nat::NatSettings;
use memlane_backends::stream::{self as streams, Passt, RestoredStream};
use memlane_backends::vhost_user::Endpoint;
use memlane_backends::vhost_user::access::Access;
use memlane_backends::vhost_user::socket::Listener;
use memlane_backends::xen::Wanted;

use super::super::entry::PortEntry;
use super::super::resource::{Claim, Places};
use super::error::OpenError;
use super::rights::Rights;
use crate::frame::MacAddress;
use crate::network::Network;
use crate::port::end::Backend;
use crate::port::{Offer, Port};

/// Properties of each port of a kind.
#[derive(Debug)]
pub struct About {
    /// Key in the file, which is the name for operators.
    pub name: &'static str,
    /// Keys that apply to few kinds, and to this one.
    pub keys: &'static [&'static str],
    /// Keys that cannot change while a port runs, though others' can.
    pub fixed: &'static [&'static str],
    /// File descriptors of a port from its start to its end; connections of its front ends take others.
    pub descriptors: u64,
    /// Rights that the sandbox keeps for it: see [`Rights`].
    pub rights: Rights,
    /// The lacks of the packaged unit for it.
    pub unit: UnitLack,
    /// Whether memlane prints a MAC address for its guest, which the guest is to have.
    pub prints_address: bool,
    /// Whether reports tell a MAC address of memlane's for it, where it has none.
    pub has_usual_address: bool,
    /// Whether a front end tells of its guest: it waits while there is none.
    pub has_front_end: bool,
    /// Whether the port leads to a guest.
    pub has_guest: bool,
    /// Whether its frames to reserved group addresses are dropped as long as the file does not say otherwise.
    pub drops_reserved: bool,
    /// Whether a snapshot of the network has it: all that it leads to is a guest that can be saved and restored, or nothing.
    pub in_snapshot: bool,
}

/// A kind with usual answers, for constants of the kinds: a guest behind a socket.
pub(super) const USUAL: About = About {
    name: "",
    keys: &[],
    fixed: &[],
    descriptors: 0,
    rights: Rights::NONE,
    unit: UnitLack::Nothing,
    prints_address: false,
    has_usual_address: true,
    has_front_end: false,
    has_guest: true,
    drops_reserved: false,
    in_snapshot: false,
};

/// A lack of the packaged unit for a kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitLack {
    /// Nothing.
    Nothing,
    /// Rights for devices.
    Devices,
    /// A unit of another kind: the sentence for it.
    Other(&'static str),
}

/// A Unix socket of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket<'k> {
    /// Path of the socket.
    pub path: &'k Path,
    /// Whether memlane connects to it instead of listening.
    pub connect: bool,
}

/// A network interface of the host that is a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInterface<'k> {
    /// Kind of the interface in words.
    pub what: &'static str,
    /// Name of the interface.
    pub name: &'k str,
    /// Network namespace of the interface, by its name under `/run/netns`.
    pub netns: &'k Option<String>,
}

/// The kind of a port, with its own settings.
pub trait Kind: fmt::Debug {
    /// Properties of all ports of the kind.
    fn about(&self) -> &'static About;

    /// States its keys in `entry`, so that [`FromEntry::read`] returns it.
    fn state(&self, entry: &mut PortEntry);

    /// Opens the port's resources.
    ///
    /// # Errors
    /// A [`OpenError`].
    fn open(&self, opening: &Opening<'_>) -> Result<PortEndpoint, OpenError>;

    /// Opens the port in a takeover, with the resources of the other process; by default anew.
    ///
    /// # Errors
    /// A [`OpenError`]; a resource that the kind needs is missing.
    fn restore(&self, opening: &Opening<'_>, saved: SavedResources) -> Result<PortEndpoint, OpenError> {
        let _ = saved;
        self.open(opening)
    }

    /// The name that operators see.
    fn name(&self) -> &'static str {
        self.about().name
    }

    /// Socket or interface in words; empty without one.
    fn place(&self) -> String {
        let socket = self.socket().map(|socket| socket.path.display().to_string());
        socket.or_else(|| Some(self.interface()?.name.into())).unwrap_or_default()
    }

    /// Socket of the port, if it has one.
    fn socket(&self) -> Option<Socket<'_>> {
        None
    }

    /// The host's interface of the port, with its network namespace, if there is one.
    fn interface(&self) -> Option<HostInterface<'_>> {
        None
    }

    /// A resource that no other port can have.
    fn claim(&self, places: &mut Places) -> Option<Claim<'_>> {
        let socket = self.socket().map(|socket| places.socket(Path::new(""), socket.path));
        socket.or_else(|| self.interface().map(|interface| Claim::interface(interface.name, interface.netns)))
    }

    /// Rights that the sandbox keeps for it, beside those of the network namespace of its interface.
    fn rights(&self) -> Rights {
        let has_netns = self.interface().is_some_and(|interface| interface.netns.is_some());
        Rights { netns: has_netns, ..self.about().rights }
    }

    /// Checksum offload of frames without a virtio-net header in the transmit direction.
    fn checksums(&self) -> Checksums {
        Checksums::Keep
    }

    /// Arguments of its passt beside memlane's own, if passt is the other side: the way out of the segment.
    fn passt(&self) -> Option<&[String]> {
        None
    }

    /// The path at which memlane listens, if it does.
    fn listens_at(&self) -> Option<&Path> {
        self.socket().filter(|socket| !socket.connect).map(|socket| socket.path)
    }

    /// The path at which it connects to others, if it does.
    fn connects_to(&self) -> Option<&Path> {
        self.socket().filter(|socket| socket.connect).map(|socket| socket.path)
    }

    /// Socket of vhost-user front ends, if the port has one.
    fn front_ends(&self) -> Option<Socket<'_>> {
        self.socket().filter(|_| self.about().has_front_end)
    }
}

/// A kind as the file states it.
pub(super) trait FromEntry: Kind + Sized {
    /// See there.
    const ABOUT: About;

    /// The kind of `entry`, if it has its key; relative paths lie in `folder`.
    fn read(entry: &PortEntry, folder: &Path) -> Option<Self>;
}

/// The values that a port is opened with.
pub struct Opening<'o> {
    /// Name of the port.
    pub name: &'o str,
    /// MAC address of the guest as configured.
    pub mac: Option<MacAddress>,
    /// MTU of the port as configured.
    pub mtu: Option<u16>,
    /// Queue pairs: transmit queue and receive queue.
    pub queues: u16,
    /// Receive offloads: whether the guest may receive GSO frames and partial checksums.
    pub receive_offloads: bool,
    /// Access rights of its socket.
    pub access: &'o Access,
    /// Tells users without access to the folder of the socket, in a sentence.
    pub shut_out: &'o dyn Fn() -> Option<String>,
    /// The offer to its guest, once uplinks are known.
    pub offer: Option<Offer>,
    /// Settings of the address translation, if it has one.
    pub nat: &'o dyn Fn() -> Option<NatSettings>,
    /// Finds passt(1), and has the helper or this process start it.
    pub passt: &'o dyn Fn(Passt) -> io::Result<Passt>,
}

/// A back end that a worker serves without a session.
pub struct ByWorker(Box<Serve>);

type Serve = dyn FnOnce(&Network, &Arc<Port>) -> io::Result<()> + Send;

impl ByWorker {
    pub(super) fn new(backend: impl Backend + Send + 'static) -> Self {
        Self(Box::new(|network, port| network.serve(port, backend)))
    }

    /// Has a worker of `network` serve `port`.
    ///
    /// # Errors
    /// The errors of [`Network::serve`].
    pub fn serve(self, network: &Network, port: &Arc<Port>) -> io::Result<()> {
        self.0(network, port)
    }
}

impl fmt::Debug for ByWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByWorker")
    }
}

/// Resources of a port in a takeover, which another process has opened.
#[derive(Debug, Default)]
pub struct SavedResources {
    /// The listening socket, after a takeover.
    pub listener: Option<Listener>,
    /// The TAP device or packet socket, after a takeover.
    pub file: Option<File>,
}

/// The other side of a port that is open.
#[derive(Debug)]
pub enum PortEndpoint {
    /// Front ends come to a vhost-user socket.
    FrontEnd(Endpoint),
    /// A stream socket, with the connection of another process.
    Stream(streams::Other, Option<RestoredStream>),
    /// Xen's toolstack.
    Xen(Wanted),
    /// An interface of the host, which may come later.
    Interface(Origin, Option<Interface>),
    /// No other side: a worker serves the port alone.
    Worker(ByWorker),
    /// The port is opened when the offer is known.
    Later,
}
