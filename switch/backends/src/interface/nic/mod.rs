//! A NIC as the way to other hosts: by AF_XDP, or by a packet socket where driver, kernel or MTU do not allow that.
//!
//! 1. [`Opener`]: opens the sockets, here or in a process that has the rights. [`xsk`]: an AF_XDP socket, its rings and frames.
//! 2. [`Nic`]: both sockets of an interface, as it comes and goes; its [`session`](super::session) watches it.
//! 3. [`XdpTransmit`](transmit) (TX): received frames are forwarded from the socket's memory. [`XdpReceive`](receive) (RX): frames are
//!    copied there, segmented and with checksums.
//!
//! The interface is memlane's alone: its driver hands all frames to the AF_XDP socket, so the host has no address there.

mod receive;
mod transmit;
mod xsk;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

pub use xsk::XdpFiles;

use super::af_packet::{PacketSettings, PacketSocket};
use super::handle::{Interface, in_namespace};
use super::tap;
use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::session::RETRY;
use memlane_virtq::message::counted;
use receive::XdpReceive;
use transmit::XdpTransmit;
use xsk::{Frames, Rings};

/// Opens the sockets of a NIC.
pub trait Opener: fmt::Debug + Send {
    /// A packet socket in the interface's namespace, not bound to it.
    ///
    /// # Errors
    /// The cause and its remedy.
    fn packet(&self, settings: &PacketSettings) -> Result<PacketSocket, String>;

    /// An AF_XDP socket for the interface.
    ///
    /// # Errors
    /// The reason that there is none.
    fn xdp(&self, settings: &PacketSettings) -> Result<XdpFiles, String>;
}

/// Opens them in this process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Opener for Here {
    fn packet(&self, settings: &PacketSettings) -> Result<PacketSocket, String> {
        PacketSocket::open(settings).map_err(|error| error.to_string())
    }

    fn xdp(&self, settings: &PacketSettings) -> Result<XdpFiles, String> {
        let opened = in_namespace(settings.netns.as_deref(), || Ok(open(&settings.name)));
        opened.map_err(|error| error.to_string())?.map_err(|cause| match cause.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".into(),
            Some(libc::EOPNOTSUPP) => "its driver has no XDP".into(),
            Some(libc::EPERM) => "CAP_NET_RAW, CAP_NET_ADMIN or CAP_BPF is missing".into(),
            Some(libc::EBUSY | libc::EEXIST) => "another program uses XDP there: see bpftool net".into(),
            _ => cause.to_string(),
        })
    }
}

/// Opens an AF_XDP socket for the interface `name` of this thread's namespace.
fn open(name: &str) -> io::Result<XdpFiles> {
    let properties = tap::properties(name)?;
    if properties.receive_queues > 1 {
        let count = properties.receive_queues;
        return Err(io::Error::other(format!(
            "it has {}: ethtool -L {name} combined 1 (or rx 1)",
            counted(count, "receive queue")
        )));
    }
    let mut tries = TRIES;
    loop {
        let opened = XdpFiles::open(properties.index, properties.mtu);
        tries -= 1;
        match &opened {
            // The kernel releases a socket that was closed just now in the background.
            Err(cause) if cause.raw_os_error() == Some(libc::EBUSY) && tries > 0 => thread::sleep(RETRY.0),
            _ => return opened,
        }
    }
}

/// Tries to open a receive queue that another socket has.
const TRIES: u32 = 10;

/// Access to a NIC at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicState {
    /// "af-xdp" or "af-packet"; `None` while the interface is missing.
    pub socket: Option<&'static str>,
    /// Why it is no AF_XDP socket, and other notes.
    pub note: Option<String>,
}

/// A NIC that may come and go.
#[derive(Debug)]
pub struct Nic {
    pub(super) packet: PacketSocket,
    opener: Box<dyn Opener>,
    /// Bytes that its packets may have.
    mtu: u16,
    state: Arc<Mutex<NicState>>,
}

impl Nic {
    /// The NIC of these settings; it may be missing. Packets to it have at most `mtu` bytes.
    ///
    /// # Errors
    /// The packet socket cannot be opened.
    pub fn new(settings: &PacketSettings, opener: Box<dyn Opener>, mtu: u16) -> Result<Self, String> {
        Ok(Self { packet: opener.packet(settings)?, opener, mtu, state: Arc::default() })
    }

    /// State of the NIC, which changes while it is used.
    pub fn state(&self) -> Arc<Mutex<NicState>> {
        Arc::clone(&self.state)
    }

    /// Opens the interface, if it is there.
    pub(super) fn open(&self) -> io::Result<Opened> {
        *self.present() = NicState::default();
        let settings = &self.packet.settings;
        let mtu = self.packet.mtu()?;
        let is_short = mtu < self.mtu.into();
        let short = is_short.then(|| {
            let (name, wanted) = (&settings.name, self.mtu);
            format!("the MTU of {name} is {mtu}, less than the segment's {wanted}: ip link set {name} mtu {wanted}, or set mtu = {mtu} for the segment")
        });
        let (opened, socket, reason) = match self.opener.xdp(settings) {
            Ok(files) => {
                let watched = self.packet.watch()?;
                (Opened::Xdp(XdpPort { files, watched }), "af-xdp", None)
            }
            Err(reason) => {
                let note = format!("interface {} is used by AF_PACKET, which is slower than AF_XDP: {reason}", settings.name);
                (Opened::Interface(self.packet.bind()?), "af-packet", Some(note))
            }
        };
        *self.present() = NicState { socket: Some(socket), note: short.or(reason) };
        Ok(opened)
    }

    /// The note of its state.
    pub(super) fn note(&self) -> Option<String> {
        self.present().note.clone()
    }

    /// The interface is missing, for this reason.
    pub(super) fn lost(&self, note: &str) {
        *self.present() = NicState { socket: None, note: Some(note.into()) };
    }

    fn present(&self) -> std::sync::MutexGuard<'_, NicState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An opened interface.
#[derive(Debug)]
pub(super) enum Opened {
    /// Read and written by system calls.
    Interface(Interface),
    /// By rings shared with the kernel.
    Xdp(XdpPort),
}

/// An AF_XDP socket as a port's back end.
#[derive(Debug)]
pub struct XdpPort {
    files: XdpFiles,
    /// A packet socket that tells when the interface is deleted.
    pub(super) watched: File,
}

impl Backend for XdpPort {
    fn into_ends(self, _: &Arc<Pool>) -> io::Result<Ends> {
        let XdpFiles { socket, frames, link } = self.files;
        let Rings { fill, receive, transmit, completion } = Rings::of(&socket)?;
        let readable = Some(socket.try_clone()?);
        let socket = Arc::new(socket);
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let room = Some(File::from(timer.as_fd().try_clone_to_owned()?));
        Ok(Ends {
            transmit: Box::new(XdpTransmit::new((Arc::clone(&socket), link), Frames::of(&frames)?, fill, receive)),
            receive: Box::new(XdpReceive::new(socket, Frames::of(&frames)?, (transmit, completion), timer)),
            readable,
            writable: None,
            room,
        })
    }
}
