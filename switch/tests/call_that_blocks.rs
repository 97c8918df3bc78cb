//! A front end that makes its call descriptor block stops its own port, not the worker.

mod common;

use std::os::fd::AsRawFd;

use common::*;
use memlane::port::State;
use memlane_rig::ring::Interrupts;

#[test]
fn a_full_eventfd_made_blocking_costs_only_its_own_port() {
    let bed = Bed::new(3);
    let (mut villain, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    announce(&mut [&mut villain, &mut b, &mut c]);
    let queue = &mut villain.pair(0).delivery.queue;
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
    b.send(&frame(mac(1), mac(0), 60, 1)).unwrap();
    let sent = frame(mac(1), mac(2), 60, 2);
    b.send(&sent).unwrap();
    assert_eq!(c.receive(PATIENCE).unwrap().bytes, sent);
    b.send(&frame(mac(1), mac(0), 60, 3)).unwrap();
    bed.wait_for(|bed| matches!(bed.state(0), State::Quarantined(_)), "the port is quarantined");
    b.send(&sent).unwrap();
    // What was for the villain is flooded if it was sent after its port was closed.
    while c.receive(PATIENCE).unwrap().bytes != sent {}
}
