//! The back end's side of a shared ring of one page (`xen/include/public/io/ring.h`).
//!
//! The front end writes requests; the back end takes them in order and writes **responses**, in order too, each over the request
//! in the slot of the same number. So the number of responses says where service stands: after a crash of this process, the next
//! back end resumes there.

use super::layer::Mapped;
use super::netif::{Fault, RING};
use crate::memory::Iovec;
use crate::ring::full_fence;

/// Offsets of the ring's indices: the front end's request index, the index at which it is to notify us, our response index, the
/// index at which we are to notify it; then the slots.
const REQUESTS: u32 = 0;
const TELL_BACK: u32 = 4;
const ANSWERS: u32 = 8;
const TELL_FRONT: u32 = 12;
const PLACES: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct BackRing {
    /// Keeps `whole` mapped.
    _page: Box<dyn Mapped>,
    whole: Iovec,
    /// Bytes of a slot.
    place: u32,
    /// Requests taken from the ring.
    taken: u32,
    /// Responses written.
    answered: u32,
    /// Responses published to the front end.
    shown: u32,
}

impl BackRing {
    /// The ring in `page`, with slots of so many bytes. It resumes where the last back end stopped.
    pub(super) fn new(page: Box<dyn Mapped>, place: usize) -> Self {
        let whole = page.page().iovec();
        let ring = Self { _page: page, whole, place: place as u32, taken: 0, answered: 0, shown: 0 };
        let begin = ring.load(ANSWERS);
        Self { taken: begin, answered: begin, shown: begin, ..ring }
    }

    fn at(&self, offset: u32) -> Iovec {
        self.whole.skip(offset)
    }

    fn load(&self, offset: u32) -> u32 {
        self.at(offset).load_number().unwrap_or_default()
    }

    fn place(&self, number: u32) -> Iovec {
        self.at(PLACES + number % RING * self.place).first(self.place)
    }

    /// Requests that can be taken.
    ///
    /// # Errors
    /// The request index is one that the front end cannot have reached.
    pub(super) fn waiting(&self) -> Result<u32, Fault> {
        let all = self.load(REQUESTS).wrapping_sub(self.answered);
        let waiting = all.checked_sub(self.taken.wrapping_sub(self.answered));
        waiting.filter(|_| all <= RING).ok_or(Fault::IndexJump)
    }

    /// Whether there is any request to be taken.
    pub(super) fn has_requests(&self) -> bool {
        self.load(REQUESTS) != self.taken
    }

    /// Takes the next request; the caller has checked that there is one.
    pub(super) fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let request = self.place(self.taken).few();
        self.taken = self.taken.wrapping_add(1);
        request
    }

    /// Asks for a notification once there are `count` requests, at least one; true if there are so many already.
    pub(super) fn arm(&self, count: u32) -> bool {
        self.at(TELL_BACK).store_number(self.taken.wrapping_add(count));
        full_fence();
        self.load(REQUESTS).wrapping_sub(self.taken) >= count
    }

    /// Writes the response to the oldest request without one.
    pub(super) fn answer<const BYTES: usize>(&mut self, answer: &[u8; BYTES]) {
        self.place(self.answered).write_few(answer);
        self.answered = self.answered.wrapping_add(1);
    }

    /// Publishes the responses; true if the front end asked for a notification.
    pub(super) fn publish(&mut self) -> bool {
        if self.shown == self.answered {
            return false;
        }
        let before = std::mem::replace(&mut self.shown, self.answered);
        self.at(ANSWERS).store_number(self.answered);
        full_fence();
        self.answered.wrapping_sub(self.load(TELL_FRONT)) < self.answered.wrapping_sub(before)
    }
}
