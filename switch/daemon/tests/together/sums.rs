//! Every frame is accounted for: transmitted frames, with a copy for each receiver of a flood, are those that were received, wait, or were
//! dropped for a reason.

use std::time::Duration;

use crate::bed::Bed;
use crate::dice::Dice;
use memlane::frame::MacAddress;
use memlane::id::PortId;
use memlane::link::Impairment;
use memlane::policy::{AntiSpoof, Flood, Limit, PortLimits};
use memlane::settings::Settings;
use memlane::stats::DropReason;
use memlane::time::cycles;
use memlane_rig::ring::Iovec;

/// Frames; MEMLANE_FRAMES is another number.
const FRAMES: u64 = 300_000;
const GUESTS: usize = 8;
/// A guest without a receive route.
const ABSENT: u16 = 7;
/// A number that is no guest's.
const UNKNOWN: u16 = 0xff;
/// Reasons for which a frame is dropped before it counts as transmitted.
const UNOPENED: [DropReason; 3] = [DropReason::ChainAddress, DropReason::ChainDirection, DropReason::Runt];

fn frames() -> u64 {
    std::env::var("MEMLANE_FRAMES").ok().map_or(FRAMES, |frames| frames.parse().expect("MEMLANE_FRAMES is a number"))
}

/// Guests with every kind of limit: anti-spoofing, a storm limit, a receive limit, links that lose frames and that are short.
fn bed() -> Bed {
    let lossy = Impairment { loss: 0.1, ..Impairment::default() };
    let short = Impairment { rate: Some("1Gbit".into()), queue: Some(32), ..Impairment::default() };
    let mut links = vec![None; GUESTS];
    (links[4], links[5]) = (Some(lossy), Some(short));
    let settings = Settings { moves: 4, stall_timeout: Duration::from_millis(5), ..Settings::default() };
    let mut bed = Bed::with_links(&links, settings);
    for index in [0, 1] {
        bed.ports[index].segment.pin(MacAddress::new([2, 0, 0, 0, 0, index as u8]), PortId(index as u16)).unwrap();
    }
    bed.ports[1].policy.set(&PortLimits { anti_spoof: AntiSpoof::Mac, storm: 0, ..PortLimits::default() });
    bed.ports[2].policy.set(&PortLimits { storm: 1, ..PortLimits::default() });
    let flood = Flood { reaches_one: false, suspect: false, now: cycles() };
    assert_eq!((0..2000).filter(|_| bed.ports[2].policy.take_flood(flood).is_ok()).count(), 2000);
    let receive = Limit { packets: Some(1_000_000), ..Limit::default() };
    bed.ports[3].policy.set(&PortLimits { receive, ..PortLimits::default() });
    bed.worker.set_route(PortId(ABSENT), Vec::new());
    bed
}

/// Has a guest make random frames available; returns how many.
fn send(bed: &mut Bed, dice: &mut Dice) -> u64 {
    let from = dice.below(GUESTS);
    let guest = &mut bed.guests[from];
    guest.reclaim();
    let count = dice.below(33).min(guest.transmit.free().into());
    if count == 0 {
        return 0;
    }
    match dice.below(64) {
        0 => drop(guest.transmit.add(&[Iovec::readable(1 << 50, 100)])),
        1 => drop(guest.transmit.add(&[Iovec::writable(4096, 100)])),
        2 => guest.send(0, 0, 3, 1),
        _ => {
            // Addresses of others: pinned ones, one at a guarded port, and one as in a loop.
            let source = match (from, dice.once_in(8)) {
                (3, true) => 0,
                (1, true) => 4,
                (6, true) => 5,
                _ => from,
            };
            let to = if dice.once_in(6) { UNKNOWN } else { dice.below(GUESTS) as u16 };
            guest.send(source as u16, to, 60 + dice.below(1400) as u32, count);
            return count as u64;
        }
    }
    guest.transmit.publish();
    1
}

/// Frames that were taken from rings, by the counters, in the two ways of counting.
fn sums(bed: &Bed) -> (u64, u64, u64) {
    let totals: Vec<_> = bed.ports.iter().map(|port| port.totals()).collect();
    let (mut copies, mut outcomes, mut unopened) = (0, 0, 0);
    for (index, totals) in totals.iter().enumerate() {
        let reach = (0..GUESTS).filter(|&other| other != index && other != usize::from(ABSENT)).count() as u64;
        copies += totals.transmit_frames - totals.flooded + totals.flooded * reach;
        outcomes += totals.receive_frames + totals.waiting + totals.drops.values().sum::<u64>();
        unopened += UNOPENED.iter().filter_map(|reason| totals.drops.get(reason.name())).sum::<u64>();
        assert!(totals.drops.keys().all(|name| DropReason::ALL.iter().any(|reason| reason.name() == name)), "{totals:?}");
    }
    (copies, outcomes - unopened, unopened)
}

#[test]
fn transmitted_frames_are_received_or_wait_or_are_dropped_for_a_reason() {
    let (mut bed, mut dice) = (bed(), Dice::new());
    let (wanted, mut sent) = (frames(), 0);
    while sent < wanted {
        (0..4).for_each(|_| sent += send(&mut bed, &mut dice));
        bed.worker.step();
        // One guest takes its frames seldom, so that senders wait for it.
        let slow = dice.below(16) > 0;
        bed.guests.iter_mut().skip(usize::from(slow)).for_each(|guest| {
            guest.settle();
        });
    }
    // Frames that wait for the slow guest, for limits and on links arrive, or are given up.
    crate::common::wait_until(
        || {
            bed.worker.step();
            bed.guests.iter_mut().for_each(|guest| {
                guest.settle();
            });
            let totals: Vec<_> = bed.ports.iter().map(|port| port.totals()).collect();
            let (copies, outcomes, unopened) = sums(&bed);
            let taken = totals.iter().map(|totals| totals.transmit_frames).sum::<u64>() + unopened;
            taken == sent && totals.iter().all(|totals| totals.waiting == 0) && copies == outcomes
        },
        "every frame is accounted for",
    );
    let (copies, outcomes, unopened) = sums(&bed);
    assert_eq!(copies, outcomes);
    let drops: std::collections::BTreeSet<String> = bed.ports.iter().flat_map(|port| port.totals().drops.into_keys()).collect();
    println!("{sent} frames, {copies} with copies, {unopened} not opened; dropped for {drops:?}");
    for reason in
        ["bad-source", "spoofed-source", "storm", "loop", "same-port", "receiver-absent", "link-loss", "link-full", "runt"]
    {
        assert!(drops.contains(reason), "{reason}: {drops:?}");
    }
}
