//! Publication to all workers: an action that waits until each of them has run a command, so that none still takes a frame by the state that was published
//! before. DNS answers wait so for the grants of their addresses ([`crate::policy::grants`]).

#[cfg(loom)]
use loom::sync::Arc;
#[cfg(not(loom))]
use std::sync::Arc;

type Action = Box<dyn FnOnce() + Send>;

/// An action, run when the last copy of its reference is dropped.
struct AtLast(Option<Action>);

impl Drop for AtLast {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|action| action());
    }
}

/// Has each of `workers` run a command by `order`, and then runs `action`: in the thread of the worker that runs its own last, or of the caller. A
/// worker that drops the command, because it has ended, counts as one that has run it.
pub(crate) fn when_all<W>(
    workers: impl Iterator<Item = W>,
    order: impl Fn(W, Box<dyn FnOnce() + Send>),
    action: impl FnOnce() + Send + 'static,
) {
    // Mutex: the reference is shared, and only the last holder takes the action.
    let last = Arc::new(std::sync::Mutex::new(AtLast(Some(Box::new(action)))));
    for worker in workers {
        let copy = Arc::clone(&last);
        order(worker, Box::new(move || drop(copy)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_action_comes_after_the_last_worker() {
        let (count, mut commands) = (Arc::new(AtomicUsize::new(0)), Vec::new());
        let ran = Arc::clone(&count);
        let queue = std::sync::Mutex::new(&mut commands);
        when_all(
            0..3,
            |_, command| queue.lock().unwrap().push(command),
            move || {
                ran.fetch_add(1, Ordering::Relaxed);
            },
        );
        assert_eq!(commands.len(), 3);
        commands.pop().unwrap()();
        // One worker has ended.
        drop(commands.pop());
        assert_eq!(count.load(Ordering::Relaxed), 0);
        commands.pop().unwrap()();
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

/// The answer of a resolver, the grants and the worker of a guest, in every order.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::net::IpAddr;

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use super::*;
    use crate::policy::grants::Grants;
    use crate::post::Post;

    const RULE: u64 = 7;
    const NOW: u32 = 100;
    const TIME: u32 = 60;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// The transmit queue of a guest at its worker: whether the guest sent a frame to the address, and the verdict on the frame before.
    struct Queue {
        seen: u32,
        kept: Option<bool>,
    }

    impl Queue {
        /// A service quantum of up to two frames, as `Turn::run`; tells the verdicts.
        fn turn(&mut self, grants: &Grants, sent: &AtomicBool) -> Vec<bool> {
            if grants.have_changed(&mut self.seen) {
                self.kept = None;
            }
            let take = |_| {
                sent.swap(false, Ordering::AcqRel).then(|| *self.kept.get_or_insert_with(|| grants.allows(address(7), RULE, NOW)))
            };
            (0..2).filter_map(take).collect()
        }
    }

    /// The guest was refused once, asks, and sends as soon as it has the answer, by a queue of a worker that is amid a service quantum.
    fn an_answer_and_a_frame(waits: bool) {
        loom::model(move || {
            let grants = Arc::new(Grants::default());
            let posts = Arc::new([Post::<Box<dyn FnOnce() + Send>>::default()]);
            let (answered, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (theirs, post, answer) = (Arc::clone(&grants), Arc::clone(&posts), Arc::clone(&answered));
            let responder = thread::spawn(move || {
                theirs.grant(&"api.example.org".into(), &[(address(7), TIME)], &[RULE], NOW);
                let place = move || answer.store(true, Ordering::Release);
                match waits {
                    true => when_all(post.iter(), |post, command| post.put(command), place),
                    false => place(),
                }
            });
            let (theirs, frame) = (Arc::clone(&grants), Arc::clone(&sent));
            let worker = thread::spawn(move || {
                let mut queue = Queue { seen: 0, kept: Some(false) };
                for _ in 0..2 {
                    if posts[0].has_any() {
                        posts[0].collect().into_iter().flatten().for_each(|command| command());
                    }
                    let verdicts = queue.turn(&theirs, &frame);
                    assert!(verdicts.into_iter().all(|allowed| allowed), "a connection is refused because the rule came late");
                }
            });
            if answered.load(Ordering::Acquire) {
                sent.store(true, Ordering::Release);
            }
            responder.join().unwrap();
            worker.join().unwrap();
        });
    }

    #[test]
    fn no_allowed_connection_is_refused_because_its_rule_came_late() {
        an_answer_and_a_frame(true);
    }

    #[test]
    #[should_panic(expected = "because the rule came late")]
    fn without_the_wait_one_would_be() {
        an_answer_and_a_frame(false);
    }

    /// The only entry of a table passes from an address after its time to another one, while a worker judges frames to both.
    #[test]
    fn no_frame_leaves_for_an_address_that_was_not_given() {
        loom::model(|| {
            let grants = Arc::new(Grants::default());
            grants.grant(&"api.example.org".into(), &[(address(7), TIME)], &[RULE], NOW);
            let theirs = Arc::clone(&grants);
            let later = NOW + TIME + crate::policy::grants::EXTENSION + 1;
            let responder = thread::spawn(move || {
                theirs.grant(&"api.example.org".into(), &[(address(8), TIME)], &[RULE], later);
            });
            assert!(!grants.allows(address(7), RULE, later) && !grants.allows(address(9), RULE, later));
            assert!(!grants.allows(address(8), RULE + 1, later));
            responder.join().unwrap();
            assert!(grants.allows(address(8), RULE, later) && !grants.allows(address(7), RULE, later));
        });
    }
}
