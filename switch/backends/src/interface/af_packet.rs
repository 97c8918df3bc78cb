//! An existing Ethernet interface of the host's kernel by AF_PACKET (packet(7)): the host's end of a container's veth pair, a NIC.
//!
//! Frames carry a virtio-net header both ways (PACKET_VNET_HDR), so GSO frames and partial checksums pass unchanged. The socket sees
//! the frames that arrive at the interface; so does the host, if it has addresses there. Opening it needs CAP_NET_RAW, and nothing
//! afterwards does: while the interface is missing the socket stays, and it is bound again to the next interface of that name.

#![expect(unsafe_code, reason = "socket options and ioctls of network interfaces")]

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::handle::{Interface, InterfaceError, Kind, in_namespace};
use super::tap::{control, request};
use crate::frame::NetHeader;
use crate::offload::Offloads;

/// Bytes of frames, with the kernel's own structures, that wait in the socket; without CAP_NET_ADMIN the kernel allows
/// net.core.rmem_max. Frames beyond it are dropped, and counted.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Bytes of sent frames that the interface has not passed on.
const SEND_BUFFER: usize = 4 << 20;
/// Bytes of a virtio-net header without the number of buffers, which Linux knew alone before 6.6.
const SHORT_HEADER: usize = 10;

/// Names the interface of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketSettings {
    /// Name of the interface.
    pub name: String,
    /// Network namespace, by its name under `/run/netns`.
    pub netns: Option<String>,
}

/// A packet socket, bound to its interface or not.
#[derive(Debug)]
pub struct PacketSocket {
    pub(super) settings: PacketSettings,
    pub(super) file: File,
    header: usize,
}

impl PacketSocket {
    /// Opens the socket, in the interface's namespace.
    ///
    /// # Errors
    /// An [`InterfaceError`] with its remedy.
    pub fn open(settings: &PacketSettings) -> Result<Self, InterfaceError> {
        in_namespace(settings.netns.as_deref(), || {
            open_socket().and_then(|file| Self::with(settings, file)).map_err(|cause| {
                let remedy = match cause.raw_os_error() {
                    Some(libc::EPERM) => "Run memlane as root or with CAP_NET_RAW.",
                    Some(libc::EAFNOSUPPORT) => "Load the module af_packet: modprobe af_packet",
                    _ => "The kernel is too old: Linux 5.10 or newer is needed.",
                };
                InterfaceError::new(format!("af-packet {}", settings.name), cause, remedy)
            })
        })
    }

    /// The socket `file` of another process of the network.
    ///
    /// # Errors
    /// The file is no packet socket.
    pub fn taken_over(settings: &PacketSettings, file: File) -> Result<Self, InterfaceError> {
        Self::with(settings, file).map_err(|cause| {
            let remedy = "Restart the network: `memlane down`, then `memlane up`.";
            InterfaceError::new(format!("af-packet {}", settings.name), cause, remedy)
        })
    }

    /// Sets the options of the socket `file`.
    fn with(settings: &PacketSettings, file: File) -> io::Result<Self> {
        let set = |option: libc::c_int, value: libc::c_int| set_option(&file, libc::SOL_PACKET, option, &value);
        let header = match set(libc::PACKET_VNET_HDR_SZ, NetHeader::SIZE as libc::c_int) {
            Ok(()) => NetHeader::SIZE,
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                set(libc::PACKET_VNET_HDR, 1)?;
                SHORT_HEADER
            }
            Err(error) => return Err(error),
        };
        set(libc::PACKET_AUXDATA, 1)?;
        set(libc::PACKET_IGNORE_OUTGOING, 1)?;
        set_option(&file, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &(1 as libc::c_int))?;
        Ok(Self { settings: settings.clone(), file, header })
    }

    /// Binds the socket to the interface, if there is one; from then on frames arrive.
    ///
    /// # Errors
    /// There is no such interface, or it is no Ethernet interface.
    pub(super) fn bind(&self) -> io::Result<Interface> {
        let file = self.bind_for(libc::ETH_P_ALL as u16)?;
        // UDP segmentation came with Linux 6.2, and headers of any length with 6.6.
        let has_udp = self.header == NetHeader::SIZE;
        let offloads = Offloads { udp4: has_udp, udp6: has_udp, ..Offloads::ALL };
        Ok(Interface { file, offloads, kind: Kind::Packet { header: self.header } })
    }

    /// Binds the socket to the interface for no frames: it tells when that is deleted, and keeps it promiscuous.
    ///
    /// # Errors
    /// The errors of [`Self::bind`].
    pub(super) fn watch(&self) -> io::Result<File> {
        self.bind_for(0)
    }

    /// The MTU of the interface.
    ///
    /// # Errors
    /// There is no such interface.
    pub(super) fn mtu(&self) -> io::Result<u32> {
        let mut by_name = request(&self.settings.name)?;
        control(&self.file, libc::SIOCGIFMTU, &mut by_name)?;
        // SAFETY: the kernel just wrote this member.
        Ok(unsafe { by_name.ifr_ifru.ifru_mtu }.unsigned_abs())
    }

    /// The descriptor, for the process that is to use the socket: see [`Self::taken_over`].
    pub fn into_file(self) -> File {
        self.file
    }

    /// Binds the socket to the interface, for frames of this `protocol`.
    fn bind_for(&self, protocol: u16) -> io::Result<File> {
        let file = self.file.try_clone()?;
        let mut by_name = request(&self.settings.name)?;
        control(&file, libc::SIOCGIFHWADDR, &mut by_name)?;
        // SAFETY: the kernel just wrote this member.
        if unsafe { by_name.ifr_ifru.ifru_hwaddr.sa_family } != libc::ARPHRD_ETHER {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not an Ethernet interface"));
        }
        control(&file, libc::SIOCGIFINDEX, &mut by_name)?;
        // SAFETY: likewise.
        let index = unsafe { by_name.ifr_ifru.ifru_ifindex };
        bind(&file, index, protocol)?;
        let promiscuous =
            libc::packet_mreq { mr_ifindex: index, mr_type: libc::PACKET_MR_PROMISC as _, mr_alen: 0, mr_address: [0; 8] };
        set_option(&file, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        Ok(file)
    }
}

/// Whether the interface that the socket `file` was bound to was deleted, or moved to another namespace. Renaming it does not count.
pub(super) fn is_gone(file: &File) -> bool {
    // SAFETY: plain data, for which all zeroes is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address has the length that is told.
    let status = unsafe { libc::getsockname(file.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    // The kernel sets the index to -1 (packet_notifier).
    status == 0 && address.sll_ifindex <= 0
}

/// A packet socket that receives nothing yet.
fn open_socket() -> io::Result<File> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let file = File::from(socket(AddressFamily::Packet, SockType::Raw, flags, None)?);
    for (forced, usual, bytes) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER)]
    {
        let set = |option: libc::c_int| set_option(&file, libc::SOL_SOCKET, option, &(bytes as libc::c_int));
        set(forced).or_else(|_| set(usual))?;
    }
    Ok(file)
}

fn bind(file: &File, index: libc::c_int, protocol: u16) -> io::Result<()> {
    // SAFETY: plain data, for which all zeroes is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address has the length that is told.
    succeeded(unsafe { libc::bind(file.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Sets a socket option; callers pair each with the type that the kernel expects.
fn set_option<T>(file: &File, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has the length that is told.
    succeeded(unsafe { libc::setsockopt(file.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length) })
}

fn succeeded(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
