//! Messages of a packet socket (packet(7)), each a frame behind a virtio-net header: many in one recvmmsg(2) or sendmmsg(2).
//!
//! A ring shared with the kernel (PACKET_RX_RING) saves system calls, but TPACKET_V3 hands frames over after a millisecond at the
//! earliest, and TPACKET_V2 has a slot of the longest frame's size for each frame, however short.

#![expect(unsafe_code, reason = "the kernel is told where bytes lie")]
#![expect(
    clippy::indexing_slicing,
    reason = "arrays of a batch, no more of which are taken; rooms of whole buffers; lengths that the kernel wrote into a room, with a tag's more"
)]

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::ptr;

use super::batch::{MOST, Vectors};
use crate::frame::{NetHeader, TAG, TYPE_VLAN};
use crate::stats::DropReason;

/// Bytes of the two MAC addresses, behind which a VLAN tag stands.
const BOTH_ADDRESSES: usize = 12;
/// Room for the control messages of one frame: its VLAN tag (PACKET_AUXDATA), and the count of overruns (SO_RXQ_OVFL).
const CONTROL: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Control messages of a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    /// The tag that the kernel removed: type and value.
    tag: Option<(u16, u16)>,
    /// Frames that did not fit the socket's receive buffer, since it was opened; wraps.
    overruns: Option<u32>,
}

/// See the module.
pub(super) struct Messages {
    /// Bytes of the virtio-net header: twelve, or ten before Linux 6.6.
    header: usize,
    headers: [libc::mmsghdr; MOST],
    vectors: [libc::iovec; MOST],
    controls: [Control; MOST],
    overruns: u32,
    /// Frames lost to a full receive buffer, and frames that have no virtio-net header, since [`Self::take_lost`].
    lost: [u32; 2],
    passed_over: bool,
}

// SAFETY: the pointers are set before each call, and only the kernel dereferences them, during the call.
unsafe impl Send for Messages {}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages").field("header", &self.header).field("overruns", &self.overruns).finish_non_exhaustive()
    }
}

impl Messages {
    /// Of a socket with virtio-net headers of `header` bytes, at most [`NetHeader::SIZE`].
    pub(super) fn new(header: usize) -> Self {
        // SAFETY: both are plain data, for which all zeroes is a value.
        let (headers, vectors) = unsafe { (zeroed(), zeroed()) };
        let controls = [Control([0; CONTROL]); MOST];
        Self { header, headers, vectors, controls, overruns: 0, lost: [0; 2], passed_over: false }
    }

    /// See [`Batch::passed_over`](super::batch::Batch::passed_over).
    pub(super) fn passed_over(&self) -> bool {
        self.passed_over
    }

    /// See [`Batch::take_lost`](super::batch::Batch::take_lost).
    pub(super) fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        let [full, odd] = std::mem::take(&mut self.lost);
        [(DropReason::SocketFull, full), (DropReason::OffloadNotAgreed, odd)]
    }

    /// Receives a frame into each of `rooms`, at most [`MOST`], with its VLAN tag, behind a whole virtio-net header. The results are
    /// lengths in bytes, or negated error numbers.
    pub(super) fn receive(&mut self, socket: &File, rooms: &mut [IoSliceMut<'_>], results: &mut Vec<i32>) {
        let (count, shift) = (rooms.len().min(MOST), NetHeader::SIZE - self.header);
        for (index, room) in rooms[..count].iter_mut().enumerate() {
            // Without the room for a tag.
            let end = room.len().saturating_sub(TAG).max(shift);
            let bytes = &mut room[shift..end];
            self.vectors[index] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
        results.clear();
        // SAFETY: each of the first `count` headers names memory that is borrowed for the call.
        let received = unsafe {
            let (headers, flags) = (self.headers.as_mut_ptr(), libc::MSG_DONTWAIT);
            libc::recvmmsg(socket.as_raw_fd(), headers, count as libc::c_uint, flags as _, ptr::null_mut())
        };
        let failed = (received < 0).then(errno);
        for (index, room) in rooms.iter_mut().enumerate().take(received.max(0) as usize) {
            results.push(self.received(index, room));
        }
        // A frame that the kernel segments in a way that virtio-net has no word for, as SCTP (virtio_net_hdr_from_skb).
        self.passed_over = failed == Some(libc::EINVAL);
        self.lost[1] += u32::from(self.passed_over);
        results.extend(failed.map(|error| -error));
        results.resize(count, -libc::EAGAIN);
    }

    /// Completes the frame that was received into `room`; returns its length, or a negated error number.
    fn received(&mut self, index: usize, room: &mut [u8]) -> i32 {
        let message = &self.headers[index];
        // SAFETY: the kernel has just written the control messages of this header.
        let extra = unsafe { extra(&message.msg_hdr) };
        let (length, flags) = (message.msg_len as usize, message.msg_hdr.msg_flags);
        if let Some(overruns) = extra.overruns {
            let more = overruns.wrapping_sub(std::mem::replace(&mut self.overruns, overruns));
            self.lost[0] = self.lost[0].saturating_add(more);
        }
        if flags & libc::MSG_TRUNC != 0 || length < self.header {
            // Longer than any frame of virtio-net (BIG TCP).
            self.lost[1] += 1;
            return -libc::EMSGSIZE;
        }
        let shift = NetHeader::SIZE - self.header;
        if shift > 0 {
            room.copy_within(shift..NetHeader::SIZE, 0);
            room[self.header..NetHeader::SIZE].fill(0);
        }
        let length = length + shift;
        (length + extra.tag.map_or(0, |tag| insert_tag(&mut room[..length + TAG], tag))) as i32
    }

    /// Sends the frames that `frames`, at most [`MOST`], point to, one after the other. The results are lengths in bytes, or negated
    /// error numbers.
    ///
    /// # Safety
    /// The memory that the iovecs point to must be readable for the call.
    pub(super) unsafe fn send(&mut self, socket: &File, frames: &[Vectors], results: &mut Vec<i32>) {
        for (message, frame) in self.headers.iter_mut().zip(frames) {
            // SAFETY: plain data, for which all zeroes is a value.
            message.msg_hdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = frame.first.cast_mut();
            message.msg_hdr.msg_iovlen = frame.count as _;
        }
        results.clear();
        while results.len() < frames.len().min(MOST) {
            let rest = &mut self.headers[results.len()..frames.len()];
            // SAFETY: each header names the iovecs of a frame: the caller's promise.
            let sent = unsafe {
                libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as libc::c_uint, libc::MSG_DONTWAIT as _)
            };
            match usize::try_from(sent) {
                Ok(sent @ 1..) => results.extend(rest[..sent].iter().map(|message| message.msg_len as i32)),
                // The call ends before the first frame that is refused; the next call tells why.
                Ok(0) => results.push(-libc::EIO),
                Err(_) => results.push(-errno()),
            }
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Inserts the VLAN `tag` behind the MAC addresses of the frame in `bytes`, followed by [`TAG`] free bytes, and corrects
/// the offsets in its virtio-net header. Returns the bytes inserted: none if the frame has no addresses.
fn insert_tag(bytes: &mut [u8], (kind, value): (u16, u16)) -> usize {
    let at = NetHeader::SIZE + BOTH_ADDRESSES;
    let end = bytes.len() - TAG;
    if end < at {
        return 0;
    }
    bytes.copy_within(at..end, at + TAG);
    bytes[at..at + 2].copy_from_slice(&kind.to_be_bytes());
    bytes[at + 2..at + TAG].copy_from_slice(&value.to_be_bytes());
    if let Some(header) = bytes.first_chunk_mut::<{ NetHeader::SIZE }>() {
        *header = NetHeader::from_bytes(*header).moved(TAG as i16).bytes();
    }
    TAG
}

/// The control messages of `header`.
///
/// # Safety
/// The kernel must have written them, and nothing since.
unsafe fn extra(header: &libc::msghdr) -> Extra {
    let mut extra = Extra::default();
    // SAFETY: the caller's promise: each message lies within the control bytes, and has the length that it states.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(&libc::cmsghdr { cmsg_level, cmsg_type, .. }) = message.as_ref() {
            let data = libc::CMSG_DATA(message);
            match (cmsg_level, cmsg_type) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    extra.tag = removed_tag(&data.cast::<libc::tpacket_auxdata>().read_unaligned());
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => extra.overruns = Some(data.cast::<u32>().read_unaligned()),
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    extra
}

/// The VLAN tag that the kernel removed from a frame, if it had one.
fn removed_tag(data: &libc::tpacket_auxdata) -> Option<(u16, u16)> {
    let is = |status: u32| data.tp_status & status != 0;
    let kind = if is(libc::TP_STATUS_VLAN_TPID_VALID) { data.tp_vlan_tpid } else { TYPE_VLAN };
    is(libc::TP_STATUS_VLAN_VALID).then_some((kind, data.tp_vlan_tci))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// A header that requests a checksum of the frame's bytes from 34 on (virtio 1.4, section 5.1.6).
    const PARTIAL: [u8; 12] = [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0];

    #[test]
    fn a_removed_tag_is_put_back_behind_the_addresses() {
        let frame: Vec<u8> = (0..60).collect();
        let mut bytes = [&PARTIAL[..], &frame, &[0xaa; TAG]].concat();
        assert_eq!(insert_tag(&mut bytes, (0x88a8, 0x2007)), TAG);
        let header = NetHeader::from_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(header.csum_start(), 38);
        let tagged = [&frame[..12], &[0x88, 0xa8, 0x20, 0x07], &frame[12..]].concat();
        assert_eq!(bytes[12..], tagged);
        let mut short = [0; NetHeader::SIZE + BOTH_ADDRESSES - 1 + TAG];
        assert_eq!(insert_tag(&mut short, (0x8100, 1)), 0);
    }

    #[test]
    fn a_short_header_is_made_whole_and_frames_keep_their_order() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let socket = File::from(OwnedFd::from(ours));
        for (header, number) in [(10, 1), (10, 2), (12, 3)] {
            let mut messages = Messages::new(header);
            theirs.send(&[&PARTIAL[..header], &[number; 60]].concat()).unwrap();
            let mut memory = [[0xff_u8; 100]; 2];
            let mut rooms = memory.each_mut().map(|room| IoSliceMut::new(room));
            let mut results = Vec::new();
            messages.receive(&socket, &mut rooms, &mut results);
            assert_eq!(results, [72, -libc::EAGAIN]);
            assert_eq!(memory[0][..72], [&PARTIAL[..], &[number; 60]].concat());
            assert!(!messages.passed_over() && messages.take_lost().iter().all(|&(_, count)| count == 0));
        }
    }

    #[test]
    fn a_frame_that_does_not_fit_is_counted() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut messages = Messages::new(12);
        theirs.send(&[0; 200]).unwrap();
        theirs.send(&[0; 80]).unwrap();
        let mut memory = [[0_u8; 100]; 2];
        let mut rooms = memory.each_mut().map(|room| IoSliceMut::new(room));
        let mut results = Vec::new();
        messages.receive(&File::from(OwnedFd::from(ours)), &mut rooms, &mut results);
        assert_eq!(results, [-libc::EMSGSIZE, 80]);
        assert_eq!(messages.take_lost()[1], (DropReason::OffloadNotAgreed, 1));
    }

    #[test]
    fn sending_goes_on_behind_a_refused_frame() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let part = |bytes: &'static [u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let parts = [part(b"one"), part(b"three")];
        let refused = Vectors { first: ptr::null(), count: 1 };
        let frames = [Vectors { first: &raw const parts[0], count: 1 }, refused, Vectors { first: &raw const parts[1], count: 1 }];
        let mut results = Vec::new();
        // SAFETY: the parts are bytes of the program; a vector at address zero is refused before it is read.
        unsafe { Messages::new(12).send(&File::from(OwnedFd::from(ours)), &frames, &mut results) };
        assert_eq!(results, [3, -libc::EFAULT, 5]);
        let mut got = [0; 8];
        assert_eq!([theirs.recv(&mut got).unwrap(), theirs.recv(&mut got).unwrap()], [3, 5]);
    }
}
