//! Where frames leave to the kernel: gathered during a pass, written together when it ends.
//!
//! A frame's payload stays in the guest's memory until it is written: its chain goes back to the guest when the pass ends, and the worker writes
//! before it shows that. The headers are copied.

use std::sync::Arc;

use super::batch::{Batch, MOST, Vectors, Way};
use super::device::Tap;
use crate::frame::{NetHeader, START};
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Plan, plan};
use crate::parcel::Parcel;
use crate::port::end::DeliveryEnd;
use crate::port::payload::range;
use crate::ring::Placed;
use crate::stats::DropReason;

/// Parts that one system call takes (`IOV_MAX`).
const PARTS_OF_ONE: usize = 1024;
/// Parts of all frames of a batch: enough for any one frame, and for a batch of usual ones.
const PARTS: usize = 4 * PARTS_OF_ONE;
/// Most that is copied of a frame: headers, and as much payload as the parcel holds itself.
const HEAD: usize = NetHeader::SIZE + 2 * START;

/// See the module.
#[derive(Debug)]
pub(super) struct TapDelivery {
    tap: Arc<Tap>,
    batch: Batch,
    /// Headers of the frames that are gathered; never more than its capacity, so that they stay where they are.
    heads: Vec<[u8; HEAD]>,
    /// Where the parts of the frames lie; likewise.
    parts: Vec<libc::iovec>,
    frames: Vec<Vectors>,
    refused: u32,
    /// Frames for a device that was down.
    absent: u32,
}

// SAFETY: the vectors' addresses lead into memory of ours, or of guests whose intakes hold it, and are used by the kernel only.
unsafe impl Send for TapDelivery {}

impl TapDelivery {
    pub(super) fn new(tap: Arc<Tap>) -> Self {
        Self {
            tap,
            batch: Batch::new(),
            heads: Vec::with_capacity(MOST),
            parts: Vec::with_capacity(PARTS),
            frames: Vec::with_capacity(MOST),
            refused: 0,
            absent: 0,
        }
    }

    fn place_whole(&mut self, parcel: &Parcel) -> Placed {
        let from = parcel.start().len() as u32;
        if self.add(parcel.header, parcel.start(), parcel, from, parcel.rest_length()) { Placed::Whole(1) } else { TOO_LONG }
    }

    fn place_segments(&mut self, parcel: &mut Parcel, partial: bool) -> Placed {
        let Some(cutter) = Cutter::new(parcel, partial) else { return Placed::Refused(DropReason::BadSegmentation) };
        for index in 0..cutter.count() {
            if !self.add_segment(parcel, &cutter.segment(index)) {
                return TOO_LONG;
            }
        }
        parcel.segments_done = cutter.count() as u16;
        Placed::Whole(cutter.count())
    }

    fn add_segment(&mut self, parcel: &Parcel, segment: &Segment) -> bool {
        let headers = &segment.headers[..segment.headers_length];
        let from = segment.headers_length as u32 + segment.payload_offset;
        self.add(segment.header, headers, parcel, from, segment.payload_length)
    }

    /// Gathers a frame: `header`, `headers`, then `length` bytes of the parcel's frame from byte `from` on. False if it has too many parts.
    fn add(&mut self, header: NetHeader, headers: &[u8], parcel: &Parcel, from: u32, length: u32) -> bool {
        if self.frames.len() == MOST || self.parts.len() + PARTS_OF_ONE > PARTS {
            self.flush();
        }
        let begin = self.parts.len();
        let own = parcel.start().get(from as usize..).unwrap_or_default();
        let own = &own[..own.len().min(length as usize)];
        let head = self.push_head([&header.bytes(), headers, own]);
        self.parts.push(head);
        let after = (from + own.len() as u32).saturating_sub(parcel.start().len() as u32);
        for part in range(parcel.rest(), after, length - own.len() as u32) {
            if self.parts.len() == begin + PARTS_OF_ONE {
                self.parts.truncate(begin);
                self.heads.pop();
                return false;
            }
            self.parts.push(libc::iovec { iov_base: part.place.cast(), iov_len: part.length as usize });
        }
        self.frames.push(Vectors { first: &raw const self.parts[begin], count: (self.parts.len() - begin) as u32 });
        true
    }

    /// Keeps these bytes as one part.
    fn push_head(&mut self, bytes: [&[u8]; 3]) -> libc::iovec {
        let mut head = [0; HEAD];
        let mut length = 0;
        for bytes in bytes {
            head[length..][..bytes.len()].copy_from_slice(bytes);
            length += bytes.len();
        }
        self.heads.push(head);
        let head = &self.heads[self.heads.len() - 1];
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: length }
    }

    /// Writes what was gathered.
    fn flush(&mut self) {
        // SAFETY: heads and parts have stayed where they are since they were pushed, for the vectors never grow; guests' memory is held by the
        // intakes whose chains have not gone back yet. Guests may write it meanwhile, which is their own affair.
        let results = unsafe { self.batch.run(&self.tap.file, Way::Write, &self.frames) };
        for &result in results.iter().filter(|&&result| result < 0) {
            // What tun says while its device is down (drivers/net/tun.c).
            *(if result == -libc::EIO { &mut self.absent } else { &mut self.refused }) += 1;
        }
        self.frames.clear();
        self.parts.clear();
        self.heads.clear();
    }
}

impl DeliveryEnd for TapDelivery {
    fn place(&mut self, parcel: &mut Parcel) -> Placed {
        match plan(parcel, &self.tap.offloads) {
            Plan::Segment { partial } => self.place_segments(parcel, partial),
            // The kernel takes partial checksums always.
            Plan::AsIs | Plan::Checksum => self.place_whole(parcel),
        }
    }

    fn publish(&mut self) {
        self.flush();
    }

    fn take_refused(&mut self) -> [(DropReason, u32); 2] {
        let (refused, absent) = (std::mem::take(&mut self.refused), std::mem::take(&mut self.absent));
        [(DropReason::TapRefused, refused), (DropReason::ReceiverAbsent, absent)]
    }
}

const TOO_LONG: Placed = Placed::Refused(DropReason::TooLongForReceiver);
