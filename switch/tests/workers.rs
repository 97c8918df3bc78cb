//! What several workers do with each other's frames.

mod crew;

use crew::Crew;
use memlane::settings::Settings;
use memlane::stats::DropReason;

#[test]
fn a_frame_on_its_way_to_another_worker_never_reaches_who_has_the_slot_by_then() {
    let mut crew = Crew::new(&[0, 1, 1], Settings::default());
    crew.announce();
    crew.guests[0].send(0, 1, 100, 5);
    crew.workers[0].step();
    // Before the other worker looks, the receiver goes, and somebody else comes to where it was.
    crew.stop_delivery(1, 1);
    crew.stop_delivery(2, 1);
    let (mut one, mut other) = (crew.attach(2, 1), crew.attach(1, 1));
    while crew.step() > 0 {}
    assert_eq!(one.settle(), 0, "frames of another port");
    assert_eq!(other.settle(), 0, "frames from before it came");
    assert_eq!(crew.drops(1, DropReason::ReceiverAbsent), 5);
    crew.guests[0].reclaim();
    assert_eq!(crew.guests[0].transmit.free(), 256, "every chain came back");
}
