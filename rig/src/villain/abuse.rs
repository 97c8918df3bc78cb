//! Nothing wrong by itself, but too much of it.

use std::time::Duration;

use vhost::vhost_user::message::FrontendReq as Request;

use crate::deadline::Deadline;
use crate::frames::{BROADCAST, Mac, control};
use crate::frontend::features::IN_ORDER;
use crate::frontend::notify::{CallKind, KickKind};
use crate::guest::{GuestError, ToyGuest};
use crate::ring::{DESC_NEXT, Interrupts, RingError};

use super::hand::{HEADER, kick_all};
use super::ring::say;
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Abuse:
    "kick-storm" kick_storm Nothing "Kicks without end and without anything to do (XSA-391)"
    "kick-that-blocks" kick_that_blocks Nothing "A kick descriptor that blocks whoever reads it empty"
    "call-that-blocks" call_that_blocks Frame "A call that is a full socket: whoever writes to it blocks"
    "call-for-every-chain" call_for_every_chain Nothing "A guest that wants a call for every single chain (XSA-391)"
    "flood-unicast" flood_unicast Nothing "One sender that fills its ring without end"
    "flood-broadcast" flood_broadcast Nothing "Broadcasts without end"
    "flood-announcements" flood_announcements Nothing "SEND_RARP without end, for the own address, the peer's, none, everybody's and invented ones"
    "flood-many-macs" flood_many_macs Nothing "A new source MAC with every frame: the table must forget fairly (OVS)"
    "mac-of-the-peer" mac_of_the_peer Nothing "Frames with the peer's own MAC as source"
    "multicast-source" multicast_source Frame "Frames whose source is broadcast, multicast, or zero"
    "frames-to-oneself" frames_to_oneself Frame "Frames to the sender's own MAC"
    "flood-alternating" flood_alternating Nothing "Frames in turn to the peer, to nobody and to everybody"
    "flood-tiny-and-huge" flood_tiny_and_huge Nothing "Frames of 14 bytes and of 60000 in turn"
    "descriptors-empty-32768" descriptors_empty Frame "A transmit ring of 32768, with chains of 32768 empty descriptors"
    "runts-behind-a-frame-that-waits" runts_behind Port "Where chains go back in order: 65536 runts, more than the ring holds, behind frames without room"
    "start-and-stop" start_and_stop Nothing "Rings that are stopped and started again without end"
    "enable-and-disable" enable_and_disable Nothing "Rings that are enabled and disabled without end while frames are in flight"
}

fn descriptors_empty(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder.ring_size(32768))?;
    let mut hand = Hand::transmit(&mut guest);
    let size = hand.ring().size();
    for index in 0..size {
        hand.describe(index, 0, 0, DESC_NEXT, (index + 1) % size);
    }
    // A few thousand: they must be completed in time on a slow machine too.
    (0..size / 16).for_each(|index| hand.offer(index));
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

fn runts_behind(stage: &mut Stage<'_>) -> Done {
    // Where IN_ORDER is not offered they are just completed.
    let mut guest = stage.guest(|builder| builder.with(IN_ORDER))?;
    let mut hand = Hand::transmit(&mut guest);
    let size = hand.ring().size();
    let place = hand.place_frame(&stage.frame(1000))?;
    (0..size / 2).for_each(|index| hand.describe(index, place, HEADER as u32 + 1000, 0, 0));
    (size / 2..size).for_each(|index| hand.describe(index, place, 1, 0, 0));
    // The peer reads nothing meanwhile: frames beyond its posted buffers wait.
    (0..size / 2).for_each(|index| hand.offer(index));
    hand.show(&mut guest);
    let mut shown = 0;
    while shown <= u32::from(u16::MAX) && guest.connected() {
        (0..size / 4).for_each(|index| hand.offer(size / 2 + index));
        hand.show(&mut guest);
        shown += u32::from(size / 4);
        // Time for the back end to look at the index: else it is a jump of the index.
        std::thread::sleep(Duration::from_micros(100));
    }
    guest.pair(0).transmit.queue.ring.resume_at(hand.index());
    Ok(Traces::none(Some(guest)))
}

fn kick_storm(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let deadline = Deadline::after(stage.duration);
    while !deadline.is_over() {
        kick_all(&mut guest);
    }
    Ok(Traces::none(Some(guest)))
}

fn kick_that_blocks(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder.kick(KickKind::BlockingEventfd))?;
    for _ in 0..32 {
        guest.send(&stage.frame(100))?;
        kick_all(&mut guest);
    }
    Ok(Traces::none(Some(guest)))
}

fn call_that_blocks(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder.call(CallKind::SocketPair))?;
    for pair in guest.pairs() {
        for queue in [&mut pair.transmit.queue, &mut pair.receive.queue] {
            queue.ring.set_interrupts(Interrupts::Next);
            queue.call.fill();
        }
    }
    flood(stage, &mut guest, |stage, _| stage.frame(100))?;
    stage.friend_sends(32, 100)?;
    Ok(Traces::none(Some(guest)))
}

fn call_for_every_chain(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    flood_with(stage, &mut guest, |guest, stage, _| {
        guest.pair(0).transmit.queue.ring.set_interrupts(Interrupts::Next);
        stage.frame(20)
    })?;
    Ok(Traces::none(Some(guest)))
}

fn flood_unicast(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, _| stage.frame(20))
}

fn flood_broadcast(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, _| control::hello(stage.mac))
}

fn flood_announcements(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let deadline = Deadline::after(stage.duration);
    let mut turn = 0_u32;
    while !deadline.is_over() {
        turn += 1;
        let [a, b, c, d] = turn.to_be_bytes();
        for [a, b, c, d, e, f] in [stage.mac, stage.peer, [0; 6], BROADCAST, [0x02, 0x66, a, b, c, d]] {
            say(&mut guest, Request::SEND_RARP, &[a, b, c, d, e, f, 0, 0], &[])?;
        }
    }
    Ok(Traces::none(Some(guest)))
}

fn flood_many_macs(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, turn| {
        let [.., a, b, c, d] = turn.to_be_bytes();
        addressed(stage, stage.peer, [0x02, 0x66, a, b, c, d])
    })
}

fn mac_of_the_peer(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, _| addressed(stage, [0x02, 0x55, 0, 0, 0, 1], stage.peer))
}

fn multicast_source(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, turn| {
        let sources = [BROADCAST, [0x01, 0, 0x5e, 0, 0, 1], [0; 6], [0x33, 0x33, 0, 0, 0, 1]];
        addressed(stage, stage.peer, sources[turn as usize % sources.len()])
    })
}

fn frames_to_oneself(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, _| addressed(stage, stage.mac, stage.mac))
}

fn flood_alternating(stage: &mut Stage<'_>) -> Done {
    flooded(stage, |stage, turn| {
        let destinations = [stage.peer, [0x02, 0x77, 0, 0, 0, turn as u8], BROADCAST];
        addressed(stage, destinations[turn as usize % 3], stage.mac)
    })
}

fn flood_tiny_and_huge(stage: &mut Stage<'_>) -> Done {
    let huge = stage.frame(60_000 - 42);
    flooded(stage, |_, turn| if turn % 2 == 0 { huge[..14].to_vec() } else { huge.clone() })
}

fn start_and_stop(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let deadline = Deadline::after(stage.duration);
    while !deadline.is_over() {
        guest.send(&stage.frame(100))?;
        guest.stop()?;
        guest.start()?;
    }
    Ok(Traces::none(Some(guest)))
}

fn enable_and_disable(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let deadline = Deadline::after(stage.duration);
    while !deadline.is_over() {
        for (ring, enable) in [(0, false), (1, false), (1, true), (0, true)] {
            fill(&mut guest, &stage.frame(100))?;
            guest.frontend()?.enable_ring(ring, enable)?;
        }
    }
    Ok(Traces::none(Some(guest)))
}

/// An honest frame between these addresses.
fn addressed(stage: &Stage<'_>, to: Mac, from: Mac) -> Vec<u8> {
    let mut frame = stage.frame(20);
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame
}

/// A guest that sends the frames that `next` makes, as fast as its ring takes them, for as long as the stage says.
fn flooded(stage: &mut Stage<'_>, next: impl Fn(&Stage<'_>, u64) -> Vec<u8>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    flood(stage, &mut guest, next)?;
    Ok(Traces::none(Some(guest)))
}

fn flood(stage: &Stage<'_>, guest: &mut ToyGuest, next: impl Fn(&Stage<'_>, u64) -> Vec<u8>) -> Result<(), VillainError> {
    flood_with(stage, guest, |_, stage, turn| next(stage, turn))
}

fn flood_with(
    stage: &Stage<'_>,
    guest: &mut ToyGuest,
    next: impl Fn(&mut ToyGuest, &Stage<'_>, u64) -> Vec<u8>,
) -> Result<(), VillainError> {
    let deadline = Deadline::after(stage.duration);
    let mut turn = 0;
    while !deadline.is_over() {
        let frame = next(guest, stage, turn);
        turn += 1;
        fill(guest, &frame)?;
    }
    Ok(())
}

/// Sends a frame if there is room for it.
fn fill(guest: &mut ToyGuest, frame: &[u8]) -> Result<(), VillainError> {
    match guest.send(frame) {
        Ok(_) => Ok(()),
        Err(GuestError::NoSendBuffer(_) | GuestError::Ring(RingError::Full { .. })) => {
            std::thread::yield_now();
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
