//! Indirect tables that are wrong, and buffers that lie where they must not.

use crate::frontend::features::INDIRECT_DESC;
use crate::guest::ToyGuest;
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor};

use super::hand::{HEADER, NOWHERE};
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Descriptor:
    "indirect-empty" indirect_empty Frame "An indirect table of 0 bytes (QEMU #3984)"
    "indirect-odd-length" indirect_odd_length Frame "Indirect tables whose length is no multiple of 16"
    "indirect-huge" indirect_huge Frame "Indirect tables far longer than memory (DPDK CVE-2018-1059, QEMU CVE-2011-2212)"
    "indirect-longer-than-ring" indirect_longer_than_ring Frame "A table of more descriptors than the ring has, all chained"
    "indirect-nested" indirect_nested Frame "A table entry that points to a table"
    "indirect-itself" indirect_itself Frame "A table whose entry points to the same table"
    "indirect-with-next" indirect_with_next Frame "An indirect descriptor that also has a next"
    "indirect-next-beyond-table" indirect_next_beyond_table Frame "A table entry goes on at an entry that does not exist"
    "indirect-loop" indirect_loop Frame "A table whose entries lead round in a circle"
    "indirect-nowhere" indirect_nowhere Frame "A table at an address that is no memory"
    "indirect-across-memory-end" indirect_across_memory_end Frame "A table that begins in memory and ends behind it"
    "indirect-unaligned" indirect_unaligned Nothing "A table at an odd address, which the specification allows"
    "indirect-writable" indirect_writable Nothing "An indirect descriptor marked writable: the mark must be ignored (virtio 1.4 section 2.7.5.3.2)"
    "indirect-into-ring" indirect_into_ring Frame "A table that lies in the ring's own descriptor table"
    "buffer-is-the-ring" buffer_is_the_ring Frame "Frames to send that lie in the ring itself"
}

fn indirect_empty(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        bed.offer_table(&[bed.good()], 0)?;
        bed.raw(bed.frame, 0)
    })
}

fn indirect_odd_length(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| [1, 15, 17, 31].into_iter().try_for_each(|length| bed.offer_table(&[bed.good(); 2], length)))
}

fn indirect_huge(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        [0xffff_fff0, 0x8000_0000, 16 * 65536, 16 * 65537, u32::MAX]
            .into_iter()
            .try_for_each(|length| bed.offer_table(&[bed.good()], length))
    })
}

fn indirect_longer_than_ring(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let count = u16::max(bed.hand.ring().size(), 1024) * 4;
        let byte = |next| Descriptor { address: bed.frame, length: 1, flags: DESC_NEXT, next };
        let mut entries: Vec<_> = (1..=count).map(byte).collect();
        entries.push(Descriptor { flags: 0, ..byte(0) });
        bed.offer_table(&entries, 16 * entries.len() as u32)
    })
}

fn indirect_nested(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let inner = bed.hand.table(&[bed.good()])?;
        let outer = Descriptor { address: inner, length: 16, flags: DESC_INDIRECT, next: 0 };
        bed.offer_table(&[outer], 16)?;
        let second = Descriptor { flags: DESC_NEXT, next: 1, ..bed.good() };
        bed.offer_table(&[second, outer], 32)
    })
}

fn indirect_itself(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let table = bed.hand.table(&[Descriptor::default()])?;
        let itself = Descriptor { address: table, length: 16, flags: DESC_INDIRECT, next: 0 };
        bed.hand.memory().write(table, &itself.bytes())?;
        bed.raw(table, 16)
    })
}

fn indirect_with_next(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let table = bed.hand.table(&[bed.good()])?;
        let head = bed.head();
        bed.hand.describe(head, table, 16, DESC_INDIRECT | DESC_NEXT, head + 1);
        bed.hand.describe(head + 1, bed.frame, bed.length, 0, 0);
        bed.hand.offer(head);
        Ok(())
    })
}

fn indirect_next_beyond_table(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        [1, 2, 255, u16::MAX]
            .into_iter()
            .try_for_each(|next| bed.offer_table(&[Descriptor { flags: DESC_NEXT, next, ..bed.good() }], 16))
    })
}

fn indirect_loop(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let good = bed.good();
        let to = |next| Descriptor { flags: DESC_NEXT, next, ..good };
        bed.offer_table(&[to(1), to(2), to(0)], 48)?;
        bed.offer_table(&[to(0)], 16)
    })
}

fn indirect_nowhere(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| [NOWHERE, 0, u64::MAX - 7, u64::MAX].into_iter().try_for_each(|at| bed.raw(at, 32)))
}

fn indirect_across_memory_end(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let region = &bed.hand.memory().regions()[0];
        let end = region.guest() + region.size();
        [(end - 16, 32), (end - 8, 16), (end, 16)].into_iter().try_for_each(|(at, length)| bed.raw(at, length))
    })
}

fn indirect_unaligned(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let place = bed.hand.place(&[0; 64])?;
        bed.hand.memory().write(place + 3, &bed.good().bytes())?;
        bed.raw(place + 3, 16)
    })
}

fn indirect_writable(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let table = bed.hand.table(&[bed.good()])?;
        let head = bed.head();
        bed.hand.describe(head, table, 16, DESC_INDIRECT | DESC_WRITE, 0);
        bed.hand.offer(head);
        Ok(())
    })
}

fn indirect_into_ring(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let table = bed.hand.ring().addresses().descriptors;
        bed.raw(table, 16 * u32::from(bed.hand.ring().size()))
    })
}

fn buffer_is_the_ring(stage: &mut Stage<'_>) -> Done {
    with_table(stage, |bed| {
        let (at, size) = (bed.hand.ring().addresses(), u32::from(bed.hand.ring().size()));
        for (address, length) in [(at.descriptors, 16 * size), (at.available, 6 + 2 * size), (at.used, 6 + 8 * size)] {
            let head = bed.head();
            bed.hand.describe(head, address, length, 0, 0);
            bed.hand.offer(head);
        }
        Ok(())
    })
}

/// A guest with indirect tables and an honest frame in its memory.
struct Bed {
    hand: Hand,
    frame: u64,
    length: u32,
}

impl Bed {
    /// A descriptor of the whole honest frame.
    fn good(&self) -> Descriptor {
        Descriptor { address: self.frame, length: self.length, flags: 0, next: 0 }
    }

    /// A descriptor of the ring that is not used yet; neither is its successor.
    fn head(&self) -> u16 {
        2 * self.hand.offered()
    }

    /// Offers a table of `entries` that is said to be `length` bytes long.
    fn offer_table(&mut self, entries: &[Descriptor], length: u32) -> Result<(), VillainError> {
        let table = self.hand.table(entries)?;
        self.raw(table, length)
    }

    /// Offers a table that is said to be at `address`.
    fn raw(&mut self, address: u64, length: u32) -> Result<(), VillainError> {
        let head = self.head();
        self.hand.indirect(head, address, length);
        self.hand.offer(head);
        Ok(())
    }
}

fn with_table(stage: &Stage<'_>, act: impl FnOnce(&mut Bed) -> Result<(), VillainError>) -> Done {
    let mut guest: ToyGuest = stage.guest_with(INDIRECT_DESC)?;
    let hand = Hand::transmit(&mut guest);
    let frame = stage.frame(100);
    let place = hand.place_frame(&frame)?;
    let mut bed = Bed { hand, frame: place, length: (HEADER + frame.len()) as u32 };
    act(&mut bed)?;
    bed.hand.show(&mut guest);
    Ok(bed.hand.leave(guest))
}
