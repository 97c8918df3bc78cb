//! The back end's side of a shared ring of one page (`xen/include/public/io/ring.h`).
//!
//! The front end puts requests, we take them in order and put **answers**, in order too, each over the request whose place has the same number.
//! So what was answered is a run from the ring's beginning, and whoever serves the ring next, after this process died, goes on there.

use super::layer::Mapped;
use super::netif::{Fault, RING};
use crate::memory::Piece;
use crate::ring::full_fence;

/// Where the page has its numbers: the front end's index, when it wants us told, ours, when we want it told; then the places.
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
    whole: Piece,
    /// Bytes of a place.
    place: u32,
    /// Requests taken.
    taken: u32,
    /// Answers written.
    answered: u32,
    /// Answers that the front end was shown.
    shown: u32,
}

impl BackRing {
    /// The ring in `page`, with places of so many bytes. It goes on where it was left.
    pub(super) fn new(page: Box<dyn Mapped>, place: usize) -> Self {
        let whole = page.page().piece();
        let ring = Self { _page: page, whole, place: place as u32, taken: 0, answered: 0, shown: 0 };
        let begin = ring.load(ANSWERS);
        Self { taken: begin, answered: begin, shown: begin, ..ring }
    }

    fn at(&self, offset: u32) -> Piece {
        self.whole.skip(offset)
    }

    fn load(&self, offset: u32) -> u32 {
        self.at(offset).load_number().unwrap_or_default()
    }

    fn place(&self, number: u32) -> Piece {
        self.at(PLACES + number % RING * self.place).first(self.place)
    }

    /// Requests that can be taken.
    ///
    /// # Errors
    /// The index is none that the front end can have come to.
    pub(super) fn waiting(&self) -> Result<u32, Fault> {
        let all = self.load(REQUESTS).wrapping_sub(self.answered);
        let waiting = all.checked_sub(self.taken.wrapping_sub(self.answered));
        waiting.filter(|_| all <= RING).ok_or(Fault::IndexJump)
    }

    /// Whether there is any request to be taken.
    pub(super) fn has_requests(&self) -> bool {
        self.load(REQUESTS) != self.taken
    }

    /// Takes the next request, of which there is one.
    pub(super) fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let request = self.place(self.taken).few();
        self.taken = self.taken.wrapping_add(1);
        request
    }

    /// Asks to be told once there are `count` requests, at least one; true if there are so many already.
    pub(super) fn arm(&self, count: u32) -> bool {
        self.at(TELL_BACK).store_number(self.taken.wrapping_add(count));
        full_fence();
        self.load(REQUESTS).wrapping_sub(self.taken) >= count
    }

    /// Answers the oldest request that was not answered.
    pub(super) fn answer<const BYTES: usize>(&mut self, answer: &[u8; BYTES]) {
        self.place(self.answered).write_few(answer);
        self.answered = self.answered.wrapping_add(1);
    }

    /// Shows the front end the answers; true if it is to be told.
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
