//! Doubt: whether a guest's memory is shared with us at all.
//!
//! A front end without shared memory says nothing of it. Some send no memory, so that no ring ever starts; others send a file that their guest
//! has only a private copy of: its rings run, kicks come, and nothing is ever in them. Who finds no network has to be told why. So a session
//! whose rings have shown nothing yet looks now and then, until they have.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::device::Device;
use crate::door::Door;

/// How long to wait for what would end the doubt, at first and at most. QEMU kicks when a ring starts, and the guest fills it when its interface goes
/// up, which takes a slow guest seconds.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(40));

/// What speaks against shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// Rings run, but nothing was in them yet, nor has anybody kicked.
    Silence,
    /// Kicks came, and nothing is in the rings.
    Private,
    /// Rings are set up, and there is no memory.
    Missing,
}

impl Doubt {
    /// What the operator is told.
    fn advice(self) -> Option<&'static str> {
        match self {
            Self::Silence => None,
            Self::Private => Some(
                "its guest kicks, but its rings stay empty: unless its interface is down, its memory is a private copy of the file that was passed on (share=off); \
                 give QEMU's memory back end share=on (memlane qemu --memory prints it), libvirt's domain <access mode='shared'/>",
            ),
            Self::Missing => Some(
                "its front end has passed on no memory: the guest's lies in no file, or in one with share=off, which newer QEMU passes to no back end; \
                 give QEMU -object memory-backend-memfd,share=on or its memory-backend-file share=on (memlane qemu --memory prints it), \
                 libvirt's domain <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>",
            ),
        }
    }
}

/// Returns when there is no doubt that needs looking at again, or the next message is there. `kicks` came before this session.
pub(super) fn look_until_message(door: &Door, device: &Arc<Mutex<Device>>, stream: &UnixStream, kicks: u64) {
    let port = door.port;
    let doubt = || {
        let kicked = port.totals().kicks > kicks;
        device.lock().unwrap_or_else(PoisonError::into_inner).doubt(kicked)
    };
    let mut pause = PAUSE.0;
    while doubt().is_some() {
        if door.wait(stream, Some(pause)) {
            return;
        }
        let Some(doubt) = doubt() else { break };
        port.set_advice(doubt.advice());
        if doubt == Doubt::Missing {
            // Only a message can bring it.
            return;
        }
        pause = (pause * 2).min(PAUSE.1);
    }
    port.set_advice(None);
}
