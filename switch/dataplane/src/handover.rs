//! Inter-worker queue: bounded, lock-free, with one producer and one consumer; and the flag that tells whether the other worker
//! sleeps.
//!
//! The producer owns the tail, the consumer the head; each keeps a copy of the other's position and reads the real one only when
//! the copy says full or empty, so that the cache lines stay in place while there is room. `cargo test` runs it; under `make loom`
//! every interleaving of its atomics is explored.

#![expect(unsafe_code, reason = "a queue between two threads without locks")]
#![expect(clippy::indexing_slicing, reason = "a queue's capacity is checked where it is made, and positions are taken modulo it")]

use std::mem::MaybeUninit;

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

/// Like loom's: access to the content goes through a closure.
#[cfg(not(loom))]
#[derive(Debug)]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A position on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Position(AtomicUsize);

#[derive(Debug)]
struct Queue<T> {
    /// Next position to write; positions grow without bound and wrap with the type.
    tail: Position,
    /// Next position to read.
    head: Position,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is accessed by the producer before `tail` passes it and by the consumer after; never by both.
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Queue<T> {}

/// The writing end.
#[derive(Debug)]
pub struct Producer<T> {
    queue: Arc<Queue<T>>,
    tail: usize,
    seen_head: usize,
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer<T> {
    queue: Arc<Queue<T>>,
    head: usize,
    seen_tail: usize,
}

/// A queue for `capacity` items, a power of two.
///
/// # Panics
/// If `capacity` is not a power of two.
pub fn queue<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "a hand-over queue holds a power of two items");
    let slots = std::iter::repeat_with(|| UnsafeCell::new(MaybeUninit::uninit())).take(capacity).collect();
    let queue = Arc::new(Queue { tail: Position(AtomicUsize::new(0)), head: Position(AtomicUsize::new(0)), slots });
    (Producer { queue: Arc::clone(&queue), tail: 0, seen_head: 0 }, Consumer { queue, head: 0, seen_tail: 0 })
}

impl<T: Send> Producer<T> {
    /// True if there is no room.
    pub fn is_full(&mut self) -> bool {
        self.tail.wrapping_sub(self.seen_head) >= self.queue.slots.len() && self.untaken() >= self.queue.slots.len()
    }

    /// Items that the consumer has not taken yet.
    pub fn untaken(&mut self) -> usize {
        self.seen_head = self.queue.head.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.seen_head)
    }

    /// Appends `item`; it is visible to the consumer at once.
    ///
    /// # Errors
    /// The item comes back when there is no room.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let slot = &self.queue.slots[self.tail & (self.queue.slots.len() - 1)];
        // SAFETY: the consumer is past this slot's last item and cannot see the new one before the store below.
        slot.with_mut(|place| unsafe { (*place).write(item) });
        self.tail = self.tail.wrapping_add(1);
        self.queue.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl<T: Send> Consumer<T> {
    /// True if there is nothing to take.
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.seen_tail {
            self.seen_tail = self.queue.tail.0.load(Ordering::Acquire);
        }
        self.head == self.seen_tail
    }

    /// Takes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let slot = &self.queue.slots[self.head & (self.queue.slots.len() - 1)];
        // SAFETY: the producer filled this slot before its tail passed it, and does not touch it before the store below.
        let item = slot.with(|place| unsafe { (*place).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        self.queue.head.0.store(self.head, Ordering::Release);
        Some(item)
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (self.head.0.load(Ordering::Acquire), self.tail.0.load(Ordering::Acquire));
        while head != tail {
            let slot = &self.slots[head & (self.slots.len() - 1)];
            // SAFETY: both ends are gone; items between head and tail were written and not read.
            slot.with_mut(|place| unsafe { (*place).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// Shows other threads whether a worker sleeps, so that they wake it only then.
///
/// The sleeper calls [`Self::announce`], checks once more for work, and then either sleeps or calls [`Self::cancel`]. A thread that
/// gives it work calls [`Self::must_wake`] after that. At least one of the two sees the other.
#[derive(Debug, Default)]
pub struct Sleep {
    asleep: AtomicBool,
}

impl Sleep {
    /// Announces that the caller is about to sleep; it must check for work after this.
    pub fn announce(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the caller is awake.
    pub fn cancel(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// True, once a sleep, if the sleeper must be woken for work that was given to it before this call.
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn items_arrive_once_and_in_order() {
        let (mut producer, mut consumer) = queue(8);
        let sender = std::thread::spawn(move || {
            for n in 0..100_000_u64 {
                let mut item = n;
                while let Err(back) = producer.push(item) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        for expected in 0..100_000 {
            let item = loop {
                if let Some(item) = consumer.pop() {
                    break item;
                }
                std::thread::yield_now();
            };
            assert_eq!(item, expected);
        }
        sender.join().unwrap();
        assert!(consumer.is_empty());
    }

    #[test]
    fn what_is_left_is_dropped() {
        let item = Arc::new(());
        let (mut producer, consumer) = queue(4);
        producer.push(Arc::clone(&item)).unwrap();
        producer.push(Arc::clone(&item)).unwrap();
        drop((producer, consumer));
        assert_eq!(Arc::strong_count(&item), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn every_interleaving_keeps_order_and_loses_nothing() {
        loom::model(|| {
            let (mut producer, mut consumer) = queue(2);
            let sender = loom::thread::spawn(move || {
                for n in 0..3 {
                    let mut item = n;
                    while let Err(back) = producer.push(item) {
                        item = back;
                        loom::thread::yield_now();
                    }
                }
            });
            for expected in 0..3 {
                let item = loop {
                    match consumer.pop() {
                        Some(item) => break item,
                        None => loom::thread::yield_now(),
                    }
                };
                assert_eq!(item, expected);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn work_given_to_a_sleeper_is_seen_or_wakes_it() {
        loom::model(|| {
            let sleep = Arc::new(Sleep::default());
            let (mut producer, mut consumer) = queue(2);
            let theirs = Arc::clone(&sleep);
            let giver = loom::thread::spawn(move || {
                producer.push(1).unwrap();
                theirs.must_wake()
            });
            sleep.announce();
            let saw = consumer.pop().is_some();
            let woken = giver.join().unwrap();
            assert!(saw || woken, "the worker would sleep on work");
        });
    }
}
