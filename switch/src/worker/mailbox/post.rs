//! Post: what others put down for one to collect, and the flag by which he sees at a glance that there is some.

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
pub struct Post<T> {
    items: Mutex<Vec<T>>,
    any: AtomicBool,
}

impl<T> Default for Post<T> {
    fn default() -> Self {
        Self { items: Mutex::new(Vec::new()), any: AtomicBool::new(false) }
    }
}

impl<T> Post<T> {
    /// Puts `item` down. Whoever collects may be asleep: he is to be woken after this.
    pub fn put(&self, item: T) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).push(item);
        self.any.store(true, Ordering::Release);
    }

    /// True if there is something to collect.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes all that was put down, in order.
    pub fn collect(&self) -> Vec<T> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *items)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::handover::Sleep;

    /// Two put something down while the third works, falls asleep, and is woken: each item is collected once, and none while he sleeps on.
    #[test]
    fn what_is_put_down_is_collected_or_wakes_the_sleeper() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = Arc::new((Post::default(), Sleep::default(), AtomicBool::new(false)));
            let givers = [1, 2].map(|item| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (post, sleep, bell) = &*shared;
                    post.put(item);
                    if sleep.must_wake() {
                        bell.store(true, Ordering::Release);
                    }
                })
            });
            let (post, sleep, bell) = &*shared;
            let mut collected = Vec::new();
            // As a worker's loop goes: what is there is collected; else it says that it sleeps, looks once more, and sleeps.
            let mut asleep = false;
            for _ in 0..2 {
                if post.has_any() {
                    collected.extend(post.collect());
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
            let left = post.collect();
            if asleep && !left.is_empty() {
                assert!(bell.load(Ordering::Acquire), "it would sleep on its post");
            }
            collected.extend(left);
            collected.sort_unstable();
            assert_eq!(collected, [1, 2], "each once");
        });
    }
}
