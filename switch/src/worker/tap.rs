//! TAPs on the data path: frames read from the kernel into buffers of ours, and parcels written to it straight from guests' memory.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::frame::{ETHERNET, MAX_FRAME, NetHeader, SHORT_START, START};
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Offloads, Plan, plan};
use crate::parcel::Parcel;
use crate::port::tap::Tap;
use crate::ring::{Piece, Placed, Taken};
use crate::stats::DropReason;

/// Frames that one TAP may have read and not yet delivered.
const BUFFERS: u16 = 64;
const BUFFER: usize = NetHeader::SIZE + MAX_FRAME as usize;

/// State of a buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    length: u32,
    /// Parties that hold it; 0 when it is free or waits to be opened.
    holders: u8,
}

/// Where frames come in from the kernel.
#[derive(Debug)]
pub(super) struct TapFeed {
    tap: Arc<Tap>,
    /// All buffers, one after the other; memory is used as they are.
    memory: Box<[u8]>,
    buffers: [Buffer; BUFFERS as usize],
    free: Vec<u16>,
    /// Read and not yet opened, the oldest last.
    read: Vec<u16>,
    out_count: u16,
    /// The kernel had nothing more when last asked.
    drained: bool,
}

impl TapFeed {
    pub(super) fn new(tap: Arc<Tap>) -> Self {
        // SAFETY: zero is a value of u8.
        let memory = unsafe { Box::<[u8]>::new_zeroed_slice(BUFFER * usize::from(BUFFERS)).assume_init() };
        Self {
            tap,
            memory,
            buffers: [Buffer::default(); BUFFERS as usize],
            free: (0..BUFFERS).collect(),
            read: Vec::with_capacity(BUFFERS.into()),
            out_count: 0,
            drained: false,
        }
    }

    pub(super) fn size(&self) -> u16 {
        BUFFERS
    }

    pub(super) fn out_count(&self) -> u16 {
        self.out_count
    }

    /// True while the kernel may have frames that it will not tell us of again.
    pub(super) fn has_news(&self) -> bool {
        !self.read.is_empty() || (!self.drained && !self.free.is_empty())
    }

    /// The kernel says that there is something to read.
    pub(super) fn wake(&mut self) {
        self.drained = false;
    }

    /// Frames that can be opened now, at most `most`; reads them.
    pub(super) fn look(&mut self, most: u16) -> u16 {
        if self.read.is_empty() {
            while self.read.len() < usize::from(most)
                && !self.drained
                && let Some(&index) = self.free.last()
            {
                match read_frame(&self.tap, buffer(&mut self.memory, index)) {
                    Ok(length) => {
                        self.free.pop();
                        self.buffers[usize::from(index)].length = length as u32;
                        self.read.push(index);
                    }
                    Err(_) => self.drained = true,
                }
            }
            self.read.reverse();
        }
        self.read.len().min(most.into()) as u16
    }

    /// Opens the next frame into `parcel`.
    pub(super) fn open(&mut self, parcel: &mut Parcel) -> Taken {
        let Some(&index) = self.read.last() else { return Taken::Nothing };
        let length = self.buffers[usize::from(index)].length as usize;
        if length < NetHeader::SIZE + ETHERNET {
            self.dispose(index);
            return Taken::Dropped(DropReason::Runt);
        }
        let bytes = &mut buffer(&mut self.memory, index)[..length];
        let mut header = [0; NetHeader::SIZE];
        header.copy_from_slice(&bytes[..NetHeader::SIZE]);
        parcel.header = NetHeader::from_bytes(header);
        let frame = &mut bytes[NetHeader::SIZE..];
        let start_length = frame.len().min(if parcel.header.is_plain() { SHORT_START } else { START });
        parcel.start[..start_length].copy_from_slice(&frame[..start_length]);
        parcel.length = frame.len() as u32;
        parcel.start_length = start_length as u32;
        let rest = &mut frame[start_length..];
        parcel.set_single_rest(rest.as_mut_ptr(), rest.len() as u32);
        parcel.head = index;
        Taken::Parcel
    }

    fn dispose(&mut self, index: u16) {
        self.read.pop();
        self.free.push(index);
    }

    pub(super) fn finish(&mut self, parcel: &Parcel) {
        self.dispose(parcel.head);
    }

    pub(super) fn keep_out(&mut self, parcel: &Parcel, holders: u8) {
        self.read.pop();
        self.buffers[usize::from(parcel.head)].holders = holders;
        self.out_count += 1;
    }

    pub(super) fn come_back(&mut self, index: u16) {
        let Some(buffer) = self.buffers.get_mut(usize::from(index)).filter(|buffer| buffer.holders > 0) else { return };
        buffer.holders -= 1;
        if buffer.holders == 0 {
            self.out_count -= 1;
            self.free.push(index);
        }
    }
}

fn buffer(memory: &mut [u8], index: u16) -> &mut [u8] {
    let start = usize::from(index) * BUFFER;
    &mut memory[start..start + BUFFER]
}

fn read_frame(tap: &Tap, buffer: &mut [u8]) -> io::Result<usize> {
    (&tap.file).read(buffer)
}

/// Where frames leave to the kernel.
#[derive(Debug)]
pub(super) struct TapSink {
    tap: Arc<Tap>,
    /// Where the parts of the frame under consideration lie.
    parts: Vec<Piece>,
}

/// Parts that one system call takes (`IOV_MAX`).
const PARTS: usize = 1024;

impl TapSink {
    pub(super) fn new(tap: Arc<Tap>) -> Self {
        Self { tap, parts: Vec::with_capacity(PARTS) }
    }

    fn offloads(&self) -> Offloads {
        self.tap.offloads
    }

    /// Writes `parcel`, whose header was checked, to the kernel.
    pub(super) fn place(&mut self, parcel: &mut Parcel) -> Placed {
        match plan(parcel, &self.offloads()) {
            Plan::Segment { partial } => self.place_segments(parcel, partial),
            // The kernel takes partial checksums always.
            Plan::AsIs | Plan::Checksum => match self.write_whole(parcel) {
                Ok(()) => Placed::Whole(1),
                Err(error) => refusal(&error),
            },
        }
    }

    fn write_whole(&mut self, parcel: &Parcel) -> io::Result<()> {
        let header = parcel.header.bytes();
        self.parts.clear();
        self.parts.extend([piece(&header), piece(parcel.start())]);
        self.parts.extend(parcel.rest());
        self.write()
    }

    fn place_segments(&mut self, parcel: &mut Parcel, partial: bool) -> Placed {
        let Some(cutter) = Cutter::new(parcel, partial) else { return Placed::Refused(DropReason::BadSegmentation) };
        while u32::from(parcel.segments_done) < cutter.count() {
            if let Err(error) = self.write_segment(parcel, &cutter.segment(parcel.segments_done.into())) {
                return refusal(&error);
            }
            parcel.segments_done += 1;
        }
        Placed::Whole(cutter.count())
    }

    fn write_segment(&mut self, parcel: &Parcel, segment: &Segment) -> io::Result<()> {
        let header = segment.header.bytes();
        self.parts.clear();
        self.parts.extend([piece(&header), piece(&segment.headers[..segment.headers_length])]);
        let from = segment.headers_length as u32 + segment.payload_offset;
        push_range(&mut self.parts, parcel, from, segment.payload_length);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        if self.parts.len() > PARTS {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut few = [NO_VECTOR; 24];
        let many: Vec<libc::iovec>;
        let vectors = match few.get_mut(..self.parts.len()) {
            Some(vectors) => {
                vectors.iter_mut().zip(&self.parts).for_each(|(vector, part)| *vector = as_vector(part));
                &*vectors
            }
            None => {
                many = self.parts.iter().map(as_vector).collect();
                &many[..]
            }
        };
        // SAFETY: what the vectors point to is ours or guest memory that its intake keeps mapped, and the kernel copies it.
        match unsafe { libc::writev(self.tap.file.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

const NO_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn as_vector(part: &Piece) -> libc::iovec {
    libc::iovec { iov_base: part.place.cast(), iov_len: part.length as usize }
}

fn piece(bytes: &[u8]) -> Piece {
    Piece { place: bytes.as_ptr().cast_mut(), length: bytes.len() as u32 }
}

/// Appends where bytes `from..from + length` of the parcel's frame lie.
fn push_range(parts: &mut Vec<Piece>, parcel: &Parcel, from: u32, length: u32) {
    let start = piece(parcel.start());
    let (mut skip, mut left) = (from, length);
    for part in std::iter::once(start).chain(parcel.rest()) {
        if skip >= part.length {
            skip -= part.length;
            continue;
        }
        let run = (part.length - skip).min(left);
        parts.push(Piece { place: part.place.wrapping_add(skip as usize), length: run });
        (skip, left) = (0, left - run);
        if left == 0 {
            return;
        }
    }
}

fn refusal(error: &io::Error) -> Placed {
    if error.kind() == io::ErrorKind::WouldBlock { Placed::NoRoom } else { Placed::Refused(DropReason::TapRefused) }
}
