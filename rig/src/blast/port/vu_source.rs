//! The fast way into a transmit queue: every chain is described once, its buffer is used in place for ever.
//!
//! A cache line that both sides touch costs a transfer between two processors each time it is written. So only changing fields are
//! written: the stamp of a short frame, the index of the available ring; descriptors, headers and (when the back end completes
//! chains in order) even the entries of the available ring stay as they are, in both caches.

use crate::guest::Queue;
use crate::memory::{GuestMemory, MemoryError};
use crate::ring::{DESC_INDIRECT, Interrupts, Iovec, RingError};

use super::{Mould, PortError};
use crate::blast::flow::Source;

/// Bytes of the virtio-net header.
const HEADER: usize = 12;
/// A frame starts a cache line, its header ends the one before.
const LINE: usize = 64;
/// Lines of a frame that are asked for ahead; beyond them the processor's own prefetcher has understood.
const PREFETCHED: usize = 32;
/// No template: the next frame must be written in full.
const NONE: u32 = u32::MAX;

/// How a frame lies in descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Header and frame in one descriptor.
    Single,
    /// The header in one, the frame in another.
    Split,
    /// The same two in an indirect table.
    Indirect,
}

struct Slot {
    frame: *mut u8,
    /// The length field of the frame's descriptor.
    length: *mut u32,
    /// Which template the buffer and the descriptor hold.
    template: u32,
}

/// The sending half of a vhost-user queue pair.
pub struct VuSource {
    port: usize,
    queue: Queue,
    /// By head; heads that are no chain's first have a dangling slot which is never used.
    slots: Vec<Slot>,
    free: Heads,
    header_in_frame: bool,
    in_order: bool,
}

// SAFETY: the pointers lead into the guest memory that `queue` keeps alive; it has no thread affinity, and one thread at a
// time owns the source.
unsafe impl Send for VuSource {}

impl VuSource {
    /// Bytes from one send buffer to the next, for frames of up to `longest` bytes. Not a power of two: buffers would then
    /// share few sets of the cache.
    pub fn stride(longest: usize) -> u64 {
        let bytes = LINE + longest.next_multiple_of(LINE);
        (if bytes.is_multiple_of(1024) { bytes + LINE } else { bytes }) as u64
    }

    /// Chains for all of the ring, with buffers for frames of up to `longest` bytes; those that are `written` lie in no hole.
    ///
    /// # Errors
    /// [`RingError`] when the memory is too small.
    pub fn new(
        port: usize,
        mut queue: Queue,
        shape: Shape,
        (longest, written): (usize, bool),
        in_order: bool,
    ) -> Result<Self, RingError> {
        let memory = queue.ring.shared().memory().clone();
        let size = usize::from(queue.ring.options().size);
        let dangling = || Slot { frame: std::ptr::null_mut(), length: std::ptr::null_mut(), template: NONE };
        let mut slots: Vec<Slot> = (0..size).map(|_| dangling()).collect();
        let mut heads = Vec::with_capacity(size);
        let descriptors = if shape == Shape::Split { 2 } else { 1 };
        for _ in 0..size / descriptors {
            let start = memory.allocate(Self::stride(longest), LINE as u64)?;
            let frame = start + LINE as u64;
            // A guest's kernel has written a transmit buffer before it sends it. Pages that were never written are holes of guest memory, each
            // of which costs the switch a page fault for each frame.
            if written {
                memory.write(frame, &vec![0; longest])?;
            }
            let head = prepare(&mut queue, shape, frame, longest as u32)?;
            slots[usize::from(head)] = Slot {
                frame: memory.pointer(frame, longest as u64)?,
                length: length_field(&queue, &memory, shape, head)?,
                template: NONE,
            };
            heads.push(head);
        }
        let free = Heads::new(heads, size);
        // Transmit interrupts are off: completed chains are reclaimed when room is needed, and no thread waits for them.
        queue.ring.set_interrupts(Interrupts::Off);
        let header_in_frame = shape == Shape::Single;
        Ok(Self { port, queue, slots, free, header_in_frame, in_order })
    }

    /// Sends up to `count` frames of `flow`: how many there was room for.
    ///
    /// # Errors
    /// [`PortError::Ring`] when the back end broke the rules.
    pub fn push(&mut self, mould: &Mould, flow: &mut Source, count: usize, now: u64) -> Result<usize, PortError> {
        if self.free.len() < count {
            self.reclaim()?;
        }
        let count = count.min(self.free.len());
        for ahead in 0..count {
            let head = self.free.peek(ahead);
            prefetch_to_write(self.slots[usize::from(head)].frame);
        }
        for _ in 0..count {
            let head = self.free.take();
            if mould.touch && self.free.len() > 0 {
                self.prefetch_payload(self.free.peek(0), flow.length());
            }
            self.write(head, mould, flow, now);
            self.queue.ring.offer(head);
            flow.advance();
        }
        if count > 0 {
            self.queue.publish();
        }
        Ok(count)
    }

    /// Sends one frame of bytes made elsewhere; `false` when there is no room.
    ///
    /// # Errors
    /// [`PortError::Ring`] when the back end broke the rules.
    pub fn push_bytes(&mut self, frame: &[u8]) -> Result<bool, PortError> {
        self.reclaim()?;
        if self.free.len() == 0 {
            return Ok(false);
        }
        let head = self.free.take();
        let length = self.described(frame.len() as u32);
        let slot = &mut self.slots[usize::from(head)];
        slot.template = NONE;
        // SAFETY: `head` came from the free ring, so its slot is one that `new` filled: HEADER bytes before `frame` and the
        // longest frame after it are ours, and the back end does not look at a chain that is not offered.
        unsafe {
            slot.frame.sub(HEADER).write_bytes(0, HEADER);
            slot.frame.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            slot.length.write_volatile(length);
        }
        self.queue.ring.offer(head);
        self.queue.publish();
        Ok(true)
    }

    /// Frames in flight: not yet returned on the used ring.
    pub fn in_flight(&self) -> u16 {
        self.queue.ring.in_flight()
    }

    /// Asks for the lines of the frame after the next, while the next is written.
    #[inline(always)]
    fn prefetch_payload(&self, head: u16, length: u32) {
        let frame = self.slots[usize::from(head)].frame;
        for line in 1..(length as usize / LINE).min(PREFETCHED) {
            prefetch_to_write(frame.wrapping_add(line * LINE));
        }
    }

    /// Makes the slot's buffer the next frame of `flow`.
    #[inline(always)]
    fn write(&mut self, head: u16, mould: &Mould, flow: &Source, now: u64) {
        let index = flow.template();
        if self.slots[usize::from(head)].template != index {
            self.imprint(head, mould, index);
        }
        let frame = self.slots[usize::from(head)].frame;
        // SAFETY: the template fits the buffer (plans are checked), and the back end does not look at a chain that is not
        // offered.
        unsafe { mould.finish(frame, index, flow.stamp(now)) };
    }

    /// Writes a template's headers and length into a slot.
    #[cold]
    fn imprint(&mut self, head: u16, mould: &Mould, index: u32) {
        let template = &mould.templates[index as usize];
        let length = self.described(template.length);
        let slot = &mut self.slots[usize::from(head)];
        slot.template = index;
        // SAFETY: as in `push_bytes`; a template's head is shorter than its frame and its header is HEADER bytes.
        unsafe {
            let start = slot.frame.sub(HEADER);
            start.copy_from_nonoverlapping(template.head.as_ptr(), template.head.len());
            slot.length.write_volatile(length);
        }
    }

    /// The length that the descriptor of a frame of `length` bytes states.
    fn described(&self, length: u32) -> u32 {
        if self.header_in_frame { length + HEADER as u32 } else { length }
    }

    /// Reclaims the chains that the back end has completed.
    #[inline]
    fn reclaim(&mut self) -> Result<(), PortError> {
        let ring = &mut self.queue.ring;
        loop {
            let count = ring.completed().map_err(|cause| PortError::Ring { port: self.port, cause })?;
            if count == 0 {
                return Ok(());
            }
            for _ in 0..count {
                let used = ring.take_used();
                // In order: the oldest head is completed, and it stands where it stood.
                let head = if self.in_order { None } else { Some(used.head as u16) };
                self.free.give(head);
            }
        }
    }
}

/// Heads that may be used, oldest first: so they go round, and the available ring stays as it is.
struct Heads {
    /// A ring of `mask` + 1 places.
    heads: Vec<u16>,
    mask: usize,
    taken: usize,
    given: usize,
}

impl Heads {
    fn new(mut heads: Vec<u16>, size: usize) -> Self {
        let given = heads.len();
        heads.resize(size, 0);
        Self { heads, mask: size - 1, taken: 0, given }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.given.wrapping_sub(self.taken)
    }

    /// The head that will be taken after `ahead` others. Only below `len()`.
    #[inline(always)]
    fn peek(&self, ahead: usize) -> u16 {
        self.heads[self.taken.wrapping_add(ahead) & self.mask]
    }

    /// Takes the next head. Only when there is one.
    #[inline(always)]
    fn take(&mut self) -> u16 {
        let head = self.peek(0);
        self.taken = self.taken.wrapping_add(1);
        head
    }

    /// Gives a head back; none: the one that was taken first, which still stands in its place.
    #[inline(always)]
    fn give(&mut self, head: Option<u16>) {
        if let Some(head) = head {
            self.heads[self.given & self.mask] = head & self.mask as u16;
        }
        self.given = self.given.wrapping_add(1);
    }
}

/// Asks for a cache line to write to: the back end has read it, and to take it away from there takes a while.
#[inline(always)]
fn prefetch_to_write(place: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program could see; processors without PREFETCHW take it for a
    // plain prefetch or nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Describes a slot's chain.
fn prepare(queue: &mut Queue, shape: Shape, frame: u64, longest: u32) -> Result<u16, RingError> {
    let header = frame - HEADER as u64;
    let two = [Iovec::readable(header, HEADER as u32), Iovec::readable(frame, longest)];
    match shape {
        Shape::Single => queue.ring.prepare(&[Iovec::readable(header, HEADER as u32 + longest)]),
        Shape::Split => queue.ring.prepare(&two),
        Shape::Indirect => queue.ring.prepare_indirect(&two),
    }
}

/// Where the length of a slot's frame is described.
fn length_field(queue: &Queue, memory: &GuestMemory, shape: Shape, head: u16) -> Result<*mut u32, MemoryError> {
    let shared = queue.ring.shared();
    let first = shared.descriptor(head);
    let table = shared.addresses().descriptors;
    let descriptor = match shape {
        Shape::Single => table + 16 * u64::from(head),
        Shape::Split => table + 16 * u64::from(first.next),
        Shape::Indirect => {
            debug_assert_eq!(first.flags, DESC_INDIRECT);
            first.address + 16
        }
    };
    Ok(memory.pointer(descriptor + 8, 4)?.cast())
}
