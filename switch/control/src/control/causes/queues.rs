//! Causes that the rings of a port tell: receive buffers, interrupts and kicks that are missing.
//!
//! A notification that is late for a moment is no cause: the rings are looked at twice, and only a queue that stands still counts.

use std::time::Duration;

use super::cause::{Cause, CauseKind};
use crate::control::blocked::BlockedQueue;
use crate::id::PortId;
use crate::port::queue_view::QueueView;
use crate::quantity::counted;

/// Pause between two looks: longer than the switch and most guests take to find a notification that was lost.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// How long a driver may take nothing before that is told.
const STUCK: Duration = Duration::from_millis(100);

/// See [`BlockedQueue::new`].
type Name<'a> = &'a dyn Fn(PortId) -> Option<String>;

/// Whether the queues `seen` at the first look are to be looked at once more after [`PAUSE`].
pub(super) fn need_second_look(seen: &[QueueView]) -> bool {
    seen.iter().any(is_suspect)
}

/// Causes at the queues of a vhost-user port, as seen `before` and `after` the pause.
pub(super) fn of(before: &[QueueView], after: &[QueueView], name: Name<'_>) -> Vec<Cause> {
    if before.is_empty() {
        return Vec::new();
    }
    let mut causes: Vec<Cause> = before.iter().find_map(unfilled_memory).into_iter().collect();
    causes.extend(of_all(before));
    if causes.is_empty() {
        causes.extend(without_buffers(before));
    }
    let still = after.iter().filter(|after| before.iter().any(|before| stands_still(before, after)));
    causes.extend(still.filter(|view| is_suspect(view)).map(stands));
    causes.extend(before.iter().filter_map(|view| blocked(view, name)));
    // A port has up to 256 queue pairs; one of each kind tells enough.
    let mut kinds = Vec::new();
    causes.retain(|cause| {
        !kinds.contains(&cause.cause) && {
            kinds.push(cause.cause);
            true
        }
    });
    causes
}

/// Entries that a notification seems to be missing for.
fn is_suspect(view: &QueueView) -> bool {
    view.enabled && (awaits_kick(view) || (view.is_receive() && view.ring.unread > 0))
}

fn awaits_kick(view: &QueueView) -> bool {
    view.awaits_kick && view.ring.available > 0
}

/// Whether the driver has done nothing at a queue between two looks. Frames that arrive meanwhile do not count: a driver that hangs is to
/// be found behind one ping a second.
fn stands_still(before: &QueueView, after: &QueueView) -> bool {
    let read = |view: &QueueView| view.ring.used.wrapping_sub(view.ring.unread);
    let taken = |view: &QueueView| view.ring.available.wrapping_add(view.ring.used);
    let by_driver = |view: &QueueView| (view.key, read(view), taken(view), view.awaits_kick);
    before.ring.unread <= after.ring.unread && by_driver(before) == by_driver(after)
}

/// A cause that concerns all queues together.
fn of_all(views: &[QueueView]) -> Option<Cause> {
    if views.iter().all(|view| !view.enabled) {
        let text = "its front end has disabled all queues (SET_VRING_ENABLE)";
        let remedy = "Wait until the guest has started; resume it if it is paused; else set its link up in the VMM";
        return Some(Cause::new(CauseKind::QueuesDisabled, text, remedy));
    }
    let mut receive = views.iter().filter(|view| view.is_receive()).peekable();
    let unfilled = receive.peek().is_some() && receive.all(|view| view.unfilled && view.ring.available == 0);
    unfilled.then(|| {
        let text = "its driver has posted no receive buffers yet: its interface is down";
        Cause::new(CauseKind::InterfaceDown, text, "Bring it up in the guest: ip link set DEVICE up")
    })
}

/// A queue in memory that is still to be filled.
fn unfilled_memory(view: &QueueView) -> Option<Cause> {
    let waits = view.ring.waits_for_memory?;
    let text = format!(
        "guest memory under its {} queue {} is not filled yet (a lazily restored guest, postcopy): memlane has waited for {}",
        if view.is_receive() { "receive" } else { "transmit" },
        view.key.pair,
        told(waits)
    );
    let remedy = "See that the guest's monitor fills its memory; let it do that before the guest runs, or in the background";
    Some(Cause::new(CauseKind::MemoryNotFilled, text, remedy))
}

/// A receive queue without buffers, for which frames come.
fn without_buffers(views: &[QueueView]) -> Option<Cause> {
    let stuck = |view: &&QueueView| view.is_receive() && view.ring.available == 0 && view.stuck.is_some_and(|stuck| stuck > STUCK);
    let view = views.iter().find(stuck)?;
    let text =
        format!("its guest has posted no receive buffers for {}, and frames for it come", told(view.stuck.unwrap_or_default()));
    let remedy = "See at its console that the guest runs (it may be paused, or hang), has CPU time, and that its interface is up";
    Some(Cause::new(CauseKind::NoReceiveBuffers, text, remedy))
}

/// The cause of a queue that stands still.
fn stands(view: &QueueView) -> Cause {
    let ring = &view.ring;
    if awaits_kick(view) {
        let what = if view.is_receive() { "receive buffers" } else { "frames" };
        let text = format!("its guest has made {} {what} available, and has not kicked", ring.available);
        let remedy = "See that its VMM passes kicks on (ioeventfd); reset the device, or update the guest's driver";
        return Cause::new(CauseKind::NotKicked, text, remedy);
    }
    let unread = counted(ring.unread, "received frame");
    if ring.keeps_call || !ring.has_call {
        let why = if ring.has_call {
            "the last one blocked or took long"
        } else {
            "its front end gave no descriptor for them (SET_VRING_CALL)"
        };
        let text = format!("its guest waits for an interrupt for {unread}, and is sent none: {why}");
        return Cause::new(CauseKind::NotInterrupted, text, "Update the front end");
    }
    let text = format!("its guest was interrupted, and has not looked at {unread}");
    let remedy = "See at its console that the guest runs (it may be paused, or hang) and that its interface is up; else, that its VMM passes interrupts on (irqfd)";
    Cause::new(CauseKind::NotLooking, text, remedy)
}

/// The cause of a transmit queue that is blocked.
fn blocked(view: &QueueView, name: Name<'_>) -> Option<Cause> {
    let blocked = BlockedQueue::new(view.key.pair, view.blocked?, name)?;
    Some(Cause::new(CauseKind::Blocked, blocked.to_string(), blocked.remedy()))
}

pub(super) fn told(span: Duration) -> String {
    if span < Duration::from_secs(10) { format!("{:.1} s", span.as_secs_f64()) } else { format!("{} s", span.as_secs()) }
}
