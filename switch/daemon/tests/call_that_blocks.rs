//! A front end that makes its call descriptor block stops its own port, not the worker. Nor does one that makes interrupts slow:
//! the interrupt circuit breaker bounds their time.

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::*;
use memlane::port::PortState;
use memlane::time::{duration, thread_time};
use memlane_rig::guest::ToyGuest;
use memlane_rig::ring::Interrupts;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// Makes a guest's call descriptor of the receive queue block the thread that sends an interrupt.
fn make_calls_block(villain: &mut ToyGuest) {
    let queue = &mut villain.pair(0).receive.queue;
    let descriptor = queue.call.fd().unwrap();
    queue.call.drain();
    // SAFETY: plain system calls on a descriptor that the guest keeps open.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        assert_eq!(libc::fcntl(descriptor, libc::F_SETFL, flags & !libc::O_NONBLOCK), 0);
        let most = u64::MAX - 1;
        assert_eq!(libc::write(descriptor.as_raw_fd(), (&raw const most).cast(), 8), 8);
    }
    queue.ring.set_interrupts(Interrupts::Next);
}

#[test]
fn a_full_eventfd_made_blocking_costs_only_its_own_port() {
    let bed = Bed::new(3);
    let (mut villain, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    announce(&mut [&mut villain, &mut b, &mut c]);
    make_calls_block(&mut villain);
    b.send(&frame(mac(1), mac(0), 60, 1)).unwrap();
    let sent = frame(mac(1), mac(2), 60, 2);
    b.send(&sent).unwrap();
    assert_eq!(c.receive(TIMEOUT).unwrap().bytes, sent);
    b.send(&frame(mac(1), mac(0), 60, 3)).unwrap();
    bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(_)), "the port is quarantined");
    b.send(&sent).unwrap();
    // A frame for the villain is flooded if it was sent after its port was closed.
    while c.receive(TIMEOUT).unwrap().bytes != sent {}
}

#[test]
fn after_a_call_that_blocked_the_calls_of_a_port_wait_whoever_comes() {
    let bed = Bed::new(2);
    let (mut villain, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut villain, &mut b]);
    make_calls_block(&mut villain);
    b.send(&frame(mac(1), mac(0), 60, 1)).unwrap();
    bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(_)), "the port is quarantined");
    drop(villain);
    // The villain comes back with a call descriptor that blocks: the switch sends no interrupts.
    let mut villain = bed.guest(0);
    villain.send(&frame(mac(0), BROADCAST, 60, 2)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), BROADCAST, 60, 2));
    make_calls_block(&mut villain);
    let delivered = bed.totals(0).receive_frames;
    b.send(&frame(mac(1), mac(0), 60, 3)).unwrap();
    bed.wait_for(|bed| bed.totals(0).receive_frames > delivered, "it has its frame");
    b.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.state(0), PortState::Running);
    drop(villain);
    // An honest guest at that port gets its interrupts late, but gets them.
    let mut honest = bed.guest(0);
    let queue = &mut honest.pair(0).receive.queue;
    queue.ring.set_interrupts(Interrupts::Next);
    queue.call.drain();
    let calls = bed.totals(0).interrupts;
    let delivered = bed.totals(0).receive_frames;
    while bed.totals(0).receive_frames == delivered {
        // Until its receive queue has started.
        b.wait_sent(TIMEOUT).unwrap();
        b.send(&frame(mac(1), BROADCAST, 60, 4)).unwrap();
        std::thread::sleep(POLL_INTERVAL);
    }
    bed.wait_for(|bed| bed.totals(0).interrupts > calls, "the call that was kept is made");
    assert!(honest.pair(0).receive.queue.call.drain() > 0);
}

/// Copies of a call descriptor, and epoll instances, each of which watches all of them.
type Hung = (Vec<OwnedFd>, Vec<Epoll>);

/// CPU time of an interrupt of a guest's receive queue, the least of some.
fn cost_of_call(guest: &mut ToyGuest) -> Duration {
    let call = &guest.pair(0).receive.queue.call;
    let one = (0..3).map(|_| {
        let begun = thread_time();
        call.ring().unwrap();
        thread_time() - begun
    });
    duration(one.min().unwrap())
}

/// Hangs so much on the call descriptor of a guest's receive queue that each interrupt takes milliseconds; how long, too.
fn make_interrupts_slow(villain: &mut ToyGuest) -> (Hung, Duration) {
    const COPIES: usize = 300;
    let call = &villain.pair(0).receive.queue.call;
    let copies: Vec<OwnedFd> = (0..COPIES).map(|_| call.waitable().unwrap().try_clone_to_owned().unwrap()).collect();
    let mut watchers = Vec::new();
    for _ in 0..1000 {
        let watcher = Epoll::new(EpollCreateFlags::empty()).unwrap();
        for copy in &copies {
            watcher.add(copy, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
        }
        watchers.push(watcher);
        let one = cost_of_call(villain);
        if one > Duration::from_millis(3) {
            return ((copies, watchers), one);
        }
    }
    panic!("calls are not expensive, whatever hangs on them");
}

#[test]
fn what_hangs_on_the_calls_of_a_port_takes_a_small_part_of_the_time() {
    const SPAN: Duration = Duration::from_secs(2);
    let bed = Bed::new(3);
    let (mut villain, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    announce(&mut [&mut villain, &mut b, &mut c]);
    let (_hung, before) = make_interrupts_slow(&mut villain);
    let (begun, calls_before) = (Instant::now(), bed.totals(0).interrupts);
    while begun.elapsed() < SPAN {
        villain.pair(0).receive.queue.ring.set_interrupts(Interrupts::Next);
        b.send(&frame(mac(1), mac(0), 60, 1)).unwrap();
        let sent = frame(mac(1), mac(2), 60, 2);
        b.send(&sent).unwrap();
        assert_eq!(c.receive(TIMEOUT).unwrap().bytes, sent);
        while villain.try_receive().unwrap().is_some() {}
    }
    let calls = bed.totals(0).interrupts - calls_before;
    assert!(calls > 0, "the villain is called at all");
    // A call costs less when the processor is fast again.
    let one = before.min(cost_of_call(&mut villain));
    // The debt that the interrupt circuit breaker allows, and a slow interrupt that it forgives, come on top.
    assert!(one * (calls as u32) < SPAN / 8 + 3 * one, "{calls} calls of {one:?}");
    assert_eq!(bed.state(0), PortState::Running);
}
