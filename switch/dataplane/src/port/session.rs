//! The front end of a port: its program, its memory, and virtqueues that were stopped without its request.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memlane_model::peer::Peer;

use super::Port;
use super::history::Counted;
use crate::id::RingKey;
use crate::journal::NetworkEvent;
use crate::memory::{DirtyLog, MemoryMap};
use crate::probes;
use crate::ring::{Call, StoppedRing};
use crate::time::cycles;

/// The session of a front end.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The next front end is offered the configuration space (VHOST_USER_PROTOCOL_F_CONFIG), even if it asks before SET_OWNER.
    pub(super) offers_config: bool,
    pub(super) number: u32,
    /// The program that is connected now.
    pub(super) front_end: Option<Peer>,
    /// Other programs that were refused a connection meanwhile.
    pub(super) turned_away: u64,
    /// The last of them that was told of: one that connects again and again, as QEMU does, is told of once.
    pub(super) told_second: Option<Peer>,
    pub(super) memory: Option<Arc<MemoryMap>>,
    pub(super) log: Option<Arc<DirtyLog>>,
    /// Virtqueues that were stopped without a request of the front end.
    pub(super) stopped: HashMap<RingKey, StoppedRing>,
    /// Eventfds by which front ends are told of a ring's errors (SET_VRING_ERR).
    pub(super) errors: HashMap<RingKey, Call>,
}

impl Port {
    /// Copies of the eventfds by which the front end is told of errors of rings.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn error_files(&self) -> io::Result<Vec<(RingKey, OwnedFd)>> {
        let inner = self.inner();
        inner.session.errors.iter().map(|(key, error)| Ok((*key, error.descriptor().try_clone_to_owned()?))).collect()
    }

    /// Sets the eventfd by which the front end is told of a ring's errors; none if there is none.
    pub fn set_error(&self, key: RingKey, error: Option<Call>) {
        match error {
            Some(error) => self.inner().session.errors.insert(key, error),
            None => self.inner().session.errors.remove(&key),
        };
    }

    /// Whether the next front end is offered the configuration space, even if it asks before SET_OWNER.
    pub fn offers_config(&self) -> bool {
        self.inner().session.offers_config
    }

    /// Sets whether it is.
    pub fn set_offers_config(&self, offers: bool) {
        self.inner().session.offers_config = offers;
    }

    /// The guest memory in use.
    pub fn memory(&self) -> Option<Arc<MemoryMap>> {
        self.inner().session.memory.clone()
    }

    /// Sets the guest memory in use.
    pub fn set_memory(&self, memory: Option<Arc<MemoryMap>>) {
        self.inner().session.memory = memory;
    }

    /// Sets the front end's dirty log in use.
    pub fn set_log(&self, log: Option<Arc<DirtyLog>>) {
        self.inner().session.log = log;
    }

    /// The reason why the guest's memory or the front end's dirty log lost a page, if one did.
    pub fn memory_loss(&self) -> Option<String> {
        let (memory, log) = {
            let inner = self.inner();
            (inner.session.memory.clone(), inner.session.log.clone())
        };
        let loss = memory.and_then(|memory| memory.loss()).map(|loss| loss.to_string());
        loss.or_else(|| log.and_then(|log| log.loss()).map(|loss| loss.to_string()))
    }

    /// A new front end begins: a fault that is reported for an earlier session is not its fault.
    pub fn begin_session(&self) {
        self.groups.begin(&self.segment.snooping);
        let mut inner = self.inner();
        inner.session.number = inner.session.number.wrapping_add(1);
    }

    /// Number of the present session, one for each front end.
    pub fn session(&self) -> u32 {
        self.inner().session.number
    }

    /// A front end has connected.
    pub fn front_end_came(&self, peer: Option<Peer>) {
        probes::session(self.id, peer.as_ref().map_or(0, |peer| peer.pid));
        let program = named(peer.as_ref());
        let line = format!("front end connected: {program}");
        self.log_event(format_args!("{line}"), NetworkEvent::FrontEndConnected { port: self.name.clone(), program });
        let mut inner = self.inner();
        (inner.session.front_end, inner.session.turned_away, inner.session.told_second) = (peer, 0, None);
    }

    /// A front end of another process of the network stays connected.
    pub fn front_end_stays(&self, peer: Option<Peer>) {
        self.inner().session.front_end = peer;
    }

    /// The front end has gone, for this reason.
    pub fn front_end_left(&self, why: fmt::Arguments) {
        let event = NetworkEvent::FrontEndLeft { port: self.name.clone(), cause: why.to_string() };
        self.log_event(format_args!("front end left: {why}"), event);
        let mut inner = self.inner();
        (inner.session.front_end, inner.session.turned_away, inner.session.told_second) = (None, 0, None);
    }

    /// The connected program, and how many others were refused a connection meanwhile.
    pub fn front_end(&self) -> (Option<Peer>, u64) {
        let inner = self.inner();
        (inner.session.front_end.clone(), inner.session.turned_away)
    }

    /// Another front end has connected while the port has one, and was refused.
    pub fn turned_away(&self, second: Option<Peer>) {
        self.history().add(Counted::TurnedAway, cycles());
        let holder = {
            let mut inner = self.inner();
            inner.session.turned_away += 1;
            if second.is_some() && inner.session.told_second == second {
                return;
            }
            inner.session.told_second.clone_from(&second);
            inner.session.front_end.clone()
        };
        let (second, holder) = (named(second.as_ref()), named(holder.as_ref()));
        let line = format!(
            "another front end was refused: {second}; the port is in use by {holder}. Give each guest a port of its own, end one of the programs, or set second = \"replace\" for a \
             migration on this host (QEMU's cpr-transfer); until then QEMU connects again and again, and is refused"
        );
        let event = NetworkEvent::FrontEndTurnedAway { port: self.name.clone(), program: second, holder };
        self.log_event(format_args!("{line}"), event);
    }

    /// The front end is gone, and with it its memory, advice, stopped rings and error eventfds.
    pub fn forget_front_end(&self) {
        self.quotas.paid.store(0, Ordering::Relaxed);
        let mut inner = self.inner();
        (inner.session.memory, inner.session.log) = (None, None);
        inner.advice = None;
        inner.session.stopped.clear();
        inner.session.errors.clear();
    }

    /// Keeps a virtqueue that was stopped without a request of its front end, until it is requested.
    pub(crate) fn remember_stopped(&self, key: RingKey, stopped: StoppedRing) {
        self.inner().session.stopped.insert(key, stopped);
    }

    /// Base and interrupt eventfd of a virtqueue that [`Self::remember_stopped`] kept.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn kept_ring(&self, key: RingKey) -> io::Result<Option<(u16, Option<OwnedFd>)>> {
        let inner = self.inner();
        let Some(StoppedRing { base, call }) = inner.session.stopped.get(&key) else { return Ok(None) };
        let call = call.as_ref().map(|call| call.descriptor().try_clone_to_owned()).transpose()?;
        Ok(Some((*base, call)))
    }

    /// Takes the virtqueue that [`Self::remember_stopped`] kept.
    pub fn recall_stopped(&self, key: RingKey) -> Option<StoppedRing> {
        self.inner().session.stopped.remove(&key)
    }

    /// Changes the interrupt eventfd of a virtqueue that [`Self::remember_stopped`] kept.
    ///
    /// # Errors
    /// There is none: `call` is returned.
    pub(crate) fn change_stopped_call(&self, key: RingKey, call: Option<Call>) -> Result<(), Option<Call>> {
        match self.inner().session.stopped.get_mut(&key) {
            Some(stopped) => stopped.call = call,
            None => return Err(call),
        }
        Ok(())
    }
}

fn named(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "a program that the kernel does not name".into(), ToString::to_string)
}
