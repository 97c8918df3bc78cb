//! Connections that break off, crawl, or come in crowds.

use std::time::Duration;

use vhost::vhost_user::message::FrontendReq as Request;

use crate::deadline::Deadline;
use crate::frontend::{connect_at_once, wire};
use crate::guest::{Habit, Step, ToyGuest};

use super::message::send;
use super::ring::say;
use super::{Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Message:
    "hang-up-after-every-message" hang_up_after_every_message Port "A handshake that breaks off after its first, second, ... message"
    "hang-up-in-every-byte" hang_up_in_every_byte Port "A message that breaks off after its first, second, ... byte"
    "hang-up-while-running" hang_up_while_running Port "The guest dies with frames in flight both ways"
    "byte-by-byte" byte_by_byte Nothing "Messages that come byte by byte: slow, but right"
    "many-in-one" many_in_one Nothing "Many messages in one write: fast, but right"
    "connection-flood" connection_flood Port "Hundreds of connections that say nothing"
    "second-connection" second_connection Nothing "A second guest at a port where one is running"
    "never-reads-answers" never_reads_answers Port "Ten thousand questions whose answers nobody reads"
    "never-reads-requests" never_reads_requests Nothing "A channel for the back end's own requests that nobody reads"
    "says-nothing" says_nothing Nothing "A connection that says nothing while others work"
}

fn hang_up_after_every_message(stage: &mut Stage<'_>) -> Done {
    for habit in Habit::ALL {
        let steps: Vec<Step> = [habit.connect, habit.start].concat();
        for count in 0..=steps.len() {
            let nothing = Habit { connect: &[], start: &[], ..habit };
            let mut guest = stage.guest(|builder| builder.habit(nothing).started(false))?;
            for step in &steps[..count] {
                guest.step(*step)?;
            }
        }
    }
    Ok(Traces::none(None))
}

fn hang_up_in_every_byte(stage: &mut Stage<'_>) -> Done {
    let message = [&wire::header(Request::SET_VRING_ADDR as u32, wire::VERSION, 40)[..], &[0; 40]].concat();
    for length in 1..message.len() {
        send(&stage.connect()?, &message[..length]);
    }
    Ok(Traces::none(None))
}

fn hang_up_while_running(stage: &mut Stage<'_>) -> Done {
    for _ in 0..20 {
        let mut guest = stage.guest(|builder| builder)?;
        for _ in 0..64 {
            guest.send(&stage.frame(1000))?;
        }
        stage.friend_sends(32, 1000)?;
        drop(guest);
    }
    Ok(Traces::none(None))
}

fn byte_by_byte(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let features = guest.features();
    let message = [&wire::header(Request::SET_FEATURES as u32, wire::VERSION, 8)[..], &features.to_le_bytes()].concat();
    for byte in message.chunks(1) {
        send(guest.frontend()?.stream(), byte);
        std::thread::yield_now();
    }
    guest.start()?;
    Ok(Traces::none(Some(guest)))
}

fn many_in_one(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let features = guest.features();
    let message = [&wire::header(Request::SET_FEATURES as u32, wire::VERSION, 8)[..], &features.to_le_bytes()].concat();
    send(guest.frontend()?.stream(), &message.repeat(50));
    guest.start()?;
    Ok(Traces::none(Some(guest)))
}

fn connection_flood(stage: &mut Stage<'_>) -> Done {
    let mut crowd = Vec::new();
    for _ in 0..400 {
        // The back end's queue of connections is full: the crowd is large enough.
        match connect_at_once(stage.path) {
            Ok(stream) => crowd.push(stream),
            Err(_) => break,
        }
    }
    Ok(Traces::none(None))
}

fn second_connection(stage: &mut Stage<'_>) -> Done {
    let first = stage.guest(|builder| builder)?;
    let impatient = Duration::from_millis(200);
    // The second connection may be refused, left waiting, or taken in place of the first; none of that is the case's business.
    let second = stage.guest(|builder| builder.timeout(impatient));
    drop(second);
    Ok(Traces::none(Some(first)))
}

fn never_reads_answers(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let stream = guest.frontend()?.stream();
    // Neither side may block for ever: we stop when the socket is full.
    let nonblocking = stream.set_nonblocking(true);
    nonblocking.map_err(|cause| VillainError::Socket { step: "making the socket non-blocking", cause })?;
    for _ in 0..10_000 {
        if wire::send(stream, Request::GET_FEATURES as u32, wire::VERSION, &[], &[]).is_err() {
            break;
        }
    }
    Ok(Traces::none(Some(guest)))
}

fn never_reads_requests(stage: &mut Stage<'_>) -> Done {
    let mut guest: ToyGuest = stage.guest(|builder| builder)?;
    for mtu in 0..2000u64 {
        // Each may make the back end tell us of a changed configuration.
        say(&mut guest, Request::NET_SET_MTU, &(1280 + mtu % 200).to_le_bytes(), &[])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn says_nothing(stage: &mut Stage<'_>) -> Done {
    let stream = stage.connect()?;
    // A back end may well hang up on us; it must not do so in a hurry, or a slow front end is lost.
    let soon = Deadline::after(stage.duration);
    let _ = crate::deadline::readable(&stream, soon);
    Ok(Traces::none(None))
}
