//! Indices, sizes, bases and addresses of rings that cannot be.

use std::os::fd::AsRawFd;

use vhost::vhost_user::message::FrontendReq as Request;

use crate::frontend::wire;
use crate::guest::{RingStep, ToyGuest};

use super::hand::{NOWHERE, kick_all};
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Ring:
    "available-jump" available_jump Port "The available index jumps by more than the ring holds (firecracker #3149)"
    "available-backwards" available_backwards Port "The available index goes backwards"
    "available-entries-garbage" available_entries_garbage Port "A full ring of random heads over descriptors that were never written"
    "ring-size-zero" ring_size_zero Port "SET_VRING_NUM 0"
    "ring-size-odd" ring_size_odd Port "SET_VRING_NUM that is no power of two"
    "ring-size-huge" ring_size_huge Port "SET_VRING_NUM of 65536, 2^20 and 2^32 - 1"
    "ring-size-changed" ring_size_changed Port "SET_VRING_NUM while the ring runs (DPDK CVE-2026-86565)"
    "ring-index-beyond" ring_index_beyond Port "Messages about rings that do not exist, 256 + 1 among them (DPDK CVE-2020-10723)"
    "ring-base-beyond" ring_base_beyond Port "SET_VRING_BASE far from the available index, and of more than 16 bits"
    "ring-addresses-nowhere" ring_addresses_nowhere Port "SET_VRING_ADDR with addresses that are no memory"
    "ring-addresses-across-end" ring_addresses_across_end Port "Rings that begin in memory and end behind it"
    "ring-addresses-unaligned" ring_addresses_unaligned Port "Rings at odd addresses"
    "ring-addresses-changed" ring_addresses_changed Port "SET_VRING_ADDR elsewhere while the ring runs"
    "ring-areas-overlap" ring_areas_overlap Port "Descriptor table, available and used ring all at one address"
    "rings-share-memory" rings_share_memory Port "Transmit and receive queue are the same ring"
    "kick-before-addresses" kick_before_addresses Port "A ring is kicked before it has size or addresses"
    "kick-before-memory" kick_before_memory Port "Rings are set up and kicked before there is any memory"
    "enable-garbage" enable_garbage Port "SET_VRING_ENABLE with neither 0 nor 1"
    "stop-twice" stop_twice Port "GET_VRING_BASE for stopped, for unknown and again for stopped rings"
    "restart-without-stop" restart_without_stop Port "Size, base, addresses and kick again while the ring runs"
}

fn available_jump(stage: &mut Stage<'_>) -> Done {
    jump(stage, |index, size| index.wrapping_add(size + 1))
}

fn available_backwards(stage: &mut Stage<'_>) -> Done {
    jump(stage, |index, _| index.wrapping_sub(1))
}

fn available_entries_garbage(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let mut hand = Hand::transmit(&mut guest);
    (0..hand.ring().size()).for_each(|number| hand.offer(number.wrapping_mul(40_503)));
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

fn ring_size_zero(stage: &mut Stage<'_>) -> Done {
    size(stage, &[0])
}

fn ring_size_odd(stage: &mut Stage<'_>) -> Done {
    size(stage, &[3, 100, 1000, 32767])
}

fn ring_size_huge(stage: &mut Stage<'_>) -> Done {
    size(stage, &[65536, 1 << 20, u32::MAX])
}

fn ring_size_changed(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    guest.send(&stage.frame(100))?;
    for size in [32768, 1, 512] {
        for ring in [0, 1] {
            state(&mut guest, Request::SET_VRING_NUM, ring, size)?;
        }
        kick_all(&mut guest);
    }
    finish(guest)
}

fn ring_index_beyond(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    for ring in [2, 100, 255, 256, 257, 0x1_0001, u32::MAX] {
        for request in [Request::SET_VRING_NUM, Request::SET_VRING_BASE, Request::SET_VRING_ENABLE] {
            state(&mut guest, request, ring, 1)?;
        }
        addresses(&mut guest, ring, [NOWHERE; 3])?;
        let fd = guest.memory().raw_file();
        for request in [Request::SET_VRING_KICK, Request::SET_VRING_CALL, Request::SET_VRING_ERR] {
            say(&mut guest, request, &u64::from(ring).to_le_bytes(), &[fd])?;
        }
    }
    finish(guest)
}

fn ring_base_beyond(stage: &mut Stage<'_>) -> Done {
    with_rings(stage, |guest, ring| {
        for base in [12_345, 0x1_0000, u32::MAX] {
            state(guest, Request::SET_VRING_BASE, ring, base)?;
        }
        Ok(())
    })
}

fn ring_addresses_nowhere(stage: &mut Stage<'_>) -> Done {
    with_rings(stage, |guest, ring| {
        for at in [[NOWHERE; 3], [0; 3], [u64::MAX; 3], [u64::MAX - 15; 3]] {
            addresses(guest, ring, at)?;
        }
        Ok(())
    })
}

fn ring_addresses_across_end(stage: &mut Stage<'_>) -> Done {
    with_rings(stage, |guest, ring| {
        let region = &guest.memory().regions()[0];
        let end = region.user() + region.size();
        addresses(guest, ring, [end - 16, end - 4, end - 2])?;
        addresses(guest, ring, [end - 4096, end - 64, end - 32])
    })
}

fn ring_addresses_unaligned(stage: &mut Stage<'_>) -> Done {
    with_rings(stage, |guest, ring| {
        let start = guest.memory().regions()[0].user();
        addresses(guest, ring, [start + 1, start + 8193, start + 16385])
    })
}

fn ring_addresses_changed(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    guest.send(&stage.frame(100))?;
    let start = guest.memory().regions()[0].user();
    for ring in [0, 1] {
        addresses(&mut guest, ring, [start, start + 8192, start + 16384])?;
    }
    kick_all(&mut guest);
    finish(guest)
}

fn ring_areas_overlap(stage: &mut Stage<'_>) -> Done {
    with_rings(stage, |guest, ring| {
        let start = guest.memory().regions()[0].user();
        addresses(guest, ring, [start; 3])
    })
}

fn rings_share_memory(stage: &mut Stage<'_>) -> Done {
    let place = std::cell::Cell::new(None);
    with_rings(stage, |guest, ring| {
        let base = guest.memory().regions()[0].user();
        let at = place.get().unwrap_or([base, base + 8192, base + 16384]);
        place.set(Some(at));
        addresses(guest, ring, at)
    })
}

fn kick_before_addresses(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let features = guest.features();
    guest.frontend()?.set_features(features)?;
    guest.announce_memory(&[0])?;
    kick_and_enable(&mut guest)?;
    finish(guest)
}

fn kick_before_memory(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    for ring in [0, 1] {
        state(&mut guest, Request::SET_VRING_NUM, ring, 256)?;
        state(&mut guest, Request::SET_VRING_BASE, ring, 0)?;
        let start = guest.memory().regions()[0].user();
        addresses(&mut guest, ring, [start, start + 8192, start + 16384])?;
    }
    kick_and_enable(&mut guest)?;
    finish(guest)
}

fn enable_garbage(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    for number in [2, 0x100, u32::MAX] {
        state(&mut guest, Request::SET_VRING_ENABLE, 1, number)?;
    }
    finish(guest)
}

fn stop_twice(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    for ring in [1, 1, 0, 0, 7, u32::MAX] {
        state(&mut guest, Request::GET_VRING_BASE, ring, 0)?;
    }
    finish(guest)
}

fn restart_without_stop(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    guest.send(&stage.frame(100))?;
    for ring in [0, 1] {
        for step in [RingStep::Size, RingStep::Base, RingStep::Addresses, RingStep::Kick] {
            // The back end may refuse and hang up; then the rest cannot be said.
            if guest.ring_step(ring, step).is_err() {
                return finish(guest);
            }
        }
    }
    finish(guest)
}

/// Offers one honest frame at an available index of `index`'s making.
fn jump(stage: &Stage<'_>, index: impl FnOnce(u16, u16) -> u16) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    guest.send(&stage.frame(100))?;
    let ring = guest.pair(0).transmit.queue.ring.shared().clone();
    ring.set_available_index(index(ring.available_index(), ring.size()));
    kick_all(&mut guest);
    finish(guest)
}

fn size(stage: &Stage<'_>, sizes: &[u32]) -> Done {
    let mut last = None;
    for &size in sizes {
        drop(last.take());
        last = Some(with_rings(stage, |guest, ring| state(guest, Request::SET_VRING_NUM, ring, size))?);
    }
    last.ok_or(VillainError::NotOffered("a size".into()))
}

/// Sets up both rings as they should be, spoils them by `spoil`, and starts them.
fn with_rings(stage: &Stage<'_>, spoil: impl Fn(&mut ToyGuest, u32) -> Result<(), VillainError>) -> Done {
    let mut guest = stage.negotiated()?;
    let features = guest.features();
    guest.frontend()?.set_features(features)?;
    guest.announce_memory(&[0])?;
    let start = guest.memory().allocate(64 << 10, 4096)?;
    let user = guest.memory().user(start)?;
    for ring in [0, 1] {
        let at = user + u64::from(ring) * (32 << 10);
        state(&mut guest, Request::SET_VRING_NUM, ring, 256)?;
        state(&mut guest, Request::SET_VRING_BASE, ring, 0)?;
        addresses(&mut guest, ring, [at, at + 8192, at + 16384])?;
        spoil(&mut guest, ring)?;
    }
    kick_and_enable(&mut guest)?;
    finish(guest)
}

/// Starts and enables both rings; the kick descriptor is readable at once.
fn kick_and_enable(guest: &mut ToyGuest) -> Result<(), VillainError> {
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::AsFd;
    let refused = |error: nix::errno::Errno| VillainError::Socket { step: "making a kick", cause: error.into() };
    let kick = EventFd::from_value_and_flags(1, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(refused)?;
    for ring in [0u64, 1] {
        say(guest, Request::SET_VRING_KICK, &ring.to_le_bytes(), &[kick.as_fd().as_raw_fd()])?;
        state(guest, Request::SET_VRING_ENABLE, ring as u32, 1)?;
    }
    Ok(())
}

/// A message about a ring with one number.
fn state(guest: &mut ToyGuest, request: Request, ring: u32, number: u32) -> Result<(), VillainError> {
    say(guest, request, &[ring.to_le_bytes(), number.to_le_bytes()].concat(), &[])
}

/// SET_VRING_ADDR with user addresses of descriptor table, available ring and used ring.
fn addresses(guest: &mut ToyGuest, ring: u32, [descriptors, available, used]: [u64; 3]) -> Result<(), VillainError> {
    let body = [
        &ring.to_le_bytes()[..],
        &0u32.to_le_bytes(),
        &descriptors.to_le_bytes(),
        &used.to_le_bytes(),
        &available.to_le_bytes(),
        &0u64.to_le_bytes(),
    ];
    say(guest, Request::SET_VRING_ADDR, &body.concat(), &[])
}

/// A raw message, without waiting for an answer. A back end that has hung up is no error: the misbehaviour took place.
pub(super) fn say(guest: &mut ToyGuest, request: Request, body: &[u8], fds: &[i32]) -> Result<(), VillainError> {
    let _ = wire::send(guest.frontend()?.stream(), request as u32, wire::VERSION, body, fds);
    Ok(())
}

/// Leaves the guest as it is; none of its chains must be returned.
fn finish(guest: ToyGuest) -> Done {
    Ok(Traces::none(Some(guest)))
}
