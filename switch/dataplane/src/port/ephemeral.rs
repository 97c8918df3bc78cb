//! Ephemeral ports: detached once their front end has left.
//!
//! The thread that accepts front ends decides, because no other one knows that none is about to connect: after [`GRACE`] without one it
//! [closes](Ephemeral::close_if_due) the port, which accepts none then, and tells the network. So no connected guest is detached. A
//! command may [open](Ephemeral::await_again) the port again until it is detached.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a front end may come back: User Mode Linux connects anew when its guest reboots, and QEMU tries every second.
pub const GRACE: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug, Default)]
pub struct Ephemeral(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stage: Stage,
    /// Takes the name of the port once it is closed.
    closed: Option<Sender<String>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The port is not ephemeral.
    #[default]
    Permanent,
    /// No front end has sent a message yet.
    Awaited,
    /// A front end has sent a message; a command has renewed the port at this moment.
    Served { renewed: Option<Instant> },
    /// The front end left at this moment, and none has sent a message since.
    Left(Instant),
    /// No further front end is accepted: the port is about to be detached.
    Closed,
}

impl Ephemeral {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the port ephemeral: its name goes to `closed` once it is closed. `has_left` tells if its front end has come and left
    /// before, at another process of the network.
    pub fn begin(&self, closed: Sender<String>, has_left: bool) {
        let stage = if has_left { Stage::Left(Instant::now()) } else { Stage::Awaited };
        *self.inner() = Inner { stage, closed: Some(closed) };
    }

    /// Makes the port permanent.
    pub fn end(&self) {
        *self.inner() = Inner::default();
    }

    /// The front end has sent a message, or goes on after a takeover. A program that only connects, as to see whether a socket is in use,
    /// is no front end.
    pub fn note_message(&self) {
        let mut inner = self.inner();
        if matches!(inner.stage, Stage::Awaited | Stage::Left(_)) {
            inner.stage = Stage::Served { renewed: None };
        }
    }

    /// The connection of a front end has ended, and no other front end takes its place.
    pub fn note_end(&self, now: Instant) {
        let mut inner = self.inner();
        if let Stage::Served { renewed } = inner.stage {
            let is_renewed = renewed.is_some_and(|renewed| now.saturating_duration_since(renewed) < GRACE);
            inner.stage = if is_renewed { Stage::Awaited } else { Stage::Left(now) };
        }
    }

    /// Time until [`Self::close_if_due`] closes the port, if a front end has left.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        match self.inner().stage {
            Stage::Left(left) => Some((left + GRACE).saturating_duration_since(now)),
            _ => None,
        }
    }

    /// Closes the port if its front end left [`GRACE`] ago; called by the thread that accepts front ends, while none waits. Returns
    /// whether the port is closed.
    pub fn close_if_due(&self, port: &str, now: Instant) -> bool {
        let mut inner = self.inner();
        if matches!(inner.stage, Stage::Left(left) if now.saturating_duration_since(left) >= GRACE) {
            inner.stage = Stage::Closed;
            // Without a listener the network ends.
            let _ = inner.closed.as_ref().map(|closed| closed.send(port.into()));
        }
        inner.stage == Stage::Closed
    }

    /// Whether the port is closed.
    pub fn is_closed(&self) -> bool {
        self.inner().stage == Stage::Closed
    }

    /// Whether a front end has come and left.
    pub fn has_left(&self) -> bool {
        matches!(self.inner().stage, Stage::Left(_) | Stage::Closed)
    }

    /// Has an ephemeral port without a front end wait for one, as if none had come. A front end whose end is noted within [`GRACE`] of
    /// this had left before: the end of a process is noted a little later than its parent learns of it.
    pub fn await_again(&self, now: Instant) {
        let mut inner = self.inner();
        match &mut inner.stage {
            Stage::Permanent | Stage::Awaited => (),
            Stage::Served { renewed } => *renewed = Some(now),
            stage @ (Stage::Left(_) | Stage::Closed) => *stage = Stage::Awaited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_port_closes_after_its_front_end_has_left_and_none_has_come_back() {
        let (sender, closed) = channel();
        let (port, now) = (Ephemeral::default(), Instant::now());
        let late = now + GRACE;
        // A permanent port never closes.
        port.note_message();
        port.note_end(now);
        assert!(!port.close_if_due("p", late) && port.due_in(now).is_none());
        port.begin(sender, false);
        // Nor does one without a front end yet: a program connected, and sent nothing.
        port.note_end(now);
        assert!(!port.close_if_due("p", late) && !port.has_left());
        port.note_message();
        assert!(!port.close_if_due("p", late) && port.due_in(now).is_none());
        port.note_end(now);
        assert_eq!(port.due_in(now), Some(GRACE));
        assert!(!port.close_if_due("p", late - Duration::from_millis(1)));
        // A front end that comes back keeps the port.
        port.note_message();
        assert!(!port.close_if_due("p", late));
        port.note_end(now);
        assert!(port.close_if_due("p", late) && port.close_if_due("p", late));
        assert_eq!(closed.try_iter().collect::<Vec<_>>(), ["p"]);
    }

    #[test]
    fn a_closed_port_opens_by_command_only() {
        let (sender, closed) = channel();
        let (port, now) = (Ephemeral::default(), Instant::now());
        port.begin(sender, true);
        assert!(port.close_if_due("p", Instant::now() + GRACE) && port.is_closed());
        port.note_message();
        port.note_end(now);
        assert!(port.is_closed());
        port.await_again(now);
        assert!(!port.close_if_due("p", now + 2 * GRACE) && !port.has_left());
        port.note_message();
        port.note_end(now);
        assert!(port.close_if_due("p", now + GRACE));
        port.end();
        assert!(!port.close_if_due("p", now + 2 * GRACE));
        assert_eq!(closed.try_iter().count(), 2);
    }

    #[test]
    fn a_command_keeps_a_port_whose_front_end_has_left_unnoticed() {
        let (sender, _closed) = channel();
        let (port, now) = (Ephemeral::default(), Instant::now());
        port.begin(sender, false);
        port.note_message();
        port.await_again(now);
        port.note_end(now + Duration::from_millis(20));
        assert!(!port.close_if_due("p", now + 2 * GRACE) && !port.has_left());
        // The port goes with a front end that was there at the command and stayed.
        port.note_message();
        port.await_again(now);
        port.note_end(now + GRACE);
        assert!(port.close_if_due("p", now + 2 * GRACE));
    }
}
