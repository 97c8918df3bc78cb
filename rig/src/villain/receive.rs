//! Receive buffers that are too small, too few, in the wrong place, or never there.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::deadline::Deadline;
use crate::frontend::features::MRG_RXBUF;
use crate::guest::{ReceiveBuffers, ToyGuest};
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor};

use super::hand::{NOWHERE, kick_all};
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Receive:
    "receive-buffers-of-one-byte" buffers_of_one_byte Frame + friend "Receive buffers of 1 byte while a friend floods (Linux CVE-2019-3900)"
    "receive-buffers-runt" buffers_runt Frame + friend "Receive buffers too small for the header (DPDK CVE-2026-86566)"
    "receive-buffers-of-zero-bytes" buffers_of_zero_bytes Frame + friend "Receive buffers of 0 bytes"
    "too-few-receive-buffers" too_few_buffers Frame + friend "Fewer receive buffers than a frame needs, for ever (Linux CVE-2026-74356)"
    "too-small-without-mergeable" too_small_without_mergeable Frame + friend "Buffers of 100 bytes from a guest without mergeable buffers"
    "no-receive-buffers" no_buffers Frame + friend "A slow reader: no receive buffers at all while a friend floods (XSA-392)"
    "readable-in-receive" readable_in_receive Frame + friend "Receive buffers that are marked for the device to read"
    "receive-buffer-nowhere" buffer_nowhere Frame + friend "Receive buffers at addresses that are no memory"
    "receive-chain-loop" chain_loop Frame + friend "A receive buffer that is a chain in a circle"
    "receive-chain-half-bad" chain_half_bad Frame + friend "A receive buffer whose second buffer segment is no memory"
    "receive-into-the-ring" into_the_ring Port + friend "Receive buffers that lie in the ring itself: a frame overwrites descriptors and indices"
    "receive-into-one-place" into_one_place Frame + friend "All receive buffers at the same address"
    "receive-buffers-in-tables" in_tables Nothing + friend "Receive buffers in indirect tables, of many buffer segments each"
    "receive-table-bad" table_bad Frame + friend "Receive buffers in indirect tables that loop, nest, or are no memory"
    "receive-heads-beyond-ring" heads_beyond_ring Port + friend "The receive queue's available ring names descriptors that do not exist"
    "receive-chains-reposted" chains_reposted Frame + friend "Receive chains in circles, posted again by another thread as fast as they come back"
    "receive-buffers-empty-32768" buffers_empty Frame + friend "A receive ring of 32768, each entry a chain of 32768 empty descriptors"
    "receive-head-offered-twice" head_offered_twice Frame + friend "One receive buffer offered many times at once"
}

fn buffers_of_one_byte(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 1, |hand, index, place| hand.describe(index, place, 1, DESC_WRITE, 0))
}

fn buffers_runt(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 2, |hand, index, place| hand.describe(index, place, u32::from(index) % 12, DESC_WRITE, 0))
}

fn buffers_of_zero_bytes(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 0, |hand, index, place| hand.describe(index, place, 0, DESC_WRITE, 0))
}

fn too_few_buffers(stage: &mut Stage<'_>) -> Done {
    let few = ReceiveBuffers { count: Some(3), repost: false, ..ReceiveBuffers::SMALL };
    let guest = stage.guest(|builder| builder.receive_buffers(few))?;
    for _ in 0..4 {
        stage.friend_sends(8, 20_000)?;
    }
    Ok(Traces::none(Some(guest)))
}

fn too_small_without_mergeable(stage: &mut Stage<'_>) -> Done {
    let small = ReceiveBuffers { size: 100, ..ReceiveBuffers::SMALL };
    let guest = stage.guest(|builder| builder.without(MRG_RXBUF).receive_buffers(small))?;
    stage.friend_sends(64, 1000)?;
    Ok(Traces::none(Some(guest)))
}

fn no_buffers(stage: &mut Stage<'_>) -> Done {
    let guest = none_posted(stage)?;
    for _ in 0..20 {
        stage.friend_sends(256, 1000)?;
    }
    Ok(Traces::none(Some(guest)))
}

fn readable_in_receive(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 2048, |hand, index, place| hand.describe(index, place, 2048, 0, 0))
}

fn buffer_nowhere(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 0, |hand, index, _| {
        let address = [NOWHERE, 0, u64::MAX - 100, u64::MAX][usize::from(index) % 4];
        hand.describe(index, address, 2048, DESC_WRITE, 0);
    })
}

fn chain_loop(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 64, |hand, index, place| {
        hand.describe(index, place, 64, DESC_WRITE | DESC_NEXT, (index + 1) % hand.ring().size());
    })
}

fn chain_half_bad(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 64, |hand, index, place| match index % 2 {
        0 => hand.describe(index, place, 64, DESC_WRITE | DESC_NEXT, index + 1),
        _ => hand.describe(index, NOWHERE, 4096, DESC_WRITE, 0),
    })
}

fn into_the_ring(stage: &mut Stage<'_>) -> Done {
    with_buffers(stage, 0, |hand, index, _| {
        let at = hand.ring().addresses();
        let address = [at.used, at.available, at.descriptors][usize::from(index) % 3];
        hand.describe(index, address, 400, DESC_WRITE, 0);
    })
}

fn into_one_place(stage: &mut Stage<'_>) -> Done {
    let mut place = None;
    with_buffers(stage, 2048, |hand, index, own| {
        hand.describe(index, *place.get_or_insert(own), 2048, DESC_WRITE, 0);
    })
}

fn in_tables(stage: &mut Stage<'_>) -> Done {
    with_tables(stage, |index, place| {
        let iovec = |number: u16, last: bool| Descriptor {
            address: place + 200 * u64::from(number),
            length: 200,
            flags: if last { DESC_WRITE } else { DESC_WRITE | DESC_NEXT },
            next: number + 1,
        };
        (0..=index % 10).map(|number| iovec(number, number == index % 10)).collect()
    })
}

fn table_bad(stage: &mut Stage<'_>) -> Done {
    with_tables(stage, |index, place| {
        let entry = |flags, next| Descriptor { address: place, length: 64, flags, next };
        match index % 4 {
            0 => vec![entry(DESC_WRITE | DESC_NEXT, 0)],
            1 => vec![entry(DESC_WRITE | DESC_INDIRECT, 0)],
            2 => vec![entry(DESC_WRITE | DESC_NEXT, 9999)],
            _ => vec![Descriptor { address: NOWHERE, ..entry(DESC_WRITE, 0) }],
        }
    })
}

fn chains_reposted(stage: &mut Stage<'_>) -> Done {
    let mut guest = none_posted(stage)?;
    circle(&mut Hand::receive(&mut guest), 64)?;
    let ring = guest.pair(0).receive.queue.ring.shared().clone();
    let deadline = Deadline::after(stage.duration);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                ring.set_available_index(ring.used_index().wrapping_add(ring.size()));
            }
        });
        let mut sent = Ok(());
        while !deadline.is_over() && sent.is_ok() {
            sent = stage.friend_sends(16, 1000);
            kick_all(&mut guest);
        }
        over.store(true, Ordering::Relaxed);
        sent
    })?;
    Ok(Traces::none(Some(guest)))
}

fn buffers_empty(stage: &mut Stage<'_>) -> Done {
    let none = ReceiveBuffers { count: Some(0), ..ReceiveBuffers::SMALL };
    let mut guest = stage.guest(|builder| builder.ring_size(32768).receive_buffers(none))?;
    let mut hand = Hand::receive(&mut guest);
    circle(&mut hand, 0)?;
    hand.show(&mut guest);
    stage.friend_sends(128, 1000)?;
    Ok(Traces::none(Some(guest)))
}

/// Makes of all descriptors, of `length` bytes each, one chain that leads back to its beginning, and offers each of them as a head.
fn circle(hand: &mut Hand, length: u32) -> Result<(), VillainError> {
    let place = hand.place(&vec![0; length as usize])?;
    let size = hand.ring().size();
    for index in 0..size {
        hand.describe(index, place, length, DESC_WRITE | DESC_NEXT, (index + 1) % size);
        hand.offer(index);
    }
    Ok(())
}

fn heads_beyond_ring(stage: &mut Stage<'_>) -> Done {
    let mut guest = none_posted(stage)?;
    let mut hand = Hand::receive(&mut guest);
    let size = hand.ring().size();
    (0..size).for_each(|number| hand.offer(size.wrapping_add(number * 251)));
    hand.show(&mut guest);
    stage.friend_sends(32, 500)?;
    Ok(Traces::none(Some(guest)))
}

fn head_offered_twice(stage: &mut Stage<'_>) -> Done {
    let mut guest = none_posted(stage)?;
    let mut hand = Hand::receive(&mut guest);
    let place = hand.place(&[0; 2048])?;
    hand.describe(0, place, 2048, DESC_WRITE, 0);
    (0..hand.ring().size()).for_each(|_| hand.offer(0));
    hand.show(&mut guest);
    stage.friend_sends(64, 1500)?;
    Ok(Traces::none(Some(guest)))
}

/// A guest that has posted nothing.
fn none_posted(stage: &Stage<'_>) -> Result<ToyGuest, VillainError> {
    let none = ReceiveBuffers { count: Some(0), ..ReceiveBuffers::SMALL };
    stage.guest(|builder| builder.receive_buffers(none))
}

/// Posts a full ring of buffers, each described by `describe` (which gets its index and `room` bytes of memory), and lets the
/// friend send.
fn with_buffers(stage: &mut Stage<'_>, room: usize, mut describe: impl FnMut(&Hand, u16, u64)) -> Done {
    let mut guest = none_posted(stage)?;
    let mut hand = Hand::receive(&mut guest);
    for index in 0..hand.ring().size() {
        let place = hand.place(&vec![0; room])?;
        describe(&hand, index, place);
        hand.offer(index);
    }
    hand.show(&mut guest);
    for _ in 0..4 {
        stage.friend_sends(32, 1000)?;
        stage.friend_sends(2, 20_000)?;
        kick_all(&mut guest);
    }
    Ok(Traces::none(Some(guest)))
}

/// The same with a table for each buffer, made by `entries` from its index and 2 KiB of memory.
fn with_tables(stage: &mut Stage<'_>, entries: impl Fn(u16, u64) -> Vec<Descriptor>) -> Done {
    with_buffers(stage, 2048, |hand, index, place| {
        let entries = entries(index, place);
        let table = hand.table(&entries).expect("a guest's plan has a megabyte to spare");
        hand.describe(index, table, 16 * entries.len() as u32, DESC_INDIRECT, 0);
    })
}
