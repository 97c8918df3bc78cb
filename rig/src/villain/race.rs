//! Memory that changes between two looks at it: a second thread flips fields as fast as it can while traffic runs.
//!
//! A back end that reads a field twice, and checks only the first value, is found by these sooner or later; run them under a
//! sanitizer, or long, to find out more.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::deadline::Deadline;
use crate::frames::{GsoKind, NetHeader, Packet};
use crate::frontend::features::{CSUM, Features, HOST_TSO4, INDIRECT_DESC};
use crate::guest::ToyGuest;
use crate::memory::{GuestMemory, MemoryPlan};
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, SharedRing, Used};

use super::hand::{HEADER, NOWHERE, kick_all};
use super::{Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Race:
    "race-length" race_length Port "Descriptor lengths flip between right and 4 GiB (DPDK 134228c: fetched twice)"
    "race-address" race_address Port "Descriptor addresses flip between memory and nowhere"
    "race-next" race_next Port "next flips between the end of the chain, a circle and beyond the ring (DPDK CVE-2026-86847)"
    "race-flags" race_flags Port "Descriptor flags flip: next, write, indirect"
    "race-indirect-length" race_indirect_length Port "The length of an indirect table flips (DPDK CVE-2026-93683)"
    "race-indirect-entries" race_indirect_entries Port "The entries of an indirect table flip (DPDK CVE-2026-86848)"
    "race-header" race_header Port "The virtio-net header flips between no offload and impossible ones (XSA-155)"
    "race-frame" race_frame Port "MAC addresses, IP lengths and TCP header lengths flip while frames are read (DPDK CVE-2026-86562)"
    "race-available-index" race_available_index Port "The available index jumps forth and back"
    "race-available-entries" race_available_entries Port "Entries of the available ring flip between heads, good and bad"
    "race-used-ring" race_used_ring Port "The guest scribbles over the used ring, indices and notification requests included"
    "race-receive" race_receive Port + friend "Receive descriptors flip while a friend sends"
    "race-received-header" race_received_header Frame + friend "num_buffers of received frames is rewritten while the device writes it"
    "race-memory-table" race_memory_table Frame "The memory table is replaced while rings run (DPDK CVE-2026-86567)"
    "race-memory-region" race_memory_region Frame "A region with frames in flight is removed and added again"
    "race-truncate" race_truncate Port "The memory file is cut while frames in it are read: SIGBUS"
    "race-truncate-under-ring" race_truncate_under_ring Port "The memory file is cut under the rings themselves: SIGBUS"
    "race-truncate-receive" race_truncate_receive Port + friend "The memory file is cut under receive buffers while a friend sends: SIGBUS"
}

/// The rings and buffers that the flipping thread works on.
struct Field<'a> {
    memory: &'a GuestMemory,
    ring: &'a SharedRing,
    /// The honest frame with its header.
    frame: u64,
    length: u32,
    /// An indirect table of the frame in two buffer segments.
    table: u64,
}

impl Field<'_> {
    /// Descriptor `index` as it is right: the whole frame.
    fn right(&self) -> Descriptor {
        Descriptor { address: self.frame, length: self.length, flags: 0, next: 0 }
    }

    fn every(&self, descriptor: Descriptor) {
        (0..self.ring.size()).for_each(|index| self.ring.set_descriptor(index, descriptor));
    }

    fn poke(&self, address: u64, bytes: &[u8]) {
        // Where it writes was allocated by this villain: it cannot be outside.
        let _ = self.memory.write(address, bytes);
    }
}

fn race_length(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let wrong = [u32::MAX, 0, 1 << 31, 11][turn % 4];
        field.every(Descriptor { length: wrong, ..field.right() });
        field.every(field.right());
    })
}

fn race_address(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let wrong = [NOWHERE, 0, u64::MAX - 20, u64::MAX][turn % 4];
        field.every(Descriptor { address: wrong, ..field.right() });
        field.every(field.right());
    })
}

fn race_next(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let next = [0, 1, u16::MAX, field.ring.size()][turn % 4];
        field.every(Descriptor { flags: DESC_NEXT, next, ..field.right() });
        field.every(field.right());
    })
}

fn race_flags(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let flags = [DESC_WRITE, DESC_INDIRECT, DESC_NEXT, DESC_INDIRECT | DESC_NEXT][turn % 4];
        field.every(Descriptor { flags, next: 3, ..field.right() });
        field.every(field.right());
    })
}

fn race_indirect_length(stage: &mut Stage<'_>) -> Done {
    transmit(stage, INDIRECT_DESC, |field, turn| {
        let table = Descriptor { address: field.table, length: 32, flags: DESC_INDIRECT, next: 0 };
        field.every(Descriptor { length: [u32::MAX, 0, 17, 0xffff_fff0][turn % 4], ..table });
        field.every(table);
    })
}

fn race_indirect_entries(stage: &mut Stage<'_>) -> Done {
    transmit(stage, INDIRECT_DESC, |field, turn| {
        let table = Descriptor { address: field.table, length: 32, flags: DESC_INDIRECT, next: 0 };
        field.every(table);
        let first = Descriptor { length: HEADER as u32, flags: DESC_NEXT, next: 1, ..field.right() };
        let wrong = [
            Descriptor { next: 0, ..first },
            Descriptor { next: u16::MAX, ..first },
            Descriptor { address: NOWHERE, ..first },
            Descriptor { flags: DESC_INDIRECT, ..first },
        ][turn % 4];
        field.poke(field.table, &wrong.bytes());
        field.poke(field.table, &first.bytes());
    })
}

fn race_header(stage: &mut Stage<'_>) -> Done {
    transmit(stage, CSUM | HOST_TSO4, |field, turn| {
        let wild = NetHeader {
            needs_checksum: true,
            gso: [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::UdpL4, GsoKind::Other(9)][turn % 4],
            header_length: u16::MAX,
            gso_size: [0, 1, u16::MAX, 1448][turn / 4 % 4],
            checksum_start: [0, u16::MAX, 34, 1400][turn / 16 % 4],
            checksum_offset: [16, u16::MAX, 0, 6][turn / 64 % 4],
            ..NetHeader::default()
        };
        field.poke(field.frame, &wild.bytes());
        field.poke(field.frame, &NetHeader::default().bytes());
    })
}

fn race_frame(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let start = field.frame + HEADER as u64;
        let bytes = turn.to_le_bytes();
        // Destination and source, type, IP version and length, protocol, TCP header length.
        for (offset, length) in [(0, 6), (6, 6), (12, 2), (14, 4), (23, 1), (46, 1)] {
            field.poke(start + offset, &bytes[..length]);
        }
    })
}

fn race_available_index(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let index = field.ring.available_index();
        let jump = [1, 0u16.wrapping_sub(1), field.ring.size(), 0x8000][turn % 4];
        field.ring.set_available_index(index.wrapping_add(jump));
        field.ring.set_available_index(index);
    })
}

fn race_available_entries(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        for slot in 0..field.ring.size() {
            field.ring.set_available_entry(slot, [u16::MAX, field.ring.size(), slot, 0][(turn + usize::from(slot)) % 4]);
        }
    })
}

fn race_used_ring(stage: &mut Stage<'_>) -> Done {
    transmit(stage, 0, |field, turn| {
        let noise = turn as u16;
        field.ring.set_used_index(noise);
        field.ring.set_used_flags(noise);
        field.ring.set_available_event(noise);
        field.ring.set_used_event(noise);
        field.ring.set_used_entry(noise, Used { head: u32::MAX, length: u32::MAX });
    })
}

fn race_receive(stage: &mut Stage<'_>) -> Done {
    receive(stage, |ring, turn| {
        let index = (turn / 6) as u16;
        let right = ring.descriptor(index);
        let wrong = [
            Descriptor { address: NOWHERE, ..right },
            Descriptor { length: u32::MAX, ..right },
            Descriptor { length: 1, ..right },
            Descriptor { flags: 0, ..right },
            Descriptor { flags: DESC_WRITE | DESC_NEXT, next: u16::MAX, ..right },
            Descriptor { flags: DESC_WRITE | DESC_INDIRECT, ..right },
        ][turn % 6];
        ring.set_descriptor(index, wrong);
        ring.set_descriptor(index, right);
    })
}

fn race_received_header(stage: &mut Stage<'_>) -> Done {
    receive(stage, |ring, turn| {
        let buffer = ring.descriptor(turn as u16).address;
        // A receive buffer of the guest's own: it is inside its memory.
        let _ = ring.memory().write(buffer + 10, &(turn as u16).to_le_bytes());
    })
}

fn race_memory_table(stage: &mut Stage<'_>) -> Done {
    with_spare_region(stage, |guest| guest.announce_memory(&[0]).and_then(|()| guest.announce_memory(&[0, 1])))
}

fn race_memory_region(stage: &mut Stage<'_>) -> Done {
    with_spare_region(stage, |guest| guest.remove_region(1).and_then(|()| guest.add_region(1)))
}

fn race_truncate(stage: &mut Stage<'_>) -> Done {
    // The second region, the end of the file, holds the transmit buffers; the rings are in the first.
    with_spare_region(stage, |guest| {
        let keep = guest.memory().regions()[1].file_offset();
        guest.memory().truncate(keep).map_err(Into::into)
    })
}

fn race_truncate_under_ring(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    kick_all(&mut guest);
    // From here on this memory must not be touched, not by this process either.
    guest.memory().truncate(0)?;
    kick_all(&mut guest);
    Ok(Traces::without_memory(guest))
}

fn race_truncate_receive(stage: &mut Stage<'_>) -> Done {
    let guest = stage.guest(|builder| builder)?;
    guest.memory().truncate(0)?;
    stage.friend_sends(32, 1000)?;
    Ok(Traces::without_memory(guest))
}

/// Runs traffic out of the first transmit queue of a guest with the `needed` features while `flip` changes things, for as long as
/// the stage says.
fn transmit(stage: &Stage<'_>, needed: Features, flip: impl Fn(&Field<'_>, usize) + Sync) -> Done {
    let mut guest = stage.guest_with(needed)?;
    let memory = guest.memory().clone();
    let ring = guest.pair(0).transmit.queue.ring.shared().clone();
    let (me, peer) = stage.hosts();
    let bytes = [&[0; HEADER][..], &Packet::tcp(me, peer, 1, vec![7; 1400]).frame()].concat();
    let frame = memory.allocate(bytes.len() as u64, 64)?;
    memory.write(frame, &bytes)?;
    let length = bytes.len() as u32;
    let header = Descriptor { address: frame, length: HEADER as u32, flags: DESC_NEXT, next: 1 };
    let rest = Descriptor { address: frame + HEADER as u64, length: length - HEADER as u32, flags: 0, next: 0 };
    let table = memory.allocate(32, 64)?;
    memory.write(table, &[header.bytes(), rest.bytes()].concat())?;
    let field = Field { memory: &memory, ring: &ring, frame, length, table };
    field.every(field.right());
    Ok(while_flipping(stage, guest, &ring, |turn| flip(&field, turn)))
}

/// Offers all heads over and over, kicking, while another thread flips.
fn while_flipping(stage: &Stage<'_>, mut guest: ToyGuest, ring: &SharedRing, flip: impl Fn(usize) + Sync) -> Traces {
    let deadline = Deadline::after(stage.duration);
    let over = AtomicBool::new(false);
    let mut index = ring.available_index();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(&flip));
        while !deadline.is_over() {
            while index.wrapping_sub(ring.used_index()) < ring.size() {
                ring.set_available_entry(index, index % ring.size());
                index = index.wrapping_add(1);
            }
            ring.set_available_index(index);
            kick_all(&mut guest);
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
    ring.set_available_index(index);
    kick_all(&mut guest);
    guest.pair(0).transmit.queue.ring.resume_at(index);
    let used = ring.used_index();
    Traces::chains(guest, index.wrapping_sub(used).min(ring.size()), used)
}

/// Lets the friend send while another thread flips the villain's receive queue.
fn receive(stage: &mut Stage<'_>, flip: impl Fn(&SharedRing, usize) + Sync) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let ring = guest.pair(0).receive.queue.ring.shared().clone();
    let deadline = Deadline::after(stage.duration);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(|turn| flip(&ring, turn)));
        let mut sent = Ok(());
        while !deadline.is_over() && sent.is_ok() {
            sent = stage.friend_sends(16, 1000);
            // Errors are expected: the villain's own driver trips over its hand's writes.
            while let Ok(Some(_)) = guest.try_receive() {}
            kick_all(&mut guest);
        }
        over.store(true, Ordering::Relaxed);
        sent
    })?;
    Ok(Traces::none(Some(guest)))
}

/// Sends frames that lie in the second region while `change` is done to that region, again and again.
fn with_spare_region(stage: &Stage<'_>, change: impl Fn(&mut ToyGuest) -> Result<(), crate::guest::GuestError>) -> Done {
    let size = stage.builder().memory_plan().size();
    let plan = MemoryPlan::spread(2, size, 1 << 20);
    let mut guest = stage.guest(|builder| builder.memory(plan))?;
    let memory = guest.memory().clone();
    let bytes = [&[0; HEADER][..], &stage.frame(1400)].concat();
    let frame = memory.allocate_in(1, bytes.len() as u64, 64)?;
    memory.write(frame, &bytes)?;
    let ring = guest.pair(0).transmit.queue.ring.shared().clone();
    let right = Descriptor { address: frame, length: bytes.len() as u32, flags: 0, next: 0 };
    (0..ring.size()).for_each(|index| ring.set_descriptor(index, right));
    let deadline = Deadline::after(stage.duration);
    let mut index = ring.available_index();
    // A back end that has cut us off refuses; that is its right.
    while !deadline.is_over() && guest.connected() {
        while index.wrapping_sub(ring.used_index()) < ring.size() {
            ring.set_available_entry(index, index % ring.size());
            index = index.wrapping_add(1);
        }
        ring.set_available_index(index);
        kick_all(&mut guest);
        if change(&mut guest).is_err() {
            break;
        }
    }
    kick_all(&mut guest);
    guest.pair(0).transmit.queue.ring.resume_at(index);
    let used = ring.used_index();
    Ok(Traces::chains(guest, index.wrapping_sub(used).min(ring.size()), used))
}
