//! Where frames go out and come in: the two halves of a port, each usable by a thread of its own.

mod tap;
mod vu_sink;
mod vu_source;

use std::os::fd::BorrowedFd;

use crate::ring::SharedRing;

use super::flow::Source;
use super::payload;
use super::stamp::{Carrier, STAMP_BYTES, Stamp, Template};

pub use tap::{TapPlace, TapSink, TapSource, open as open_tap};
pub use vu_sink::VuSink;
pub use vu_source::{Shape, VuSource};

/// Why a port stops.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The back end broke the rules.
    #[error("port {port}: {cause}")]
    Ring {
        /// Which port.
        port: usize,
        /// The rule that it broke.
        cause: crate::ring::RingError,
    },
    /// The TAP device failed.
    #[error("port {port}: {cause}")]
    Tap {
        /// Which port.
        port: usize,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The back end announced more buffers than it used.
    #[error("port {port}: a frame of {announced} buffers, of which {used} came")]
    Torn {
        /// Which port.
        port: usize,
        /// `num_buffers`.
        announced: u16,
        /// Elements of the used ring.
        used: u16,
    },
}

/// Templates and payload: every source needs them to write a frame.
#[derive(Debug)]
pub struct Mould {
    /// The templates that flows refer to by index.
    pub templates: Vec<Template>,
    /// Which headers.
    pub carrier: Carrier,
    /// Whether the whole payload is written.
    pub touch: bool,
}

impl Mould {
    /// Writes the parts of a frame that differ from one to the next: the stamp (one a part), and the payload if it is touched.
    ///
    /// # Safety
    /// `frame` must be writable for the template's length, and no other thread may use it meanwhile.
    #[inline(always)]
    pub unsafe fn finish(&self, frame: *mut u8, template: u32, stamp: Stamp) {
        let template = &self.templates[template as usize];
        if template.parts.count == 1 {
            // SAFETY: the caller vouches for the template's length.
            unsafe { self.finish_part(frame, template.length as usize, stamp) };
        } else {
            // SAFETY: as above.
            unsafe { self.finish_parts(frame, template, stamp) };
        }
    }

    /// Writes the stamps and payloads of a frame that the switch must segment. Each part is seen by its receiver behind a
    /// copy of the headers, so it is written as if it lay there.
    ///
    /// # Safety
    /// The conditions of `finish`.
    #[cold]
    unsafe fn finish_parts(&self, frame: *mut u8, template: &Template, stamp: Stamp) {
        let (count, size) = (template.parts.count, template.parts.size as usize);
        let payload = template.length as usize - self.carrier.stamp_at();
        for part in 0..count {
            let before = part as usize * size;
            let length = self.carrier.stamp_at() + size.min(payload - before);
            let sequence = stamp.sequence * u64::from(count) + u64::from(part);
            // SAFETY: the part ends where the frame does, or before; plans see to it that the last has room for its stamp.
            unsafe { self.finish_part(frame.add(before), length, Stamp { sequence, ..stamp }) };
        }
    }

    /// Writes stamp and payload of a frame (or part) of `length` bytes, headers included; those are left alone.
    ///
    /// # Safety
    /// `frame` must be writable for `length` bytes, and no other thread may use them meanwhile.
    #[inline(always)]
    unsafe fn finish_part(&self, frame: *mut u8, length: usize, stamp: Stamp) {
        let at = self.carrier.stamp_at();
        // SAFETY: every frame is at least as long as the end of its stamp.
        unsafe { stamp.write(frame.add(at)) };
        if self.touch {
            let start = at + STAMP_BYTES;
            // SAFETY: the caller vouches for everything up to `length`.
            let rest = unsafe { std::slice::from_raw_parts_mut(frame.add(start), length - start) };
            payload::fill(rest, start, payload::seed(stamp.flow.into(), stamp.sequence));
        }
    }
}

/// A frame that has come in, in one buffer segment or several.
pub struct Arrival<'a> {
    /// The first segment, from the Ethernet header on.
    pub first: &'a [u8],
    /// Further segments.
    pub rest: &'a [&'a [u8]],
}

impl Arrival<'_> {
    /// Bytes of the frame.
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.first.len() + self.rest.iter().map(|iovec| iovec.len()).sum::<usize>()
    }
}

/// The sending half of a port's queue.
#[expect(clippy::large_enum_variant, reason = "there are few of them, and a box would be one more load a burst")]
pub enum SourcePort {
    /// A vhost-user transmit queue.
    Vu(VuSource),
    /// A TAP device.
    Tap(TapSource),
}

impl SourcePort {
    /// Sends up to `count` frames of `flow`, stamped `now`: how many there was room for.
    ///
    /// # Errors
    /// [`PortError`] when the other side breaks the rules or is gone.
    #[inline]
    pub fn push(&mut self, mould: &Mould, flow: &mut Source, count: usize, now: u64) -> Result<usize, PortError> {
        match self {
            Self::Vu(port) => port.push(mould, flow, count, now),
            Self::Tap(port) => port.push(mould, flow, count, now),
        }
    }

    /// Sends one frame of bytes made elsewhere; `false` when there is no room.
    ///
    /// # Errors
    /// [`PortError`] when the other side breaks the rules or is gone.
    pub fn push_bytes(&mut self, frame: &[u8]) -> Result<bool, PortError> {
        match self {
            Self::Vu(port) => port.push_bytes(frame),
            Self::Tap(port) => port.push_bytes(frame),
        }
    }
}

/// The receiving half of a port's queue.
#[expect(clippy::large_enum_variant, reason = "there are few of them, and a box would be one more load a burst")]
pub enum SinkPort {
    /// A vhost-user receive queue.
    Vu(VuSink),
    /// A TAP device.
    Tap(TapSink),
}

impl SinkPort {
    /// Shows up to `burst` frames that have come in to `each`: how many there were.
    ///
    /// # Errors
    /// [`PortError`] when the other side breaks the rules or is gone.
    #[inline]
    pub fn poll(&mut self, burst: u16, each: impl FnMut(&Arrival<'_>)) -> Result<usize, PortError> {
        match self {
            Self::Vu(port) => port.poll(burst, each),
            Self::Tap(port) => port.poll(burst, each),
        }
    }

    /// Asks for an interrupt with the next frame; `true` when one is there already.
    pub fn arm(&mut self) -> bool {
        match self {
            Self::Vu(port) => port.arm(),
            Self::Tap(_) => false,
        }
    }

    /// The ring that the back end fills, if there is one.
    pub fn ring(&self) -> Option<&SharedRing> {
        match self {
            Self::Vu(port) => Some(port.ring()),
            Self::Tap(_) => None,
        }
    }

    /// The descriptor that becomes readable when a frame has come in.
    pub fn waitable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Vu(port) => port.waitable(),
            Self::Tap(port) => Some(port.waitable()),
        }
    }

    /// Takes the interrupts that came.
    pub fn drain(&self) {
        if let Self::Vu(port) = self {
            port.drain();
        }
    }
}
