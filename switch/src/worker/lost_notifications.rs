//! Second looks: what finds notifications that got lost between a driver and us.
//!
//! A driver adds an entry, then reads whether we want a kick; it says that it wants a call, then reads whether there is something for it. Between
//! the two it owes a full fence (virtio 1.4, section 2.7.13.4.1), as we do. Where it has none, each side may read the other's state of
//! before, and neither tells the other, for ever. Such drivers exist: QEMU 7.2, where it translates instructions (TCG), leaves out the fences of
//! guests with one processor.
//!
//! That can happen only while a ring falls quiet. So a ring is looked at again a while after it did, [`Quiet`] keeps how often, and then no
//! more: an idle network sleeps.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use vmm_sys_util::timerfd::TimerFd;

use super::Worker;
use crate::id::Slot;
use crate::ring::{Missed, Quiet, Ring};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(50);

/// When to look: a timer of its own, so that falling asleep costs no more than without it.
#[derive(Debug)]
pub(super) struct LostNotificationCheck {
    timer: TimerFd,
    /// A look is to come.
    expected: bool,
    /// It is time.
    due: bool,
}

impl LostNotificationCheck {
    /// # Errors
    /// The kernel refuses a timer.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { timer: TimerFd::new().map_err(std::io::Error::from)?, expected: false, due: false })
    }

    /// The timer's descriptor, readable once it is time.
    pub(super) fn descriptor(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Some ring may fall quiet from now on.
    #[inline]
    pub(super) fn expect(&mut self) {
        if !self.expected {
            self.expected = self.timer.reset(EVERY, None).is_ok();
        }
    }

    /// The timer says that it is time.
    pub(super) fn come(&mut self) {
        (self.expected, self.due) = (false, true);
    }

    /// Whether to look now; said once.
    fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }
}

impl Worker {
    /// LostNotificationCheck again at the rings that fell quiet, if it is time for that, and makes up for what was missed.
    pub(super) fn look_again(&mut self) {
        if !self.rest.lost_notifications.take_due() {
            return;
        }
        let unsettled = self.look_at_sources() | self.look_at_outlets();
        if unsettled {
            self.rest.lost_notifications.expect();
        }
    }

    /// True if some source is to be looked at once more.
    fn look_at_sources(&mut self) -> bool {
        let mut unsettled = false;
        for slot in self.sources.taken() {
            let Some(source) = self.sources.get(slot) else { continue };
            let (port, mut kept) = (source.port(), false);
            let counters = self.directory.counters(port);
            if let Err(fault) = source.call(|ring| ring.call_kept().map(|still| kept = still), |_| counters) {
                self.fault(port, fault);
                continue;
            }
            unsettled |= kept;
            let (quiet, missed) = source.quiet.look(|| source.missed());
            source.quiet = quiet;
            unsettled |= quiet != Quiet::Settled;
            match missed {
                Some(Missed::Kick) => {
                    let port = source.port();
                    self.sources.wake(slot);
                    self.counters(port).missed_kicks.add(1);
                }
                Some(Missed::Call) => self.call_sender_again(slot),
                None => {}
            }
        }
        unsettled
    }

    /// Calls the driver of a source once more, and counts.
    fn call_sender_again(&mut self, slot: Slot) {
        let Some(source) = self.sources.get(slot) else { return };
        let port = source.port();
        let counters = self.directory.counters(port);
        let result = source.call(Ring::call_again, |_| counters);
        counters.repeated_calls.add(1);
        if let Err(fault) = result {
            self.fault(port, fault);
        }
    }

    /// True if some outlet is to be looked at once more.
    fn look_at_outlets(&mut self) -> bool {
        let mut unsettled = false;
        for slot in self.outlets.taken() {
            let Some(outlet) = self.outlets.get(slot) else { continue };
            let counters = self.directory.counters(outlet.key.port);
            let Some(kept) = self.outlets.call_kept(slot, counters) else { continue };
            unsettled |= kept;
            let Some(outlet) = self.outlets.get(slot) else { continue };
            let (quiet, missed) = outlet.quiet.look(|| outlet.missed());
            outlet.quiet = quiet;
            unsettled |= quiet != Quiet::Settled;
            if missed.is_some() {
                let port = outlet.key.port;
                let counters = self.directory.counters(port);
                self.outlets.call_again(slot, counters);
                counters.repeated_calls.add(1);
            }
        }
        self.report_faults();
        unsettled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_comes_once_for_all_that_fell_quiet_before() {
        let mut looks = LostNotificationCheck::new().unwrap();
        looks.expect();
        looks.expect();
        assert!(!looks.take_due());
        assert_eq!(looks.timer.wait().unwrap(), 1);
        looks.come();
        assert!(looks.take_due() && !looks.take_due());
        looks.expect();
        assert_eq!(looks.timer.wait().unwrap(), 1);
    }
}
