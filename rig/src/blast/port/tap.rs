//! A TAP device as a port: one system call a frame, as the kernel has it. It is here so that the kernel's own bridge can be
//! measured by the same tool.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{Arrival, Mould, PortError};
use crate::blast::flow::Source;
use crate::blast::stamp::LONGEST;

/// Bytes of the virtio-net header, with which the device is told to come.
const HEADER: usize = 12;
/// Offloads: checksums, TCP segmentation of both kinds, with ECN.
const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// linux/sockios.h; `libc` lacks it.
const SIOCBRADDIF: libc::c_ulong = 0x89a2;

nix::ioctl_write_ptr_bad!(tun_set_iff, libc::TUNSETIFF, libc::ifreq);
nix::ioctl_write_ptr_bad!(tun_set_header_size, libc::TUNSETVNETHDRSZ, libc::c_int);
nix::ioctl_write_int_bad!(tun_set_offload, libc::TUNSETOFFLOAD);
nix::ioctl_readwrite_bad!(get_flags, libc::SIOCGIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(set_flags, libc::SIOCSIFFLAGS, libc::ifreq);
nix::ioctl_readwrite_bad!(get_index, libc::SIOCGIFINDEX, libc::ifreq);
nix::ioctl_write_ptr_bad!(bridge_add, SIOCBRADDIF, libc::ifreq);

/// Which device, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapPlace {
    /// Interface name; created if there is none.
    pub name: String,
    /// Named network namespace; none: this one.
    pub netns: Option<String>,
    /// Bridge to put it on.
    pub bridge: Option<String>,
}

/// Opens the device, sets it up and puts it on its bridge.
///
/// # Errors
/// The kernel's error, with the step that failed.
pub fn open(place: &TapPlace, offloads: bool) -> Result<OwnedFd, String> {
    let place = place.clone();
    // A namespace is entered by a thread, so a thread of its own does it and ends there.
    let opened = std::thread::spawn(move || {
        if let Some(netns) = &place.netns {
            enter(netns)?;
        }
        let device = attach(&place.name, offloads)?;
        raise(&place.name)?;
        if let Some(bridge) = &place.bridge {
            join_bridge(&place.name, bridge)?;
        }
        Ok(device)
    });
    opened.join().unwrap_or_else(|_| Err("opening the TAP device ended in a panic".into()))
}

fn enter(netns: &str) -> Result<(), String> {
    let path = format!("/run/netns/{netns}");
    let file = File::open(&path).map_err(|error| format!("network namespace {netns} ({path}): {error}"))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| format!("entering network namespace {netns}: {error}; are you root?"))
}

fn attach(name: &str, offloads: bool) -> Result<OwnedFd, String> {
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags_nonblocking()
        .open("/dev/net/tun")
        .map_err(|error| format!("/dev/net/tun: {error}; is the tun module loaded, and are you root?"))?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    let size = HEADER as libc::c_int;
    let fd = file.as_raw_fd();
    // SAFETY: `fd` is an open tun file; the requests take an ifreq, an int by pointer and an int by value, all alive here.
    let done = unsafe {
        tun_set_iff(fd, &request)
            .and_then(|_| tun_set_header_size(fd, &size))
            .and_then(|_| tun_set_offload(fd, if offloads { OFFLOADS as i32 } else { 0 }))
    };
    done.map_err(|error| format!("TAP device {name}: {error}; is it in use, or has it other flags?"))?;
    Ok(file.into())
}

fn raise(name: &str) -> Result<(), String> {
    let control = control_socket()?;
    let mut request = named(name)?;
    // SAFETY: both requests take an ifreq, which lives here; the flags are the union's valid member after SIOCGIFFLAGS.
    let done = unsafe {
        get_flags(control.as_raw_fd(), &mut request).and_then(|_| {
            request.ifr_ifru.ifru_flags |= libc::IFF_UP as i16;
            set_flags(control.as_raw_fd(), &request)
        })
    };
    done.map(drop).map_err(|error| format!("setting {name} up: {error}"))
}

fn join_bridge(name: &str, bridge: &str) -> Result<(), String> {
    let control = control_socket()?;
    let (mut port, mut request) = (named(name)?, named(bridge)?);
    // SAFETY: both requests take an ifreq, which lives here; the index is the union's valid member after SIOCGIFINDEX.
    let done = unsafe {
        get_index(control.as_raw_fd(), &mut port).and_then(|_| {
            request.ifr_ifru.ifru_ifindex = port.ifr_ifru.ifru_ifindex;
            bridge_add(control.as_raw_fd(), &request)
        })
    };
    match done {
        Ok(_) | Err(nix::errno::Errno::EBUSY) => Ok(()),
        Err(error) => Err(format!("putting {name} on bridge {bridge}: {error}")),
    }
}

fn control_socket() -> Result<OwnedFd, String> {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|error| format!("a socket to ask the kernel with: {error}"))
}

fn named(name: &str) -> Result<libc::ifreq, String> {
    // SAFETY: an ifreq of zeros is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(format!("{name:?} is no interface name: 1 to {} bytes are", request.ifr_name.len() - 1));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

trait Nonblocking {
    fn custom_flags_nonblocking(&mut self) -> &mut Self;
}

impl Nonblocking for std::fs::OpenOptions {
    fn custom_flags_nonblocking(&mut self) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::custom_flags(self, (OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits())
    }
}

/// The sending half.
pub struct TapSource {
    port: usize,
    device: Arc<OwnedFd>,
    /// Header and frame of the next write.
    buffer: Vec<u8>,
    template: u32,
}

impl TapSource {
    /// Frames go into `device`.
    pub fn new(port: usize, device: Arc<OwnedFd>) -> Self {
        Self { port, device, buffer: vec![0; HEADER + LONGEST], template: u32::MAX }
    }

    /// Writes up to `count` frames of `flow`: how many the device took.
    ///
    /// # Errors
    /// [`PortError::Tap`].
    pub fn push(&mut self, mould: &Mould, flow: &mut Source, count: usize, now: u64) -> Result<usize, PortError> {
        for sent in 0..count {
            let length = self.mould(mould, flow, now);
            if !self.write(length)? {
                return Ok(sent);
            }
            flow.advance();
        }
        Ok(count)
    }

    /// Writes one frame of bytes made elsewhere; `false` when there is no room.
    ///
    /// # Errors
    /// [`PortError::Tap`].
    pub fn push_bytes(&mut self, frame: &[u8]) -> Result<bool, PortError> {
        self.template = u32::MAX;
        self.buffer[..HEADER].fill(0);
        self.buffer[HEADER..HEADER + frame.len()].copy_from_slice(frame);
        self.write(frame.len())
    }

    fn mould(&mut self, mould: &Mould, flow: &Source, now: u64) -> usize {
        let template = &mould.templates[flow.template() as usize];
        if self.template != flow.template() {
            self.template = flow.template();
            self.buffer[..template.head.len()].copy_from_slice(&template.head);
        }
        // SAFETY: the buffer holds the longest frame after its header.
        unsafe {
            let frame = self.buffer[HEADER..].as_mut_ptr();
            mould.finish(frame, flow.template(), flow.stamp(now));
        }
        template.length as usize
    }

    fn write(&mut self, length: usize) -> Result<bool, PortError> {
        match nix::unistd::write(&self.device, &self.buffer[..HEADER + length]) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::ENOBUFS | nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(PortError::Tap { port: self.port, cause: error.into() }),
        }
    }
}

/// The receiving half.
pub struct TapSink {
    port: usize,
    device: Arc<OwnedFd>,
    buffer: Vec<u8>,
}

impl TapSink {
    /// Frames come out of `device`.
    pub fn new(port: usize, device: Arc<OwnedFd>) -> Self {
        Self { port, device, buffer: vec![0; HEADER + LONGEST] }
    }

    /// Shows up to `burst` frames to `each`: how many there were.
    ///
    /// # Errors
    /// [`PortError::Tap`].
    pub fn poll(&mut self, burst: u16, mut each: impl FnMut(&Arrival<'_>)) -> Result<usize, PortError> {
        for seen in 0..usize::from(burst) {
            match nix::unistd::read(&self.device, &mut self.buffer) {
                Ok(length) => each(&Arrival { first: self.buffer.get(HEADER..length).unwrap_or_default(), rest: &[] }),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(seen),
                Err(error) => {
                    return Err(PortError::Tap { port: self.port, cause: io::Error::from(error) });
                }
            }
        }
        Ok(burst.into())
    }

    /// The descriptor that becomes readable when a frame has come in.
    pub fn waitable(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
