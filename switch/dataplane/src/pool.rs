//! Buffers for frames of senders without shared memory: all ports take them from one pool, which takes the memory from the
//! [`Budget`].

use std::sync::{Arc, Mutex, PoisonError};

use crate::budget::{Account, Budget, Permit};
use crate::frame::{MAX_FRAME, NetHeader};

/// Bytes of a buffer: a frame of any length.
pub const BUFFER: usize = NetHeader::SIZE + MAX_FRAME as usize;

type Bytes = Box<[u8]>;

/// A buffer, with its permit. The buffer that each port keeps for good has none.
#[derive(Debug)]
pub struct Room {
    /// Bytes of the chunk.
    pub bytes: Bytes,
    permit: Option<Permit>,
}

/// The pool of all ports.
#[derive(Debug)]
pub struct Pool {
    budget: Arc<Budget>,
    /// Unused buffers, kept for reuse; their memory is not part of the budget.
    spare: Mutex<Vec<Bytes>>,
    most_spare: usize,
}

impl Pool {
    /// A pool that takes its memory from `budget` and keeps up to `spare` bytes beside it.
    pub fn new(budget: Arc<Budget>, spare: u64) -> Self {
        let most_spare = spare as usize / BUFFER;
        Self { budget, spare: Mutex::new(Vec::with_capacity(most_spare)), most_spare }
    }

    fn pop(&self) -> Bytes {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice())
    }

    fn push(&self, bytes: Bytes) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < self.most_spare {
            spare.push(bytes);
        }
    }
}

/// A port's quota of the [`Pool`].
#[derive(Debug)]
pub struct Share {
    pool: Arc<Pool>,
    account: Arc<Account>,
}

impl Share {
    /// A quota of which nothing is used.
    pub fn new(pool: Arc<Pool>) -> Self {
        let account = Account::new(&pool.budget);
        Self { pool, account }
    }

    /// The buffer that every port has, independent of the others.
    pub fn own(&self) -> Room {
        Room { bytes: self.pool.pop(), permit: None }
    }

    /// Another buffer, if the port may have one.
    pub fn take(&self) -> Option<Room> {
        let permit = self.account.take(BUFFER as u64)?;
        Some(Room { bytes: self.pool.pop(), permit: Some(permit) })
    }

    /// Returns a buffer; the port's own stays with it.
    pub fn give_back(&self, room: Room) -> Option<Room> {
        if room.permit.is_none() {
            return Some(room);
        }
        self.pool.push(room.bytes);
        None
    }

    /// Buffers that could be taken now.
    pub fn quota(&self) -> usize {
        self.account.quota() as usize / BUFFER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_buffer_for_good_and_shares_the_others() {
        let budget = Budget::new(8 * BUFFER as u64);
        let pool = Arc::new(Pool::new(Arc::clone(&budget), 2 * BUFFER as u64));
        let (one, other) = (Share::new(Arc::clone(&pool)), Share::new(Arc::clone(&pool)));
        let own = one.own();
        let rooms: Vec<_> = std::iter::from_fn(|| one.take()).collect();
        assert_eq!((rooms.len(), other.quota()), (4, 2));
        assert!(other.take().is_some(), "and is dropped at once");
        for room in rooms {
            assert!(one.give_back(room).is_none());
        }
        assert!(one.give_back(own).is_some(), "its own stays");
        assert_eq!(budget.left(), budget.most());
        assert_eq!(pool.spare.lock().unwrap().len(), 2, "no more are kept");
    }
}
