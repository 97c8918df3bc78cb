//! Post: a queue that many threads fill and one collects, with a flag that shows without a lock whether it holds items.

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Post<T> {
    /// `None` once it is closed.
    items: Mutex<Option<Vec<T>>>,
    any: AtomicBool,
}

impl<T> Default for Post<T> {
    fn default() -> Self {
        Self { items: Mutex::new(Some(Vec::new())), any: AtomicBool::new(false) }
    }
}

impl<T> Post<T> {
    /// Puts `item` down; it is dropped if the post is closed. The collecting worker may be asleep: wake it after this.
    pub(super) fn put(&self, item: T) {
        let refused = match &mut *self.items.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(items) => {
                items.push(item);
                None
            }
            None => Some(item),
        };
        self.any.store(true, Ordering::Release);
        // Dropped without the lock: the item's `Drop` may notify other threads.
        drop(refused);
    }

    /// Drops the items that were not collected, and all that are put down from now on. The collecting worker may be asleep, as in
    /// [`Self::put`].
    pub(super) fn close(&self) {
        let left = self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.any.store(true, Ordering::Release);
        drop(left);
    }

    /// True if there is something to collect.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes all items, in order; `None` if the post is closed.
    pub(super) fn collect(&self) -> Option<Vec<T>> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(items.is_none(), Ordering::Relaxed);
        items.as_mut().map(std::mem::take)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::handover::Sleep;

    /// Two threads put items down while the third works, falls asleep, and is woken: each item is collected once, and none lies
    /// there while the third sleeps on.
    #[test]
    fn what_is_put_down_is_collected_or_wakes_the_sleeper() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = Arc::new((Post::default(), Sleep::default(), AtomicBool::new(false)));
            let givers = [1, 2].map(|item| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (post, sleep, wake_up) = &*shared;
                    post.put(item);
                    if sleep.must_wake() {
                        wake_up.store(true, Ordering::Release);
                    }
                })
            });
            let (post, sleep, wake_up) = &*shared;
            let mut collected = Vec::new();
            // The thread does what a worker's loop does: collect if there are items; else announce sleep, check once more, and sleep.
            let mut asleep = false;
            for _ in 0..2 {
                if post.has_any() {
                    collected.extend(post.collect().unwrap_or_default());
                } else {
                    sleep.announce();
                    asleep = !post.has_any();
                    if asleep {
                        break;
                    }
                    sleep.cancel();
                }
            }
            givers.into_iter().for_each(|giver| giver.join().unwrap());
            let left = post.collect().unwrap_or_default();
            if asleep && !left.is_empty() {
                assert!(wake_up.load(Ordering::Acquire), "it would sleep on its post");
            }
            collected.extend(left);
            collected.sort_unstable();
            assert_eq!(collected, [1, 2], "each once");
        });
    }

    /// One thread puts an item down while another closes: the item is dropped, whichever comes first, and the collector learns of
    /// the end.
    #[test]
    fn nothing_lies_in_a_post_that_is_closed() {
        loom::model(|| {
            let post = Arc::new(Post::default());
            let item = Arc::new(());
            let givers = [Some(Arc::clone(&item)), None].map(|item| {
                let post = Arc::clone(&post);
                thread::spawn(move || match item {
                    Some(item) => post.put(item),
                    None => post.close(),
                })
            });
            givers.into_iter().for_each(|giver| giver.join().unwrap());
            assert!(post.has_any() && post.collect().is_none(), "the collector learns of it");
            assert_eq!(Arc::strong_count(&item), 1, "nothing is kept");
        });
    }
}
