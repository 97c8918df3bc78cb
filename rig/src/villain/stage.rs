//! The stage on which misbehaviours take place, and their traces.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::deadline::{self, Deadline};
use crate::frames::{Host, Mac, Packet};
use crate::frontend::features::{self, Features};
use crate::frontend::{Frontend, FrontendError};
use crate::guest::{GuestBuilder, GuestError, Habit, ToyGuest};
use crate::memory::MemoryError;
use crate::ring::RingError;

/// Why a misbehaviour could not take place.
#[derive(Debug, thiserror::Error)]
pub enum VillainError {
    /// The guest could not be had, or its rings not be used.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The raw socket failed before the misbehaviour began.
    #[error("{step}: {cause}")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The back end does not offer the feature that the case misuses.
    #[error("the back end does not offer {0}, without which there is nothing to misuse")]
    NotOffered(String),
    /// There is no friend that could send to the villain.
    #[error("{0} needs a friend: an honest guest on another port that sends to the villain")]
    NeedsFriend(&'static str),
}

impl From<MemoryError> for VillainError {
    fn from(error: MemoryError) -> Self {
        GuestError::from(error).into()
    }
}

impl From<RingError> for VillainError {
    fn from(error: RingError) -> Self {
        GuestError::from(error).into()
    }
}

impl From<FrontendError> for VillainError {
    fn from(error: FrontendError) -> Self {
        GuestError::from(error).into()
    }
}

/// Where to misbehave; see [`super`].
pub struct Stage<'a> {
    /// The socket of the villain's port; the back end listens there.
    pub path: &'a Path,
    /// The villain's MAC address.
    pub mac: Mac,
    /// A guest on another port, to which frames are sent.
    pub peer: Mac,
    /// An honest guest on another port that sends to the villain where a case needs it.
    pub friend: Option<&'a mut ToyGuest>,
    /// In which order the villain's front end speaks.
    pub habit: Habit,
    /// How long races and floods last.
    pub duration: Duration,
    /// How long to wait for the back end before misbehaving.
    pub timeout: Duration,
}

impl<'a> Stage<'a> {
    /// A stage at the port that listens at `path`; races and floods last 300 ms, waits 5 s at most.
    pub fn new(path: &'a Path, mac: Mac, peer: Mac) -> Self {
        let (duration, timeout) = (Duration::from_millis(300), Duration::from_secs(5));
        Self { path, mac, peer, friend: None, habit: Habit::QEMU, duration, timeout }
    }

    /// The same with a friend.
    #[must_use]
    pub fn with_friend(mut self, friend: &'a mut ToyGuest) -> Self {
        self.friend = Some(friend);
        self
    }

    /// A guest to be, as Linux has it, at the villain's port.
    pub fn builder(&self) -> GuestBuilder {
        ToyGuest::builder().mac(self.mac).habit(self.habit).timeout(self.timeout)
    }

    /// A started guest, as Linux has it, changed by `change`.
    pub(super) fn guest(&self, change: impl FnOnce(GuestBuilder) -> GuestBuilder) -> Result<ToyGuest, VillainError> {
        Ok(change(self.builder()).connect(self.path)?)
    }

    /// A started guest for which these features are negotiated.
    pub(super) fn guest_with(&self, needed: Features) -> Result<ToyGuest, VillainError> {
        let guest = self.guest(|builder| builder.with(needed))?;
        let missing = needed & !guest.features();
        if missing == 0 {
            return Ok(guest);
        }
        Err(VillainError::NotOffered(features::names(missing).join(", ")))
    }

    /// A guest that has negotiated but not started.
    pub(super) fn negotiated(&self) -> Result<ToyGuest, VillainError> {
        self.guest(|builder| builder.started(false))
    }

    /// A bare connection.
    pub(super) fn connect(&self) -> Result<UnixStream, VillainError> {
        let frontend = Frontend::connect(self.path, self.timeout)?;
        let copy = frontend.stream().try_clone();
        copy.map_err(|cause| VillainError::Socket { step: "duplicating the socket", cause })
    }

    /// The villain and the peer as hosts of IPv4.
    pub(super) fn hosts(&self) -> (Host, Host) {
        let host = |mac: Mac, number| Host { mac, ..Host::v4(number) };
        (host(self.mac, 1), host(self.peer, 2))
    }

    /// An honest frame to the peer, with `length` payload bytes.
    pub(super) fn frame(&self, length: usize) -> Vec<u8> {
        let (me, peer) = self.hosts();
        Packet::udp(me, peer, vec![0xa5; length]).frame()
    }

    /// Lets the friend send `count` frames of `length` payload bytes to the villain; as many as it has room for.
    pub(super) fn friend_sends(&mut self, count: usize, length: usize) -> Result<(), VillainError> {
        let (me, peer) = self.hosts();
        let Some(friend) = self.friend.as_deref_mut() else {
            return Ok(());
        };
        let from = Host { mac: friend.mac(), ..peer };
        let frame = Packet::udp(from, me, vec![0x5a; length]).frame();
        for _ in 0..count {
            match friend.send(&frame) {
                Ok(_) => {}
                Err(GuestError::NoSendBuffer(_) | GuestError::Ring(RingError::Full { .. })) => {
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Traces of a misbehaviour.
#[derive(Debug)]
pub struct Traces {
    /// The guest, if there is one: still connected if the back end has not cut it off.
    pub guest: Option<ToyGuest>,
    /// Chains shown to the back end in the first transmit queue, good and bad: all must be completed while the port lives.
    pub offered: u16,
    /// The transmit queue's used index before; none when the guest's memory must not be touched any more.
    used_before: Option<u16>,
}

impl Traces {
    /// Traces without chains.
    pub(super) fn none(guest: Option<ToyGuest>) -> Self {
        Self { guest, offered: 0, used_before: Some(0) }
    }

    /// Traces of `offered` chains shown since the used index was `used_before`.
    pub(super) fn chains(guest: ToyGuest, offered: u16, used_before: u16) -> Self {
        Self { guest: Some(guest), offered, used_before: Some(used_before) }
    }

    /// Traces of a guest without memory: any access, by this process too, gets SIGBUS.
    pub(super) fn without_memory(guest: ToyGuest) -> Self {
        Self { guest: Some(guest), offered: 0, used_before: None }
    }

    /// How many of the chains were completed.
    pub fn returned(&mut self) -> u16 {
        let Some(before) = self.used_before else {
            return 0;
        };
        let transmit = self.guest.as_mut().and_then(|guest| guest.pairs().first_mut());
        transmit.map_or(0, |pair| pair.transmit.queue.ring.shared().used_index().wrapping_sub(before))
    }

    /// Whether the back end has cut the villain off (or there never was a guest).
    pub fn cut_off(&self) -> bool {
        self.guest.as_ref().is_none_or(|guest| !guest.connected())
    }

    /// Whether the back end has said (SET_VRING_ERR) that it gave a ring up.
    pub fn fault_signalled(&mut self) -> bool {
        let Some(guest) = &mut self.guest else {
            return false;
        };
        let signalled: u64 = guest.queues().map(|queue| queue.fault.drain()).sum();
        signalled > 0
    }

    /// Waits until all chains are completed (`true`), or the deadline is over or the villain is cut off (`false`), doing `work` again
    /// and again meanwhile.
    pub fn wait_returned_while(&mut self, timeout: Duration, mut work: impl FnMut()) -> bool {
        let offered = self.offered;
        let mut all = false;
        deadline::until(Deadline::after(timeout), || {
            work();
            all = self.returned() >= offered;
            all || self.cut_off()
        });
        all
    }
}
