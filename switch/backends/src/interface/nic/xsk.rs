//! AF_XDP sockets (Documentation/networking/af_xdp.rst): opening one, for which a process needs rights, and the rings and frames that
//! its user shares with the kernel.
//!
//! No crate is used: those that there are register the frames and map the rings in the process that opens the socket.

#![expect(unsafe_code, reason = "rings and frames are shared with the kernel; bpf(2)")]

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use socket2::{Domain, SockRef, Socket, Type};

/// Frames of each direction, a power of two. Each ring has a descriptor for each of them, so no ring of frames that are given away is full.
pub(super) const FRAMES: u32 = 2048;
/// Bytes of a frame: the smallest that holds the MTU is used. No frame is longer than a page.
const FRAME_SIZES: [u32; 2] = [2048, 4096];
/// Bytes that the kernel keeps free before a received frame (XDP_PACKET_HEADROOM).
const HEADROOM: u32 = 256;
/// Ethernet header and two VLAN tags.
const HEADERS: u32 = 14 + 2 * 4;
/// The receive queue that is read.
const QUEUE: u32 = 0;
/// Frames that one sendto(2) transmits where the kernel copies them (XDP_MAX_TX_SKB_BUDGET, since Linux 6.17; 32 before).
const BUDGET: (libc::c_int, libc::c_int) = (9, 256);

/// Descriptors of an AF_XDP socket: all that its user needs.
#[derive(Debug)]
pub struct XdpFiles {
    /// The socket, bound to an interface.
    pub socket: File,
    /// Memory of the frames: [`FRAMES`] for each direction.
    pub frames: File,
    /// The attached XDP program. It is detached when this is closed.
    pub link: File,
}

impl XdpFiles {
    /// Opens a socket for the interface `index` with this MTU, and has the driver hand all frames of its receive queue to it.
    ///
    /// # Errors
    /// The driver, the kernel or the rights of the process do not allow it.
    pub(super) fn open(index: u32, mtu: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::from(libc::AF_XDP), Type::from(libc::SOCK_RAW), None)?;
        socket.set_nonblocking(true)?;
        let socket = File::from(OwnedFd::from(socket));
        let frames = register_frames(&socket, frame_size(mtu)?)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
            set_option(&socket, ring, &FRAMES)?;
        }
        // The default is smaller, and older kernels have no choice.
        let _ = set_option(&socket, BUDGET.0, &BUDGET.1);
        bind(&socket, index)?;
        let link = attach(&socket, index)?;
        Ok(Self { socket, frames, link })
    }
}

/// Bytes of a frame for this MTU.
fn frame_size(mtu: u32) -> io::Result<u32> {
    let fits = |size: &u32| mtu.saturating_add(HEADERS) <= size - HEADROOM;
    let longest = FRAME_SIZES[1] - HEADROOM - HEADERS;
    FRAME_SIZES.into_iter().find(fits).ok_or_else(|| io::Error::other(format!("its MTU is {mtu}, and AF_XDP takes {longest}")))
}

/// Makes the memory of the frames, and registers it with the socket.
fn register_frames(socket: &File, size: u32) -> io::Result<File> {
    let file = File::from(memfd_create("memlane-frames", MFdFlags::MFD_CLOEXEC)?);
    let length = u64::from(2 * FRAMES * size);
    file.set_len(length)?;
    let memory = Mapping::of(&file, 0, length as usize)?;
    let region =
        libc::xdp_umem_reg { addr: memory.start as u64, len: length, chunk_size: size, headroom: 0, flags: 0, tx_metadata_len: 0 };
    // The kernel keeps the pages when this mapping of them ends.
    set_option(socket, libc::XDP_UMEM_REG, &region)?;
    Ok(file)
}

fn bind(socket: &File, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // Without a copy where the driver can.
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: QUEUE,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address has the length that is told.
    succeeded(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Commands and values of bpf(2) (`include/uapi/linux/bpf.h`).
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const XSK_MAP: u32 = 17;
const XDP_PROGRAM: u32 = 6;
const AT_XDP: u32 = 37;
/// The driver runs the program. The kernel could too (generic mode): behind GRO, and its long frames fit no frame of the socket.
const BY_DRIVER: u32 = 1 << 2;

/// An instruction: operation, destination register, source register, offset, immediate value.
const fn instruction(operation: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = to as u64 | (from as u64) << 4;
    operation as u64 | registers << 8 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS)`: frames of other queues stay the kernel's.
fn program(map: &File) -> [u64; 6] {
    [
        instruction(0x61, 2, 1, 16, 0),
        instruction(0x18, 1, 1, 0, map.as_raw_fd()),
        0,
        instruction(0xb7, 3, 0, 0, 2),
        instruction(0x85, 0, 0, 0, 51),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// Has the driver of interface `index` redirect frames to the socket until the result is closed.
fn attach(socket: &File, index: u32) -> io::Result<File> {
    // SAFETY: numbers.
    let map = unsafe { bpf(MAP_CREATE, &mut [XSK_MAP, 4, 4, 1]) }.and_then(opened)?;
    let (key, value) = (QUEUE, socket.as_raw_fd());
    let mut update = [map.as_raw_fd() as u64, &raw const key as u64, &raw const value as u64, 0];
    // SAFETY: key and value have the four bytes that the map was made for.
    unsafe { bpf(MAP_UPDATE, &mut update) }?;
    let code = program(&map);
    let licence = c"Apache-2.0";
    let numbers = u64::from(XDP_PROGRAM) | (code.len() as u64) << 32;
    // SAFETY: so many instructions, and a string.
    let program = unsafe { bpf(PROGRAM_LOAD, &mut [numbers, code.as_ptr() as u64, licence.as_ptr() as u64]) }.and_then(opened)?;
    // SAFETY: numbers.
    unsafe { bpf(LINK_CREATE, &mut [program.as_raw_fd() as u32, index, AT_XDP, BY_DRIVER]) }.and_then(opened)
}

/// bpf(2); returns its result.
///
/// # Safety
/// `attributes` must be those of the command, and addresses in them valid for the call.
unsafe fn bpf<T, const N: usize>(command: libc::c_int, attributes: &mut [T; N]) -> io::Result<libc::c_int> {
    let length = size_of_val(attributes) as libc::c_uint;
    // SAFETY: the caller's promise; the kernel reads no more than `length` bytes.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), length) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as libc::c_int),
    }
}

/// The new descriptor `number` of this process.
fn opened(number: libc::c_int) -> io::Result<File> {
    // SAFETY: the kernel has just made it, and only this function is given it.
    Ok(unsafe { File::from_raw_fd(number) })
}

/// Sets an option of the socket; callers pair each with the type that the kernel expects.
fn set_option<T>(socket: &File, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has the length that is told.
    succeeded(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, ptr::from_ref(value).cast(), length) })
}

/// An option of the socket; callers pair each with the type that the kernel writes, for which all zeroes is a value.
fn option<T>(socket: &File, option: libc::c_int) -> io::Result<T> {
    // SAFETY: the caller's promise.
    let mut value: T = unsafe { zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has the length that is told.
    succeeded(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw mut value).cast(), &raw mut length) })?;
    Ok(value)
}

fn succeeded(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A shared mapping; unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: plain memory, which has one owner in this process.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(file: &File, offset: libc::off_t, length: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { start: start.cast(), length }) }
    }

    /// Address of a `T` at `offset`.
    fn place<T>(&self, offset: u64) -> io::Result<*mut T> {
        let end = offset.checked_add(size_of::<T>() as u64).filter(|&end| end <= self.length as u64);
        end.map(|_| self.start.wrapping_add(offset as usize).cast()).ok_or_else(|| io::Error::other("a ring of another shape"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: only this owns the range. If the kernel refuses, addresses are wasted, nothing else.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// The frames of a socket.
#[derive(Debug)]
pub(super) struct Frames {
    memory: Mapping,
    /// Bytes of one.
    pub(super) size: u32,
}

impl Frames {
    /// Maps them.
    ///
    /// # Errors
    /// The kernel refuses, or the file has another length than frames have.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let size = FRAME_SIZES.into_iter().find(|size| u64::from(2 * FRAMES * size) == length);
        let size = size.ok_or_else(|| io::Error::other("frames of another size"))?;
        Ok(Self { memory: Mapping::of(file, 0, length as usize)?, size })
    }

    /// The `length` bytes at `address`, which lie in one frame that the kernel does not use; `None` if they do not lie in one.
    pub(super) fn bytes(&mut self, address: u64, length: u32) -> Option<&mut [u8]> {
        let end = address % u64::from(self.size) + u64::from(length);
        if address >= self.memory.length as u64 || end > u64::from(self.size) {
            return None;
        }
        // SAFETY: inside the mapping, checked above; the frame belongs to this process while it is in none of the kernel's rings, and
        // callers use only such frames.
        Some(unsafe { std::slice::from_raw_parts_mut(self.memory.start.add(address as usize), length as usize) })
    }
}

/// A ring shared with the kernel, by which one side hands descriptors of type `T` to the other.
pub(super) struct Ring<T> {
    _memory: Mapping,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    /// Our index: of the next descriptor to write, or to read.
    at: u32,
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("at", &self.at).finish_non_exhaustive()
    }
}

// SAFETY: the addresses point into the mapping, which moves with them; one thread uses the ring.
unsafe impl<T: Send> Send for Ring<T> {}

/// The four rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    /// Addresses of free frames, for the kernel to fill.
    pub(super) fill: Ring<u64>,
    /// Received frames.
    pub(super) receive: Ring<libc::xdp_desc>,
    /// Frames to be sent.
    pub(super) transmit: Ring<libc::xdp_desc>,
    /// Addresses of sent frames.
    pub(super) completion: Ring<u64>,
}

impl Rings {
    /// Maps them.
    ///
    /// # Errors
    /// The kernel refuses, or it is no AF_XDP socket.
    pub(super) fn of(socket: &File) -> io::Result<Self> {
        let places: libc::xdp_mmap_offsets = option(socket, libc::XDP_MMAP_OFFSETS)?;
        Ok(Self {
            fill: Ring::of(socket, libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t, &places.fr)?,
            receive: Ring::of(socket, libc::XDP_PGOFF_RX_RING, &places.rx)?,
            transmit: Ring::of(socket, libc::XDP_PGOFF_TX_RING, &places.tx)?,
            completion: Ring::of(socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t, &places.cr)?,
        })
    }
}

impl<T: Copy> Ring<T> {
    fn of(socket: &File, offset: libc::off_t, places: &libc::xdp_ring_offset) -> io::Result<Self> {
        let length = places.desc as usize + FRAMES as usize * size_of::<T>();
        let memory = Mapping::of(socket, offset, length)?;
        Ok(Self {
            producer: memory.place(places.producer)?,
            consumer: memory.place(places.consumer)?,
            flags: memory.place(places.flags)?,
            entries: memory.place(places.desc)?,
            _memory: memory,
            at: 0,
        })
    }

    /// Address of our descriptor.
    fn entry(&self) -> *mut T {
        self.entries.wrapping_add((self.at % FRAMES) as usize)
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: inside the mapping, which lives as long as the ring; the kernel accesses it atomically.
        unsafe { &*self.producer }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: likewise.
        unsafe { &*self.consumer }
    }

    /// Descriptors that the kernel has produced and that were not taken.
    pub(super) fn available(&self) -> u32 {
        self.producer().load(Ordering::Acquire).wrapping_sub(self.at).min(FRAMES)
    }

    /// The next descriptor that the kernel has produced.
    pub(super) fn peek(&self) -> Option<T> {
        // SAFETY: inside the mapping, and the kernel does not write there until the descriptor is taken.
        (self.available() > 0).then(|| unsafe { self.entry().read() })
    }

    /// Moves on from a descriptor that the kernel has produced.
    pub(super) fn take(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    /// Tells the kernel which descriptors were taken.
    pub(super) fn release(&self) {
        self.consumer().store(self.at, Ordering::Release);
    }

    /// Appends a descriptor, for which there is room: there are no more frames than descriptors in a ring.
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: inside the mapping; the kernel reads only published descriptors.
        unsafe { self.entry().write(entry) };
        self.at = self.at.wrapping_add(1);
    }

    /// Tells the kernel which descriptors were appended.
    pub(super) fn publish(&self) {
        self.producer().store(self.at, Ordering::Release);
    }

    /// Descriptors that were published and that the kernel has not consumed.
    pub(super) fn left(&self) -> u32 {
        self.producer().load(Ordering::Relaxed).wrapping_sub(self.consumer().load(Ordering::Acquire))
    }

    /// Whether the kernel looks at the ring only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: as for the producer's index.
        unsafe { &*self.flags }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Has the kernel send the frames in the transmit ring, and complete sent ones.
///
/// # Errors
/// EAGAIN if some of it is left, ENETDOWN or ENXIO while the interface is down.
pub(super) fn send(socket: &File) -> io::Result<()> {
    SockRef::from(socket).send_with_flags(&[], libc::MSG_DONTWAIT).map(drop)
}

/// Has the driver look at the fill ring.
pub(super) fn wake_receive(socket: &File) {
    // The next frames are received without it, once the driver looks.
    let _ = SockRef::from(socket).recv_with_flags(&mut [], libc::MSG_DONTWAIT);
}

/// Frames that the kernel had no free frame, or no room in the receive ring for, since the socket was opened.
pub(super) fn dropped(socket: &File) -> u64 {
    let counted = option::<libc::xdp_statistics>(socket, libc::XDP_STATISTICS);
    counted.map_or(0, |all| all.rx_dropped + all.rx_ring_full)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct bpf_insn` of `include/uapi/linux/bpf.h`: operation, registers, offset, immediate value.
    #[test]
    fn instructions_have_the_kernels_layout() {
        assert_eq!(instruction(0x61, 2, 1, 16, -2).to_le_bytes(), [0x61, 0x12, 16, 0, 0xfe, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn a_frame_holds_the_mtu_or_the_socket_is_refused() {
        assert_eq!([68, 1500, 1770].map(|mtu| frame_size(mtu).unwrap()), [2048; 3]);
        assert_eq!([1771, 3818].map(|mtu| frame_size(mtu).unwrap()), [4096; 2]);
        assert!(frame_size(3819).unwrap_err().to_string().contains("its MTU is 3819, and AF_XDP takes 3818"));
        assert!(frame_size(u32::MAX).is_err());
    }

    #[test]
    fn no_bytes_outside_of_a_frame_are_reached() {
        let file = File::from(memfd_create("frames", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(4096).unwrap();
        assert!(Frames::of(&file).is_err(), "a file that is too short is not accessed");
        file.set_len(u64::from(2 * FRAMES * 2048)).unwrap();
        let mut frames = Frames::of(&file).unwrap();
        let end = u64::from(2 * FRAMES * 2048);
        assert_eq!(frames.bytes(end - 2048, 2048).unwrap().len(), 2048);
        for (address, length) in [(0, 2049), (2047, 2), (end, 0), (end, 1), (u64::MAX, 1), (1, u32::MAX)] {
            assert!(frames.bytes(address, length).is_none(), "{address} {length}");
        }
    }
}
