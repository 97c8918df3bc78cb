//! A worker that fails ends its network, and commands that wait for it return.

use std::sync::mpsc::channel;

use crate::common::*;

/// The sender's frames wait at the worker that fails, so its ring would never be empty; every request to the network returns.
#[test]
fn who_waits_for_a_worker_that_fails_is_told() {
    let mut bed = Bed::with("workers = 2\nstall-timeout-ms = 60000", &["", ""]);
    let mut sender = bed.guest(0);
    let mut receiver = bed.guest_with_four_buffers(1);
    announce(&mut [&mut sender, &mut receiver]);
    for number in 0..8 {
        sender.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.totals(1).waiting == 5, "frames wait");
    let (notify, notified) = channel();
    let network = bed.daemon().network();
    network.fatal().notify(move || notify.send(()).unwrap());
    assert!(network.fatal().cause().is_none());
    let answer = network.order(1, |_| panic!("on purpose"));
    assert!(answer.recv_timeout(TIMEOUT).is_err(), "there is no answer, and none is waited for");
    notified.recv_timeout(TIMEOUT).unwrap();
    let cause = network.fatal().cause().unwrap();
    assert!(cause.starts_with("worker 1 failed: on purpose at ") && !cause.contains('\n'), "{cause}");
    let (tell, over) = channel();
    std::thread::scope(|scope| {
        let bed = &bed;
        scope.spawn(move || {
            // The other worker would wait for the sender's frames in flight.
            bed.daemon().detach("p0").unwrap();
            tell.send(()).unwrap();
        });
        over.recv_timeout(TIMEOUT).expect("a port is detached");
    });
    let (tell, over) = channel();
    std::thread::spawn(move || {
        bed.stop();
        tell.send(()).unwrap();
    });
    over.recv_timeout(TIMEOUT).expect("the network is shutting down");
}
