//! Intake: the guest's transmit ring. Chains come in, parcels come out, and each head goes back exactly once.
//!
//! In order: [`Intake::take`] resolves a chain, copies its headers into a [`Parcel`] and leaves the head *out*; the head
//! comes back through [`Intake::complete`], at once or after the parcel waited; [`Intake::publish`] shows the driver.

use super::chain::{Access, ChainFault, Piece, Walk};
use super::{Ring, RingFault};
use crate::copy;
use crate::frame::{ETHERNET, MAX_FRAME, NetHeader, SHORT_START, START};
use crate::parcel::{ChunkPool, Loan, MAX_PIECES, Parcel};
use crate::stats::DropReason;

/// State of one head.
#[derive(Clone, Copy, Debug)]
struct Out {
    /// Parties that still hold the parcel; 0 when the head is the guest's.
    holders: u8,
    loan: Loan,
}

/// What [`Intake::take`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A parcel, now out.
    Parcel,
    /// A chain that cannot be a frame: it was completed, for this reason.
    Dropped(DropReason),
    /// Nothing to take, or nothing that can be taken before others come back.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub struct Intake {
    ring: Ring,
    out: Box<[Out]>,
    out_count: u16,
    chunks: ChunkPool,
    scratch: Vec<Piece>,
}

impl Intake {
    /// An intake on `ring`.
    pub fn new(ring: Ring) -> Self {
        let size = ring.size();
        Self {
            ring,
            out: vec![Out { holders: 0, loan: Loan::NONE }; usize::from(size)].into_boxed_slice(),
            out_count: 0,
            chunks: ChunkPool::new(size),
            scratch: Vec::with_capacity(MAX_PIECES),
        }
    }

    /// The ring, for arming, publishing and moving.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Heads that are out.
    pub fn out_count(&self) -> u16 {
        self.out_count
    }

    /// Chains that can be taken now, at most the ring size.
    ///
    /// # Errors
    /// [`RingFault::IndexJump`].
    #[inline]
    pub fn look(&mut self) -> Result<u16, RingFault> {
        let left = self.ring.left();
        if left > 0 { Ok(left) } else { self.ring.look() }
    }

    /// Takes the next chain into `parcel` (all fields but `intake` and `source`).
    ///
    /// # Errors
    /// A [`RingFault`] after which the ring must not be used.
    #[inline]
    pub fn take(&mut self, parcel: &mut Parcel) -> Result<Taken, RingFault> {
        if self.ring.left() == 0 {
            return Ok(Taken::Nothing);
        }
        let head = self.ring.head(0)?;
        if self.out[usize::from(head)].holders != 0 {
            return Err(RingFault::HeadTwice);
        }
        let taken = match self.resolve(head) {
            Ok(length) => self.fill(parcel, head, length),
            Err(fault) => Taken::Dropped(DropReason::from(fault)),
        };
        if taken == Taken::Nothing {
            return Ok(taken);
        }
        self.ring.next_available = self.ring.next_available.wrapping_add(1);
        if taken != Taken::Parcel {
            self.ring.complete(head, 0);
        }
        Ok(taken)
    }

    /// Completes the next chain unread: what a ring that is started but disabled owes ("consumed and discarded").
    ///
    /// # Errors
    /// A [`RingFault`] after which the ring must not be used.
    pub fn discard(&mut self) -> Result<bool, RingFault> {
        if self.ring.left() == 0 {
            return Ok(false);
        }
        let head = self.ring.head(0)?;
        if self.out[usize::from(head)].holders != 0 {
            return Err(RingFault::HeadTwice);
        }
        self.ring.next_available = self.ring.next_available.wrapping_add(1);
        self.ring.complete(head, 0);
        Ok(true)
    }

    /// Asks the CPU for the frames that the next `count` takes will read, so that their cache misses overlap. What is read here decides
    /// nothing.
    #[inline]
    pub fn prefetch(&mut self, count: u16) {
        self.ring.prefetch(count, copy::prefetch);
    }

    /// Resolves the chain of `head` into `scratch`; returns its bytes.
    #[inline]
    fn resolve(&mut self, head: u16) -> Result<u32, ChainFault> {
        self.scratch.clear();
        let Ring { split, memory, hint, options, .. } = &mut self.ring;
        let limit = MAX_FRAME + u32::from(options.header_length);
        let mut walk = Walk { ring: split, memory, hint, access: Access::Read, indirect: options.indirect, limit };
        walk.resolve(head, &mut self.scratch)
    }

    /// Copies the headers of the resolved chain of `total` bytes, and notes where the rest lies.
    #[inline]
    fn fill(&mut self, parcel: &mut Parcel, head: u16, total: u32) -> Taken {
        let header_length = u32::from(self.ring.options.header_length);
        if total < header_length + ETHERNET as u32 {
            return Taken::Dropped(DropReason::Runt);
        }
        parcel.length = total - header_length;
        parcel.header = self.copy_header();
        let most = if parcel.header.is_plain() { SHORT_START } else { START } as u32;
        let start_length = parcel.length.min(most);
        self.copy_start(parcel, header_length, start_length);
        parcel.start_length = start_length as u8;
        parcel.head = head;
        parcel.segments_done = 0;
        let Ok(loan) = parcel.set_rest(&self.scratch, header_length + start_length, &mut self.chunks) else {
            // The pool holds at least one frame's worth, so others are out and will bring chunks back.
            return Taken::Nothing;
        };
        self.out[usize::from(head)] = Out { holders: 1, loan };
        self.out_count += 1;
        Taken::Parcel
    }

    /// The virtio-net header, however it is split; the chain is long enough.
    #[inline]
    fn copy_header(&self) -> NetHeader {
        let mut bytes = [0; NetHeader::SIZE];
        let length = usize::from(self.ring.options.header_length);
        gather(&self.scratch, 0, &mut bytes[..length]);
        NetHeader::from_bytes(bytes)
    }

    #[inline]
    fn copy_start(&self, parcel: &mut Parcel, skip: u32, length: u32) {
        gather(&self.scratch, skip, &mut parcel.start[..length as usize]);
    }

    /// Adds a holder to a parcel that is out: a copy of it went to another worker.
    pub fn hold(&mut self, head: u16) {
        let out = &mut self.out[usize::from(head)];
        out.holders = out.holders.saturating_add(1);
    }

    /// One holder is done with the parcel of `head`; the last one completes the chain.
    #[inline]
    pub fn complete(&mut self, head: u16) {
        let out = &mut self.out[usize::from(head)];
        out.holders = out.holders.saturating_sub(1);
        if out.holders > 0 {
            return;
        }
        let loan = std::mem::replace(&mut out.loan, Loan::NONE);
        if loan != Loan::NONE {
            self.chunks.give_back(loan);
        }
        self.out_count = self.out_count.saturating_sub(1);
        self.ring.complete(head, 0);
    }

    /// Shows the driver what came back; calls it if it asks for that.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        self.ring.publish()
    }
}

/// Copies `to.len()` bytes that begin `skip` bytes into `pieces`, which hold at least so many, each byte once.
#[inline]
fn gather(pieces: &[Piece], skip: u32, to: &mut [u8]) {
    if let Some(first) = pieces.first()
        && skip as usize + to.len() <= first.length as usize
    {
        // SAFETY: the range lies inside the first piece, which the memory map keeps readable; `to` is ours.
        unsafe { copy::copy(to.as_mut_ptr(), first.place.add(skip as usize), to.len()) };
        return;
    }
    gather_slowly(pieces, skip, to);
}

#[cold]
fn gather_slowly(pieces: &[Piece], skip: u32, to: &mut [u8]) {
    let mut skip = skip as usize;
    let mut done = 0;
    for piece in pieces {
        let length = piece.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        let run = (length - skip).min(to.len() - done);
        // SAFETY: `skip + run` is at most the piece's length; `done + run` at most that of `to`.
        unsafe { copy::copy(to.as_mut_ptr().add(done), piece.place.add(skip), run) };
        done += run;
        skip = 0;
        if done == to.len() {
            return;
        }
    }
}
