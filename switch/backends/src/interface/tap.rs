//! A TAP port: a network device of the host's kernel (Documentation/networking/tuntap.rst).
//!
//! The device is created, or attached to if it exists, in the configured network namespace. Frames carry a virtio-net header both
//! ways, so checksum and segmentation offload work between guests and the kernel.

#![expect(unsafe_code, reason = "ioctls of network devices")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::handle::{Interface, InterfaceError, Kind, in_namespace};
use crate::frame::{MacAddress, NetHeader};
use crate::offload::Offloads;

/// Configuration of a TAP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapSettings {
    /// Name of the interface.
    pub name: String,
    /// Network namespace, by its name under `/run/netns`.
    pub netns: Option<String>,
    /// MAC address of the interface; chosen by the kernel if there is none.
    pub mac: Option<MacAddress>,
    /// MTU of the interface.
    pub mtu: Option<u16>,
}

const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;
const TUN_F_TSO_ECN: libc::c_uint = 0x08;
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;

/// Opens the device, makes it if needed, and brings it up. Frames have a virtio-net header of twelve bytes.
///
/// # Errors
/// An [`InterfaceError`] with its remedy.
pub fn open(settings: &TapSettings) -> Result<Interface, InterfaceError> {
    in_namespace(settings.netns.as_deref(), || {
        let tap = attach_here(&settings.name)?;
        let remedy = "Changing an interface needs CAP_NET_ADMIN: run memlane as root, or bring the device up yourself.";
        bring_up(settings).map_err(|cause| failed(&settings.name, cause, remedy))?;
        Ok(tap)
    })
}

/// Attaches to the device, or creates it, but does not bring it up: the program that manages it does.
///
/// # Errors
/// An [`InterfaceError`] with its remedy.
pub fn attach(name: &str, netns: Option<&str>) -> Result<Interface, InterfaceError> {
    in_namespace(netns, || attach_here(name))
}

/// The open device `file` of another process of the network.
///
/// # Errors
/// The file is no TAP device.
pub fn taken_over(name: &str, file: File) -> Result<Interface, InterfaceError> {
    let offloads =
        set_offloads(&file).map_err(|cause| failed(name, cause, "Restart the network: `memlane down`, then `memlane up`."))?;
    Ok(Interface { file, offloads, kind: Kind::Tap })
}

/// Whether the device behind `file`, a descriptor of a TAP, was deleted. Renaming it, or moving it to another namespace, does
/// not count.
pub(super) fn is_gone(file: &File) -> bool {
    // SAFETY: ifreq is plain data, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let answer = control(file, libc::TUNGETIFF as libc::c_ulong, &mut request);
    answer.is_err_and(|cause| cause.raw_os_error() == Some(libc::EBADFD))
}

fn attach_here(name: &str) -> Result<Interface, InterfaceError> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open("/dev/net/tun").map_err(
            |cause| {
                let remedy = match cause.kind() {
                    io::ErrorKind::NotFound if is_without_devices() => {
                        "The unit memlane@ has no devices: start memlane-net@ for this network instead."
                    }
                    io::ErrorKind::NotFound => "Load the module tun: modprobe tun.",
                    _ => "Allow access to /dev/net/tun, see `memlane doctor`.",
                };
                failed(name, cause, remedy)
            },
        )?;
    attach_file(&file, name).map_err(|cause| {
        let remedy = match cause.raw_os_error() {
            Some(libc::EPERM) => "Run memlane as root or with CAP_NET_ADMIN, or give it a device of yours: ip tuntap add dev NAME mode tap vnet_hdr user USER.",
            Some(libc::EBUSY) => "Another process has the device open: stop it, or choose another name.",
            _ => "If the device exists, it must be a TAP made with vnet_hdr and without multi_queue.",
        };
        failed(name, cause, remedy)
    })?;
    let offloads =
        set_offloads(&file).map_err(|cause| failed(name, cause, "The kernel is too old: Linux 5.10 or newer is needed."))?;
    Ok(Interface { file, offloads, kind: Kind::Tap })
}

/// Whether this process runs in the packaged unit that has no devices.
fn is_without_devices() -> bool {
    std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|groups| groups.contains("/memlane@"))
}

fn failed(name: &str, cause: io::Error, remedy: &'static str) -> InterfaceError {
    InterfaceError::new(format!("tap {name}"), cause, remedy)
}

/// Properties of an interface that an AF_XDP socket depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) receive_queues: u32,
}

/// The properties of the interface `name` of this thread's namespace.
///
/// # Errors
/// There is none.
pub(super) fn properties(name: &str) -> io::Result<Properties> {
    /// `SIOCETHTOOL`, `ETHTOOL_GCHANNELS` and fields of `struct ethtool_channels` (`include/uapi/linux/ethtool.h`).
    const ETHTOOL: libc::c_ulong = 0x8946;
    const GET_CHANNELS: u32 = 0x3c;
    const RECEIVE: usize = 5;
    const COMBINED: usize = 8;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None)?;
    let mut asked = request(name)?;
    control(&socket, libc::SIOCGIFINDEX, &mut asked)?;
    // SAFETY: the kernel just wrote this member.
    let index = unsafe { asked.ifr_ifru.ifru_ifindex }.unsigned_abs();
    control(&socket, libc::SIOCGIFMTU, &mut asked)?;
    // SAFETY: likewise.
    let mtu = unsafe { asked.ifr_ifru.ifru_mtu }.unsigned_abs();
    let mut channels = [GET_CHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    asked.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    // A driver that does not know the question has one queue.
    let known = control(&socket, ETHTOOL, &mut asked).is_ok();
    let receive_queues = if known { channels[RECEIVE] + channels[COMBINED] } else { 1 };
    Ok(Properties { index, mtu, receive_queues })
}

/// A request about the interface `name`.
pub(super) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let name = CString::new(name)?;
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// Whether the interface `name` is up and has a carrier, or is of a kind that does not tell. Any `socket` of its namespace will do.
///
/// # Errors
/// There is no such interface.
pub(super) fn has_carrier(socket: &impl AsRawFd, name: &str) -> io::Result<bool> {
    let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let mut asked = request(name)?;
    control(socket, libc::SIOCGIFFLAGS, &mut asked)?;
    // SAFETY: the kernel just wrote this member.
    Ok(unsafe { asked.ifr_ifru.ifru_flags } & wanted == wanted)
}

/// Makes an ioctl with a pointer to `argument`. Codes have 32 bits, and another type in each C library.
pub(super) fn control<T>(file: &impl AsRawFd, code: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: callers pair each code with the type that the kernel expects; it outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), code as libc::Ioctl, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn attach_file(file: &File, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    control(file, libc::TUNSETIFF as libc::c_ulong, &mut request)?;
    let mut length: libc::c_int = NetHeader::SIZE as libc::c_int;
    control(file, libc::TUNSETVNETHDRSZ as libc::c_ulong, &mut length)
}

/// Enables every offload that the kernel knows (TUNSETOFFLOAD); USO since Linux 6.2.
fn set_offloads(file: &File) -> io::Result<Offloads> {
    let all = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let set = |flags: libc::c_uint| {
        // SAFETY: the argument of this ioctl is the number itself.
        match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    if set(all | TUN_F_USO4 | TUN_F_USO6).is_ok() {
        return Ok(Offloads::ALL);
    }
    set(all)?;
    Ok(Offloads { udp4: false, udp6: false, ..Offloads::ALL })
}

fn bring_up(settings: &TapSettings) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| std::net::UdpSocket::bind(("0.0.0.0", 0)))?;
    if let Some(mac) = settings.mac {
        let mut request = request(&settings.name)?;
        // SAFETY: writes one member of a union of plain data.
        unsafe {
            request.ifr_ifru.ifru_hwaddr.sa_family = libc::ARPHRD_ETHER;
            for (to, from) in request.ifr_ifru.ifru_hwaddr.sa_data.iter_mut().zip(mac.bytes()) {
                *to = from as libc::c_char;
            }
        }
        control(&socket, libc::SIOCSIFHWADDR, &mut request)?;
    }
    if let Some(mtu) = settings.mtu {
        let mut request = request(&settings.name)?;
        request.ifr_ifru.ifru_mtu = mtu.into();
        control(&socket, libc::SIOCSIFMTU, &mut request)?;
    }
    let mut request = request(&settings.name)?;
    control(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel just wrote this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    if flags & libc::IFF_UP as libc::c_short != 0 {
        return Ok(());
    }
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    control(&socket, libc::SIOCSIFFLAGS, &mut request)
}
