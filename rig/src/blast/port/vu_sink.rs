//! The fast way out of a receive queue: buffers stay where they are and are offered again by their head alone.

use std::os::fd::BorrowedFd;

use crate::guest::Queue;
use crate::ring::{Interrupts, Iovec, RingError, SharedRing, Used};

use super::{Arrival, PortError, VuSource};

/// Bytes of the virtio-net header.
const HEADER: usize = 12;
/// A frame starts a cache line, its header ends the one before.
const LINE: usize = 64;
/// Lines of a frame that are fetched ahead; beyond them the processor's own prefetcher has understood.
const PREFETCHED: usize = 32;
/// Where `num_buffers` lies in the header.
const BUFFERS_AT: usize = 10;

/// The receiving half of a vhost-user queue pair.
pub struct VuSink {
    port: usize,
    queue: Queue,
    mergeable: bool,
    /// Whether whole payloads are read, so that it pays to fetch them ahead.
    deep: bool,
    /// Header of buffer 0.
    start: *mut u8,
    stride: usize,
    /// Bytes of a buffer, header included.
    room: usize,
    /// Buffer segments of the frame being shown; kept for its capacity.
    iovecs: Vec<&'static [u8]>,
}

// SAFETY: the pointers lead into the guest memory that `queue` keeps alive; it has no thread affinity, and one thread at a
// time owns the sink.
unsafe impl Send for VuSink {}

impl VuSink {
    /// Bytes from one receive buffer of `room` bytes (header included) to the next.
    pub fn stride(room: usize) -> u64 {
        VuSource::stride(room - HEADER)
    }

    /// Posts a buffer of `room` bytes (header included) for every descriptor of the ring.
    ///
    /// # Errors
    /// [`RingError`] when the memory is too small.
    pub fn new(port: usize, mut queue: Queue, room: usize, mergeable: bool, deep: bool) -> Result<Self, RingError> {
        let memory = queue.ring.shared().memory().clone();
        let size = queue.ring.options().size;
        let stride = Self::stride(room);
        let first = memory.allocate(stride * u64::from(size), LINE as u64)? + (LINE - HEADER) as u64;
        for index in 0..size {
            // A ring's first heads are 0, 1, 2, ...: the head tells the buffer.
            let head = queue.ring.add(&[Iovec::writable(first + u64::from(index) * stride, room as u32)])?;
            assert_eq!(head, index, "a fresh ring hands out heads in order");
        }
        queue.ring.publish();
        queue.ring.set_interrupts(Interrupts::Off);
        let start = memory.pointer(first, stride * u64::from(size - 1) + room as u64)?;
        Ok(Self { port, queue, mergeable, deep, start, stride: stride as usize, room, iovecs: Vec::with_capacity(64) })
    }

    /// Kicks the back end: buffers were posted before it knew of the ring.
    pub fn announce(&mut self) {
        self.queue.kick();
    }

    /// Shows up to `burst` frames that have come in to `each`: how many there were. Their buffers are posted again.
    ///
    /// # Errors
    /// [`PortError`] when the back end broke the rules.
    #[inline]
    pub fn poll(&mut self, burst: u16, mut each: impl FnMut(&Arrival<'_>)) -> Result<usize, PortError> {
        let port = self.port;
        let ready = self.queue.ring.completed().map_err(|cause| PortError::Ring { port, cause })?.min(burst);
        if ready == 0 {
            return Ok(0);
        }
        for ahead in 0..ready {
            self.prefetch(self.queue.ring.peek_used(ahead));
        }
        let (mut left, mut frames) = (ready, 0);
        while left > 0 {
            let used = self.queue.ring.take_used();
            let first = self.iovec(used)?;
            let buffers = if self.mergeable { announced(first) } else { 1 };
            left -= 1;
            if self.deep && left > 0 {
                self.prefetch_payload(self.queue.ring.peek_used(0));
            }
            if buffers > 1 {
                left = self.gather(first, buffers, left, &mut each)?;
            } else {
                each(&Arrival { first: first.get(HEADER..).unwrap_or_default(), rest: &[] });
            }
            self.queue.ring.offer(used.head as u16);
            frames += 1;
        }
        self.queue.publish();
        Ok(frames)
    }

    /// Asks for an interrupt with the next frame; `true` when one is there already.
    pub fn arm(&mut self) -> bool {
        self.queue.ring.set_interrupts(Interrupts::Next)
    }

    /// The ring that the back end fills.
    pub fn ring(&self) -> &SharedRing {
        self.queue.ring.shared()
    }

    /// The descriptor that becomes readable when the back end sends an interrupt.
    pub fn waitable(&self) -> Option<BorrowedFd<'_>> {
        self.queue.call.waitable()
    }

    /// Takes the interrupts that came.
    pub fn drain(&self) {
        self.queue.call.drain();
    }

    /// Shows a frame of several buffers; how many of the `left` known elements are left then.
    #[cold]
    fn gather(
        &mut self,
        first: &'static [u8],
        buffers: u16,
        mut left: u16,
        each: &mut impl FnMut(&Arrival<'_>),
    ) -> Result<u16, PortError> {
        self.iovecs.clear();
        for number in 1..buffers {
            let torn = PortError::Torn { port: self.port, announced: buffers, used: number };
            let ready = self.queue.ring.completed().map_err(|cause| PortError::Ring { port: self.port, cause })?;
            if ready == 0 {
                return Err(torn);
            }
            let used = self.queue.ring.take_used();
            left = left.saturating_sub(1);
            let iovec = self.iovec(used)?;
            self.iovecs.push(iovec);
            self.queue.ring.offer(used.head as u16);
        }
        each(&Arrival { first: first.get(HEADER..).unwrap_or_default(), rest: &self.iovecs });
        Ok(left)
    }

    /// The bytes that the back end wrote into a receive buffer. The slice is good until the buffer is posted again, which happens
    /// at the end of [`VuSink::poll`].
    #[inline(always)]
    fn iovec(&self, used: Used) -> Result<&'static [u8], PortError> {
        if used.head >= u32::from(self.queue.ring.shared().size()) || used.length as usize > self.room {
            return Err(PortError::Ring { port: self.port, cause: RingError::NotOut(used.head) });
        }
        let start = self.start.wrapping_add(used.head as usize * self.stride);
        // SAFETY: head and length were checked against the buffers that `new` laid out; the back end has returned the buffer on the
        // used ring, and the slice is dropped before it is posted again.
        Ok(unsafe { std::slice::from_raw_parts(start, used.length as usize) })
    }

    /// Fetches the lines of the frame after the one that is being read.
    #[inline(always)]
    fn prefetch_payload(&self, used: Used) {
        let start = self.start.wrapping_add(used.head as usize * self.stride);
        for line in 2..(used.length as usize / LINE).min(PREFETCHED) {
            prefetch_to_read(start.wrapping_add(line * LINE));
        }
    }

    #[inline(always)]
    fn prefetch(&self, used: Used) {
        let at = self.start.wrapping_add(used.head as usize * self.stride);
        prefetch_to_read(at);
        prefetch_to_read(at.wrapping_add(LINE));
    }
}

#[inline(always)]
fn prefetch_to_read(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program could see.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// The header's `num_buffers`.
#[inline(always)]
fn announced(first: &[u8]) -> u16 {
    first.get(BUFFERS_AT..BUFFERS_AT + 2).map_or(1, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}
