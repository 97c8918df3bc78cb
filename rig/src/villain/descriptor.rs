//! Single descriptors and chains that are wrong.

use crate::memory::MemoryPlan;
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE};

use super::hand::{HEADER, NOWHERE};
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Descriptor:
    "descriptor-loop" descriptor_loop Frame "A chain whose last descriptor leads back to its first (QEMU CVE-2016-6490's kin)"
    "descriptor-loops-on-itself" descriptor_loops_on_itself Frame "A descriptor whose next is itself"
    "head-beyond-ring" head_beyond_ring Port "The available ring names descriptors that do not exist"
    "next-beyond-ring" next_beyond_ring Frame "A chain goes on at a descriptor that does not exist"
    "address-nowhere" address_nowhere Frame "A buffer at an address that is no memory (DPDK CVE-2018-1059)"
    "address-zero" address_zero Frame "A buffer at guest address 0, which is no memory here"
    "address-wraps" address_wraps Frame "Address and length together wrap round 64 bits (openvmm #4046)"
    "across-memory-end" across_memory_end Frame "A buffer that begins in memory and ends behind it (DPDK CVE-2018-1059)"
    "across-gap" across_gap Frame "A buffer that begins in one region, crosses a gap and ends in another"
    "across-adjacent-regions" across_adjacent_regions Frame "A buffer over two regions that are neighbours for the guest only"
    "length-four-gigabytes" length_four_gigabytes Frame "A descriptor of 2^32 - 1 bytes"
    "zero-length-good-address" zero_length_good_address Frame "Descriptors of length 0 before, between and after good ones (XSA-448)"
    "zero-length-bad-address" zero_length_bad_address Frame "A descriptor of length 0 at an address that is no memory (DPDK CVE-2020-10725)"
    "nothing-but-zero-lengths" nothing_but_zero_lengths Frame "A chain of which every descriptor has length 0"
    "writable-in-transmit" writable_in_transmit Frame "A frame to send in buffers that are marked for the device to write"
    "writable-before-readable" writable_before_readable Frame "A chain with a writable descriptor before a readable one"
    "unknown-flags" unknown_flags Frame "Descriptor flags of no meaning"
    "head-offered-twice" head_offered_twice Frame "One chain offered many times at once"
    "chains-share-descriptors" chains_share_descriptors Frame "Two chains that end in the same descriptors"
    "indirect-not-negotiated" indirect_not_negotiated Frame "An indirect table although the feature was not acknowledged"
}

fn descriptor_loop(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        hand.describe(0, frame, length, DESC_NEXT, 1);
        hand.describe(1, frame, length, DESC_NEXT, 2);
        hand.describe(2, frame, length, DESC_NEXT, 0);
        hand.offer(0);
    })
}

fn descriptor_loops_on_itself(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        hand.describe(0, frame, length, DESC_NEXT, 0);
        hand.offer(0);
    })
}

fn head_beyond_ring(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        hand.describe(0, frame, length, 0, 0);
        let size = hand.ring().size();
        for head in [size, size + 1, 0x7fff, 0x8000, u16::MAX] {
            hand.offer(head);
        }
    })
}

fn next_beyond_ring(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        for (head, next) in [hand.ring().size(), 0x8000, u16::MAX].into_iter().enumerate() {
            hand.describe(head as u16, frame, length, DESC_NEXT, next);
            hand.offer(head as u16);
        }
    })
}

fn address_nowhere(stage: &mut Stage<'_>) -> Done {
    second_iovec(stage, &[(NOWHERE, 1000), (NOWHERE, 1), (u64::MAX, 1)])
}

fn address_zero(stage: &mut Stage<'_>) -> Done {
    second_iovec(stage, &[(0, 1000), (0, 1)])
}

fn address_wraps(stage: &mut Stage<'_>) -> Done {
    second_iovec(stage, &[(u64::MAX - 10, 1000), (u64::MAX, u32::MAX), (u64::MAX - u64::from(u32::MAX) + 1, u32::MAX)])
}

fn across_memory_end(stage: &mut Stage<'_>) -> Done {
    let (start, size) = last_range(&stage.builder().memory_plan());
    let end = start + size;
    second_iovec(stage, &[(end - 10, 1000), (end - 1, 2), (end, 1)])
}

fn across_gap(stage: &mut Stage<'_>) -> Done {
    two_regions(stage, 1 << 20, |end| (end - 100, 2000))
}

fn across_adjacent_regions(stage: &mut Stage<'_>) -> Done {
    two_regions(stage, 0, |end| (end - 100, 1000))
}

fn length_four_gigabytes(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, _| {
        hand.describe(0, frame, u32::MAX, 0, 0);
        hand.offer(0);
    })
}

fn zero_length_good_address(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        let (header, rest) = (frame + HEADER as u64, length - HEADER as u32);
        let iovecs = [(frame, 0, 0), (frame, HEADER as u32, 0), (frame, 0, 0), (header, rest, 0), (frame, 0, 0)];
        let head = hand.chain(0, &iovecs);
        hand.offer(head);
    })
}

fn zero_length_bad_address(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        let head = hand.chain(0, &[(NOWHERE, 0, 0), (frame, length, 0)]);
        hand.offer(head);
        let head = hand.chain(4, &[(frame, length, 0), (u64::MAX, 0, 0)]);
        hand.offer(head);
    })
}

fn nothing_but_zero_lengths(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, _| {
        let all = vec![(frame, 0, 0); usize::from(hand.ring().size())];
        let head = hand.chain(0, &all);
        hand.offer(head);
    })
}

fn writable_in_transmit(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        hand.describe(0, frame, length, DESC_WRITE, 0);
        hand.offer(0);
        let rest = (frame + HEADER as u64, length - HEADER as u32, DESC_WRITE);
        let head = hand.chain(2, &[(frame, HEADER as u32, 0), rest]);
        hand.offer(head);
    })
}

fn writable_before_readable(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        let head = hand.chain(0, &[(frame, length, DESC_WRITE), (frame, length, 0)]);
        hand.offer(head);
    })
}

fn unknown_flags(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        for (head, flags) in [0x8, 0x10, 0x80, 0x8000, 0xfff8u16].into_iter().enumerate() {
            hand.describe(head as u16, frame, length, flags, 0);
            hand.offer(head as u16);
        }
    })
}

fn head_offered_twice(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        hand.describe(0, frame, length, 0, 0);
        for _ in 0..hand.ring().size() {
            hand.offer(0);
        }
    })
}

fn chains_share_descriptors(stage: &mut Stage<'_>) -> Done {
    with_frame(stage, |hand, frame, length| {
        hand.chain(0, &[(frame, HEADER as u32, 0), (frame + HEADER as u64, length - HEADER as u32, 0)]);
        hand.describe(8, frame, HEADER as u32, DESC_NEXT, 1);
        hand.offer(0);
        hand.offer(8);
        hand.offer(1);
    })
}

fn indirect_not_negotiated(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder.without(crate::frontend::features::INDIRECT_DESC))?;
    let mut hand = Hand::transmit(&mut guest);
    let frame = stage.frame(100);
    let place = hand.place_frame(&frame)?;
    let whole = crate::ring::Descriptor { address: place, length: (HEADER + frame.len()) as u32, flags: 0, next: 0 };
    let table = hand.table(&[whole])?;
    hand.describe(0, table, 16, DESC_INDIRECT, 0);
    hand.offer_and_show(&mut guest, 0);
    Ok(hand.leave(guest))
}

/// Connects, puts an honest frame (with its header) into memory, lets `act` describe and offer it, and shows the result.
fn with_frame(stage: &Stage<'_>, act: impl FnOnce(&mut Hand, u64, u32)) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let mut hand = Hand::transmit(&mut guest);
    let frame = stage.frame(100);
    let place = hand.place_frame(&frame)?;
    act(&mut hand, place, (HEADER + frame.len()) as u32);
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

/// Chains of an honest frame and then each of these (address, length); and each of them alone.
fn second_iovec(stage: &Stage<'_>, iovecs: &[(u64, u32)]) -> Done {
    with_frame(stage, |hand, frame, length| {
        for (number, &(address, bad)) in iovecs.iter().enumerate() {
            let first = 4 * number as u16;
            let head = hand.chain(first, &[(frame, length, 0), (address, bad, 0)]);
            hand.offer(head);
            hand.describe(first + 2, address, bad, 0, 0);
            hand.offer(first + 2);
        }
    })
}

/// A guest with two regions `gap` bytes apart, and a chain that ends in a buffer made from where the first one ends.
fn two_regions(stage: &Stage<'_>, gap: u64, iovec: impl FnOnce(u64) -> (u64, u32)) -> Done {
    let size = stage.builder().memory_plan().size();
    let plan = MemoryPlan::spread(2, size, gap).file_gap(1 << 16);
    let mut guest = stage.guest(|builder| builder.memory(plan))?;
    let mut hand = Hand::transmit(&mut guest);
    let region = &guest.memory().regions()[0];
    let (address, length) = iovec(region.guest() + region.size());
    let frame = stage.frame(100);
    let place = hand.place_frame(&frame)?;
    let head = hand.chain(0, &[(place, (HEADER + frame.len()) as u32, 0), (address, length, 0)]);
    hand.offer_and_show(&mut guest, head);
    Ok(hand.leave(guest))
}

fn last_range(plan: &MemoryPlan) -> (u64, u64) {
    let &(start, size) = plan.ranges.last().expect("a plan has a region");
    (start, size.next_multiple_of(4096))
}
