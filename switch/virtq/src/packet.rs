//! A packet: a frame that still lies in its sender's memory.
//!
//! A packet carries the bytes that were copied once (the virtio-net header and the first bytes of the frame) and the addresses of the
//! rest (**buffer segments**, a scatter-gather list). Most frames have few buffer segments, which the packet holds itself; the rest
//! of a long list lies in **chunks** that the sender's transmit queue lends, a fixed number of them, so no packet allocates.
//! Enqueueing may allocate: a queue for each sender at a receiver, and on emulated links a copy of each frame.

#![expect(unsafe_code, reason = "chunks that other workers read while the pool owns them")]
#![expect(
    clippy::indexing_slicing,
    reason = "sizes are checked by the compiler, lengths cut to the shorter of both, and a chunk's number is one that its pool lent"
)]

use std::ptr::{self, NonNull};

use crate::frame::{self, COPIED, ETHERNET, LONGEST_HEADERS, NetHeader, SHORT_START, START, TAG, TYPE_QINQ, TYPE_VLAN};
use crate::id::{PortId, Slot};
use crate::memory::faults::Faults;
use crate::memory::holes::Owner;
use crate::memory::{Fetch, Foreign, Granted, Iovec};
use crate::time::Cycles;

const OWN_IOVECS: usize = 3;
const CHUNK_IOVECS: usize = 8;

/// Transmit queue of a packet: a slot of the worker that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TransmitQueueId {
    /// The worker.
    pub worker: u8,
    /// The slot in that worker's list of transmit queues.
    pub slot: Slot,
}

/// See the module. Four cache lines. Fields that are written singly and read soon are no smaller than what the compiler would load, so that
/// loads never span two recent stores.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Packet {
    /// The first `start_length` bytes of the frame, copied once.
    pub start: [u8; START],
    own: [Iovec; OWN_IOVECS],
    more: *const Chunk,
    /// Offloads that the sender requests.
    pub header: NetHeader,
    /// Bytes of the whole frame.
    pub length: u32,
    /// Number of bytes in `start`.
    pub start_length: u32,
    own_iovecs: u32,
    /// Head of the descriptor chain in the sender's ring.
    pub head: u16,
    /// The packet's flow is that of all frames between its IP addresses, some of which are fragments.
    pub of_pair: bool,
    /// Chunks that the sender's transmit queue lent for the rest.
    pub loan: Loan,
    /// The guest's memory that the rest lies in.
    pub memory: Owner,
    /// The sender's ring.
    pub transmit: TransmitQueueId,
    /// The sender.
    pub source: PortId,
    /// Segments that were delivered already, if the receiver had room for some of them only.
    pub segments_done: u16,
    /// Receivers of the frame.
    pub reach: Reach,
    /// When it was taken from its transmit queue, if its latency is measured.
    pub stamp: Stamp,
    /// Number of the packet in captures, if there are any; 0 before it has one.
    pub capture_id: u32,
}

/// A change of the outer VLAN tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// A tag of this VLAN is inserted; one without a VLAN (a priority tag) gets it.
    Push(u16),
    /// The tag is removed.
    Pop,
}

/// Receivers of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Unicast: one receiver. While it is enqueued or handed over, it counts against that receiver's quota of the sender's ring.
    #[default]
    One,
    /// Flooded; enqueued where there is no room.
    Many,
    /// Flooded, only to receivers with room now.
    ManyNow,
}

/// The moment at which a frame was taken from its transmit queue, or none: 24 bits, in units of 4096 cycles, which last for 17 s at 4 GHz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp([u8; 3]);

impl Stamp {
    /// Not measured.
    pub const NONE: Self = Self([0; 3]);
    const UNIT: u32 = 12;

    /// The moment `now`.
    pub fn at(now: Cycles) -> Self {
        let [first, second, third, ..] = (now >> Self::UNIT).to_le_bytes();
        // All zeros means none.
        Self([first | u8::from(first | second | third == 0), second, third])
    }

    /// Time from the stamp until `now`, if there is one.
    #[inline]
    pub fn until(self, now: Cycles) -> Option<Cycles> {
        let Self([first, second, third]) = self;
        let then = Cycles::from(u32::from_le_bytes([first, second, third, 0]));
        (self != Self::NONE).then(|| ((now >> Self::UNIT).wrapping_sub(then) & 0xff_ffff) << Self::UNIT)
    }
}

/// A link of a long list of buffer segments.
#[derive(Debug)]
#[repr(C)]
pub struct Chunk {
    iovecs: [Iovec; CHUNK_IOVECS],
    length: u32,
    /// Position of the next chunk in the same [`ChunkPool`], for returning it.
    next_index: u32,
    next: *const Chunk,
}

const _: () = assert!(size_of::<Packet>() == 256);

// SAFETY: the pointers of a packet lead into memory that its transmit queue keeps alive until the packet is completed; they are
// only used by the copy routines. Chunks are written before the packet is handed over and not after.
unsafe impl Send for Packet {}

impl Packet {
    /// The receiver whose quota of the sender's ring it uses while it is in flight to `receiver`.
    pub fn share_of(&self, receiver: PortId) -> Option<PortId> {
        (self.reach == Reach::One).then_some(receiver)
    }
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            start: [0; START],
            own: [Iovec::NONE; OWN_IOVECS],
            more: ptr::null(),
            header: NetHeader::default(),
            length: 0,
            start_length: 0,
            own_iovecs: 0,
            head: 0,
            of_pair: false,
            loan: Loan::NONE,
            transmit: TransmitQueueId::default(),
            source: PortId::default(),
            segments_done: 0,
            reach: Reach::One,
            stamp: Stamp::NONE,
            capture_id: 0,
            memory: Owner::NONE,
        }
    }
}

const NO_CHUNK: u32 = u32::MAX;

impl Packet {
    /// A packet that the switch makes: a plain frame of at most [`START`] bytes, cut off there. It has no descriptor chain.
    pub fn from_bytes(source: PortId, frame: &[u8]) -> Self {
        let length = frame.len().min(START);
        let mut packet = Self { source, length: length as u32, start_length: length as u32, ..Self::default() };
        packet.start[..length].copy_from_slice(&frame[..length]);
        packet
    }

    /// The copied bytes.
    #[inline]
    pub fn start(&self) -> &[u8] {
        &self.start[..(self.start_length as usize).min(START)]
    }

    /// The copied bytes, to be changed. A copy by the grant of the whole frame would not have the changes: there is none from here on.
    pub fn start_mut(&mut self) -> &mut [u8] {
        self.forget_grant();
        &mut self.start[..(self.start_length as usize).min(START)]
    }

    /// The frame in its grant is not as the copied bytes are.
    fn forget_grant(&mut self) {
        if self.loan == Loan::GRANTED {
            self.loan = Loan::NONE;
        }
    }

    /// Bytes of the frame that were not copied.
    #[inline]
    pub fn rest_length(&self) -> u32 {
        self.length - self.start_length
    }

    /// The buffer segments of the bytes after `start`, in order.
    #[inline]
    pub fn rest(&self) -> Iovecs<'_> {
        Iovecs { own: &self.own[..(self.own_iovecs as usize).min(OWN_IOVECS)], more: self.more }
    }

    /// Copies the bytes of the frame from byte `from` on to `to`, as many as there are, lie in memory (not in Xen grants), and take
    /// few page faults; returns how many. The sender may have changed the bytes that were not copied on transmit.
    pub fn read(&self, from: u32, to: &mut [u8]) -> usize {
        let own = self.start().get(from as usize..).unwrap_or_default();
        let mut done = own.len().min(to.len());
        to[..done].copy_from_slice(&own[..done]);
        let mut skip = from.saturating_sub(self.start().len() as u32);
        let mut faults = Faults::default();
        for iovec in self.rest() {
            let run = iovec.skip(skip).first((to.len() - done) as u32);
            skip -= skip.min(iovec.length());
            if run.length() > 0 {
                if !faults.may_go_on() {
                    break;
                }
                run.copy_in(&mut to[done..][..run.length() as usize]);
                done += run.length() as usize;
            } else if done == to.len() {
                break;
            }
        }
        done
    }

    /// Makes `change` to its VLAN tag, in the copied bytes. False if the frame is too short for that, or its copied bytes leave no room.
    #[must_use]
    pub fn retag(&mut self, change: TagChange) -> bool {
        const AT: usize = ETHERNET - 2;
        let length = (self.start_length as usize).min(START);
        let has_tag = |kind: u16| self.start[AT..AT + 2] == kind.to_be_bytes();
        let is_tagged = (has_tag(TYPE_VLAN) || has_tag(TYPE_QINQ)) && length >= ETHERNET + TAG;
        match change {
            // A priority tag gets the VLAN's identifier.
            TagChange::Push(vlan) if is_tagged => {
                let [high, low] = vlan.to_be_bytes();
                (self.start[AT + 2], self.start[AT + 3]) = (self.start[AT + 2] & 0xf0 | high, low);
                return true;
            }
            TagChange::Push(vlan) => {
                if length + TAG > START {
                    return false;
                }
                self.start.copy_within(AT..length, AT + TAG);
                self.start[AT..AT + 2].copy_from_slice(&TYPE_VLAN.to_be_bytes());
                self.start[AT + 2..AT + TAG].copy_from_slice(&vlan.to_be_bytes());
                (self.length, self.start_length) = (self.length + TAG as u32, self.start_length + TAG as u32);
                self.header = self.header.moved(TAG as i16);
            }
            TagChange::Pop => {
                if !is_tagged {
                    return false;
                }
                self.start.copy_within(AT + TAG..length, AT);
                (self.length, self.start_length) = (self.length - TAG as u32, self.start_length - TAG as u32);
                self.header = self.header.moved(-(TAG as i16));
            }
        }
        self.forget_grant();
        true
    }

    /// Copies more of the frame to `start`, up to [`COPIED`] bytes, so that a verdict on them is one on the bytes that are delivered. Bytes in
    /// Xen grants, or in chunks of a long list of buffer segments, stay where they are.
    pub fn copy_more(&mut self) {
        let from = self.start().len();
        let wanted = (self.length as usize).min(COPIED);
        if from >= wanted || self.is_foreign() {
            return;
        }
        let (mut at, mut faults) = (from, Faults::default());
        while at < wanted && self.own_iovecs > 0 && faults.may_go_on() {
            let run = self.own[0].first((wanted - at) as u32);
            run.copy_in(&mut self.start[at..][..run.length() as usize]);
            at += run.length() as usize;
            self.own[0] = self.own[0].skip(run.length());
            if self.own[0].length() == 0 {
                self.own.copy_within(1.., 0);
                self.own_iovecs -= 1;
            }
        }
        self.start_length = at as u32;
    }

    /// Flow hash, see [`frame::flow_hash`].
    #[inline]
    pub fn flow_hash(&self) -> u32 {
        if self.of_pair {
            return self.pair_hash();
        }
        frame::flow_hash(self.start()).unwrap_or_else(|| self.flow_hash_behind_start())
    }

    /// The same for a frame whose ports were not copied on transmit. Where [`Self::read`] does not reach the ports, the flow is that of the IP addresses.
    #[cold]
    #[inline(never)]
    fn flow_hash_behind_start(&self) -> u32 {
        let mut headers = [0; LONGEST_HEADERS];
        let length = self.read(0, &mut headers);
        frame::flow_hash(&headers[..length]).unwrap_or_else(|| frame::pair_hash(self.start()))
    }

    /// The flow hash of all frames between its IP addresses, see [`frame::pair_hash`].
    pub fn pair_hash(&self) -> u32 {
        frame::pair_hash(self.start())
    }

    /// Whether it is one of several fragments of an IP packet, see [`frame::is_fragment`].
    #[inline]
    pub fn is_fragment(&self) -> bool {
        frame::is_fragment(self.start()).unwrap_or_else(|| self.is_fragment_behind_start())
    }

    #[cold]
    #[inline(never)]
    fn is_fragment_behind_start(&self) -> bool {
        let mut headers = [0; LONGEST_HEADERS];
        let length = self.read(0, &mut headers);
        headers.get(..length).and_then(frame::is_fragment).unwrap_or(true)
    }

    /// Makes this a packet of the whole `frame`, which lies in the switch's memory and must stay there until the packet is
    /// completed.
    pub fn set_frame(&mut self, header: NetHeader, frame: &mut [u8]) {
        self.header = header;
        let start_length = frame.len().min(if header.is_plain() { SHORT_START } else { COPIED });
        self.start[..start_length].copy_from_slice(&frame[..start_length]);
        self.length = frame.len() as u32;
        self.start_length = start_length as u32;
        self.memory = Owner::NONE;
        let rest = &mut frame[start_length..];
        // SAFETY: the caller keeps the frame where it is.
        self.set_single_rest(unsafe { Iovec::new(rest.as_mut_ptr(), rest.len() as u32) });
    }

    /// Sets the rest to this one `iovec`; nothing if it is empty.
    #[inline]
    pub fn set_single_rest(&mut self, iovec: Iovec) {
        self.own[0] = iovec;
        self.own_iovecs = u32::from(iovec.length() > 0);
        self.more = ptr::null();
        self.loan = Loan::NONE;
    }

    /// Records the grant by which the whole frame, of which the rest is a single buffer segment, can be copied unchanged: such a
    /// copy needs neither that segment nor the copied bytes.
    pub fn set_granted(&mut self, place: Granted) {
        self.own[OWN_IOVECS - 1] = Iovec::naming(Foreign { place, length: self.length });
        self.loan = Loan::GRANTED;
    }

    /// The grant of the whole frame, if there is one.
    #[inline]
    pub fn granted(&self) -> Option<Foreign> {
        if self.loan == Loan::GRANTED { self.own[OWN_IOVECS - 1].named() } else { None }
    }

    /// Sets the rest to `iovecs` without the first `skip` bytes. Borrowed chunks are to be returned with [`ChunkPool::give_back`].
    ///
    /// # Errors
    /// The pool has too few chunks left; nothing is lent then, and the packet is of no use.
    pub fn set_rest(&mut self, iovecs: &[Iovec], skip: u32, pool: &mut ChunkPool) -> Result<(), NoChunk> {
        let (index, within) = position(iovecs, skip);
        match iovecs.get(index) {
            Some(first) => self.borrow(first.skip(within), &iovecs[index + 1..], pool),
            None => {
                self.set_single_rest(Iovec::NONE);
                Ok(())
            }
        }
    }

    /// Sets the rest to foreign `iovecs`, which only [name](Iovec::named) memory; otherwise as [`Self::set_rest`].
    ///
    /// # Errors
    /// The errors of [`Self::set_rest`].
    pub fn set_named_rest(&mut self, iovecs: &[Iovec], pool: &mut ChunkPool) -> Result<(), NoChunk> {
        match iovecs.split_first() {
            Some((first, rest)) => self.borrow(*first, rest, pool),
            None => {
                self.set_single_rest(Iovec::NONE);
                Ok(())
            }
        }
    }

    /// Whether the rest is foreign (Xen grants): all of it is, or nothing. A receiver that needs its bytes in memory has it
    /// [fetched](Fetch) first.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.own_iovecs > 0 && self.own[0].named().is_some()
    }

    /// The same frame with its rest fetched into `memory`, which must stay as it is until the packet is completed; `None` if that
    /// fails.
    pub fn fetched(&self, fetch: &dyn Fetch, memory: &mut Vec<u8>) -> Option<Self> {
        let names: Vec<Foreign> = self.rest().filter_map(|iovec| iovec.named()).collect();
        memory.clear();
        memory.resize(self.rest_length() as usize, 0);
        if !fetch.fetch(&names, memory) {
            return None;
        }
        let mut packet = self.clone();
        // SAFETY: the caller keeps the memory as it is.
        packet.set_single_rest(unsafe { Iovec::new(memory.as_mut_ptr(), memory.len() as u32) });
        Some(packet)
    }

    /// The same frame with its rest copied into `memory`, which must stay as it is until the packet is completed, from its
    /// [file](Iovec::append_from_file): holes are zeros. `None` if it has more than [`MOST_READ`] buffer segments, each of which takes
    /// a system call.
    pub fn copied(&self, memory: &mut Vec<u8>) -> Option<Self> {
        memory.clear();
        if self.rest().nth(MOST_READ).is_some() {
            return None;
        }
        self.rest().for_each(|iovec| iovec.append_from_file(memory));
        let mut packet = Self { memory: Owner::NONE, ..self.clone() };
        // SAFETY: the caller keeps the memory as it is.
        packet.set_single_rest(unsafe { Iovec::new(memory.as_mut_ptr(), memory.len() as u32) });
        Some(packet)
    }

    /// Sets the rest to `first` and then `rest`; `pool` lends chunks for the part that does not fit into the packet.
    fn borrow(&mut self, first: Iovec, rest: &[Iovec], pool: &mut ChunkPool) -> Result<(), NoChunk> {
        self.set_single_rest(first);
        let direct = rest.len().min(OWN_IOVECS - 1);
        if rest.len() > direct {
            self.loan = pool.lend(&rest[direct..])?;
            self.more = pool.chunk(self.loan.0.into());
        }
        self.own[1..=direct].copy_from_slice(&rest[..direct]);
        self.own_iovecs = 1 + direct as u32;
        Ok(())
    }
}

/// The buffer segment that holds byte `skip`, and the offset in it; past the end, the number of buffer segments.
#[inline]
fn position(iovecs: &[Iovec], skip: u32) -> (usize, u32) {
    let mut skip = skip;
    for (index, iovec) in iovecs.iter().enumerate() {
        if skip < iovec.length() {
            return (index, skip);
        }
        skip -= iovec.length();
    }
    (iovecs.len(), 0)
}

/// Walks a packet's buffer segments.
#[derive(Clone, Debug)]
pub struct Iovecs<'a> {
    own: &'a [Iovec],
    more: *const Chunk,
}

impl Iterator for Iovecs<'_> {
    type Item = Iovec;

    #[inline]
    fn next(&mut self) -> Option<Iovec> {
        if let Some((first, rest)) = self.own.split_first() {
            self.own = rest;
            return Some(*first);
        }
        if self.more.is_null() {
            return None;
        }
        // SAFETY: the chunk belongs to the pool of the packet's transmit queue, which lives, and neither writes to the chunk nor makes a
        // unique reference to it, until the packet is completed; the iterator borrows the packet.
        let chunk = unsafe { &*self.more };
        self.more = chunk.next;
        self.own = &chunk.iovecs[..(chunk.length as usize).min(CHUNK_IOVECS)];
        self.next()
    }
}

/// A borrowed list of chunks, by the position of its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan(u16);

impl Loan {
    /// Nothing was lent.
    pub const NONE: Self = Self(u16::MAX);
    /// Nothing was lent, and the last of the packet's own buffer segments, which is not part of the rest, is the grant of the
    /// [whole frame](Packet::granted).
    const GRANTED: Self = Self(u16::MAX - 1);
}

/// The pool has too few chunks left.
#[derive(Debug, PartialEq, Eq)]
pub struct NoChunk;

/// The chunks of one transmit queue.
///
/// The chunks are reached through the pool's pointer only, field by field: a reference to one of them, or to all, would promise that no
/// other thread reads there, while packets, other workers' too, read those that are lent.
#[derive(Debug)]
pub struct ChunkPool {
    /// Owned by the pool; only the pool writes them, and only free ones.
    chunks: NonNull<[Chunk]>,
    /// Head of the list of free chunks, linked by `next_index`.
    free: u32,
    left: u32,
}

// SAFETY: see `Packet`; the pool itself is used by one thread.
unsafe impl Send for ChunkPool {}

impl ChunkPool {
    /// A pool for a transmit queue of `ring_size` entries: enough for one frame of as many buffer segments as an indirect table may
    /// have, and in the common case for a ring full of frames of a few buffer segments.
    pub fn new(ring_size: u16) -> Self {
        Self::of((u32::from(ring_size) / 2).max(MAX_IOVECS as u32 / CHUNK_IOVECS as u32))
    }

    /// A pool of `count` chunks, at least 1 and fewer than 65534.
    fn of(count: u32) -> Self {
        let chunk = |index: u32| Chunk {
            iovecs: [Iovec::NONE; CHUNK_IOVECS],
            length: 0,
            next_index: if index + 1 == count { NO_CHUNK } else { index + 1 },
            next: ptr::null(),
        };
        let chunks: Box<[Chunk]> = (0..count).map(chunk).collect();
        Self { chunks: NonNull::from(Box::leak(chunks)), free: 0, left: count }
    }

    /// Address of chunk `index`.
    fn chunk(&self, index: u32) -> *mut Chunk {
        assert!((index as usize) < self.chunks.len(), "a chunk of this pool");
        self.chunks.cast::<Chunk>().as_ptr().wrapping_add(index as usize)
    }

    /// Lends chunks that hold `iovecs`, of which there is at least one.
    fn lend(&mut self, iovecs: &[Iovec]) -> Result<Loan, NoChunk> {
        if iovecs.len().div_ceil(CHUNK_IOVECS) > self.left as usize {
            return Err(NoChunk);
        }
        let first = self.free;
        let mut runs = iovecs.chunks(CHUNK_IOVECS).peekable();
        while let Some(run) = runs.next() {
            let chunk = self.chunk(self.free);
            // SAFETY: a chunk of this pool; only the pool's thread writes `next_index`.
            let next_index = unsafe { (*chunk).next_index };
            let is_last = runs.peek().is_none();
            let next = if is_last { ptr::null() } else { self.chunk(next_index).cast_const() };
            // SAFETY: a free chunk, which no thread reads before it is lent; a run is no longer than a chunk.
            unsafe {
                ptr::copy_nonoverlapping(run.as_ptr(), (&raw mut (*chunk).iovecs).cast(), run.len());
                (*chunk).length = run.len() as u32;
                (*chunk).next = next;
                if is_last {
                    (*chunk).next_index = NO_CHUNK;
                }
            }
            self.free = next_index;
            self.left -= 1;
        }
        Ok(Loan(first as u16))
    }

    /// Takes back the chunks that [`Packet::set_rest`] borrowed.
    pub fn give_back(&mut self, loan: Loan) {
        let mut index = if loan.0 < Loan::GRANTED.0 { loan.0.into() } else { NO_CHUNK };
        while index != NO_CHUNK {
            let chunk = self.chunk(index);
            // SAFETY: a chunk of this pool that was lent; its packet is completed, so that no thread reads it any more.
            let next = unsafe { std::mem::replace(&mut (*chunk).next_index, self.free) };
            self.free = index;
            self.left += 1;
            index = next;
        }
    }

    /// Chunks not lent.
    pub fn left(&self) -> u32 {
        self.left
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        // SAFETY: made from a box; the pool is dropped only after all its packets were completed.
        drop(unsafe { Box::from_raw(self.chunks.as_ptr()) });
    }
}

/// Most buffer segments of a frame that is read from the file of its sender's memory: more than those of an honest driver (Linux: 19).
pub const MOST_READ: usize = 64;

/// Most buffer segments that a packet may have.
pub const MAX_IOVECS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::faults::faults;
    use crate::memory::{Hint, MemoryMap, Region};

    fn iovecs(lengths: &[u32]) -> Vec<Iovec> {
        let mut place = 0x1000_usize;
        lengths
            .iter()
            .map(|&length| {
                let iovec = Iovec::nowhere(place, length);
                place += 0x10000;
                iovec
            })
            .collect()
    }

    fn rest_of(packet: &Packet) -> Vec<(usize, u32)> {
        packet.rest().map(|p| (p.as_ptr() as usize, p.length())).collect()
    }

    #[test]
    fn keeps_every_iovec_in_order_however_many() {
        let mut pool = ChunkPool::new(256);
        let all = pool.left();
        for count in [0, 1, 3, 4, 5, 12, 13, 30, 1000] {
            let list = iovecs(&vec![7; count]);
            let mut packet = Packet::default();
            packet.set_rest(&list, 0, &mut pool).unwrap();
            assert_eq!(rest_of(&packet), list.iter().map(|p| (p.as_ptr() as usize, p.length())).collect::<Vec<_>>());
            pool.give_back(packet.loan);
            assert_eq!(pool.left(), all);
        }
    }

    /// A tag is pushed and popped, and the offsets of offloads move with the headers (virtio 1.4, section 5.1.6).
    #[test]
    fn a_tag_is_pushed_and_popped() {
        let bytes: Vec<u8> = (0..100)
            .map(|n| {
                if n == 12 {
                    8
                } else if n == 13 {
                    0
                } else {
                    n
                }
            })
            .collect();
        let mut packet = Packet::from_bytes(PortId(0), &bytes);
        packet.header = NetHeader::partial_checksum(34, 16).cut(NetHeader::GSO_TCPV4, 1000);
        let before = packet.clone();
        assert!(packet.retag(TagChange::Push(10)));
        assert_eq!(packet.start(), [&bytes[..12], &[0x81, 0, 0, 10], &bytes[12..]].concat());
        assert_eq!((packet.length, packet.header.csum_start(), packet.header.csum_offset()), (104, 38, 16));
        assert_eq!((packet.header.gso_type(), packet.header.gso_size()), (NetHeader::GSO_TCPV4, 1000));
        packet.start[14] = 0xa0;
        assert!(packet.retag(TagChange::Push(0x123)), "a priority stays");
        assert_eq!(packet.start()[12..16], [0x81, 0, 0xa1, 0x23]);
        assert!(packet.retag(TagChange::Pop));
        assert_eq!((packet.start(), packet.length, packet.header), (before.start(), before.length, before.header));
        assert!(!packet.retag(TagChange::Pop), "there is none");
        packet.header = NetHeader::partial_checksum(34, 16);
        assert!(packet.retag(TagChange::Push(10)));
        assert_eq!(packet.header, NetHeader::partial_checksum(38, 16), "no length of headers without GSO");
        let mut full = Packet { start_length: START as u32, length: 2000, ..Packet::default() };
        assert!(!full.retag(TagChange::Push(1)));
        let mut short = Packet::from_bytes(PortId(0), &[&bytes[..12], &[0x81, 0]].concat());
        assert!(!short.retag(TagChange::Pop), "a tag that is cut off");
    }

    #[test]
    fn leaves_out_the_skipped_bytes() {
        let mut pool = ChunkPool::new(2);
        let mut packet = Packet::default();
        let list = iovecs(&[10, 20, 30]);
        for (skip, expected) in [
            (0, vec![(0x1000, 10), (0x11000, 20), (0x21000, 30)]),
            (10, vec![(0x11000, 20), (0x21000, 30)]),
            (35, vec![(0x21005, 25)]),
            (60, vec![]),
        ] {
            packet.set_rest(&list, skip, &mut pool).unwrap();
            assert_eq!(rest_of(&packet), expected, "skip {skip}");
        }
    }

    /// A TCP packet whose headers, of `HEADERS` bytes, go on behind the copied bytes, in buffer segments of two bytes: each first byte on one page, each
    /// second on the next, none of them in memory yet.
    fn on_many_pages(map: &MemoryMap, pool: &mut ChunkPool) -> Packet {
        const COUNT: u32 = 1000;
        let mut packet = Packet { start_length: SHORT_START as u32, length: SHORT_START as u32 + 2 * COUNT, ..Packet::default() };
        // IPv4 with 60 bytes of headers, DF, TCP: the ports are bytes 74 to 78.
        packet.start[12..15].copy_from_slice(&[8, 0, 0x4f]);
        packet.start[20] = 0x40;
        packet.start[23] = 6;
        packet.start[29] = 1;
        packet.start[33] = 2;
        let iovec = |page: u32| map.iovec(u64::from(page) * 4096 - 1, 2, &mut Hint::default()).unwrap();
        let iovecs: Vec<Iovec> = (1..=COUNT).map(iovec).collect();
        packet.set_rest(&iovecs, 0, pool).unwrap();
        packet
    }

    #[test]
    fn reading_behind_the_copied_bytes_ends_with_many_page_faults() {
        let map = MemoryMap::new(vec![Arc::new(Region::anonymous(0, 1002 * 4096).unwrap())]).unwrap();
        let mut pool = ChunkPool::new(256);
        let packet = on_many_pages(&map, &mut pool);
        let before = faults();
        assert_eq!(packet.flow_hash(), frame::pair_hash(packet.start()), "ports that were not reached");
        let taken = faults() - before;
        // Page faults that are fast are noticed later.
        assert!((1..400).contains(&taken), "{taken} page faults");
        let mut bytes = [0; LONGEST_HEADERS];
        assert!(packet.read(0, &mut bytes) < packet.length as usize);
        // Each read brings some pages in; once they are in memory, nothing is left out.
        let reads = (0..1000).take_while(|_| packet.read(0, &mut bytes) < packet.length as usize).count();
        assert!(reads < 100, "{reads}");
        pool.give_back(packet.loan);
    }

    #[test]
    fn an_empty_pool_lends_nothing_and_recovers() {
        let mut pool = ChunkPool::new(2);
        let mut loans = Vec::new();
        let list = iovecs(&[1; 100]);
        let mut packet = Packet::default();
        while packet.set_rest(&list, 0, &mut pool).is_ok() {
            loans.push(packet.loan);
        }
        assert_eq!(loans.len(), pool.chunks.len() / 13);
        loans.into_iter().for_each(|loan| pool.give_back(loan));
        assert_eq!(pool.left() as usize, pool.chunks.len());
        assert!(packet.set_rest(&list, 0, &mut pool).is_ok());
    }
}

#[cfg(test)]
mod proofs {
    use super::*;

    /// Distinct buffer segments: address and length.
    fn fresh(count: usize, from: &mut usize) -> Vec<Iovec> {
        let iovec = |n: usize| Iovec::nowhere(n, n as u32);
        *from += count;
        (*from - count..*from).map(iovec).collect()
    }

    /// For every order of lending and returning: no chunk has two borrowers, each borrower reads its own buffer segments, all
    /// chunks return.
    #[test]
    #[cfg_attr(kani, kani::proof, kani::unwind(20))]
    fn no_chunk_has_two_borrowers() {
        const CHUNKS: u32 = 4;
        // How many buffer segments to lend, or, from `MOST` on, which loan to end.
        const MOST: u8 = 20;
        bolero::check!().with_type::<[u8; 6]>().cloned().for_each(|steps| {
            let (mut pool, mut out, mut number) = (ChunkPool::of(CHUNKS), Vec::new(), 1);
            for step in steps {
                if step < MOST {
                    let iovecs = fresh(usize::from(step), &mut number);
                    let mut packet = Packet::default();
                    let needed = iovecs.len().saturating_sub(OWN_IOVECS).div_ceil(CHUNK_IOVECS);
                    let fits = needed <= pool.left() as usize;
                    assert_eq!(packet.set_rest(&iovecs, 0, &mut pool).is_ok(), fits);
                    if fits {
                        out.push((packet, iovecs));
                    }
                } else if !out.is_empty() {
                    let (packet, _) = out.swap_remove(usize::from(step) % out.len());
                    pool.give_back(packet.loan);
                }
                for (packet, iovecs) in &out {
                    let place_and_length = |iovec: &Iovec| (iovec.as_ptr(), iovec.length());
                    assert!(packet.rest().map(|iovec| place_and_length(&iovec)).eq(iovecs.iter().map(place_and_length)));
                }
            }
            out.into_iter().for_each(|(packet, _)| pool.give_back(packet.loan));
            assert_eq!(pool.left(), CHUNKS);
        });
    }

    /// The skipped and the kept bytes together are all bytes, in order.
    #[test]
    #[cfg_attr(kani, kani::proof, kani::unwind(8))]
    fn what_is_skipped_and_what_is_left_are_all_bytes() {
        bolero::check!().with_type::<([u16; 4], u32, bool)>().cloned().for_each(|(lengths, skip, small)| {
            let lengths = lengths.map(|length| if small { length % 3 } else { length });
            let mut from = 1_usize << 20;
            let iovecs = lengths.map(|length| {
                from += 1 << 17;
                Iovec::nowhere(from, u32::from(length) + 1)
            });
            let total: u32 = iovecs.iter().map(|iovec| iovec.length()).sum();
            let skip = skip % (total + 2);
            let (index, within) = position(&iovecs, skip);
            let before: u32 = iovecs[..index].iter().map(|iovec| iovec.length()).sum();
            if skip < total {
                assert!(within < iovecs[index].length());
                assert_eq!(before + within, skip);
            } else {
                assert_eq!((index, within), (iovecs.len(), 0));
            }
        });
    }
}
