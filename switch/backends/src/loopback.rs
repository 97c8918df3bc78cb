//! A loopback port: one MAC address that sends each unicast frame back to its source. The shortest example of a back end that
//! keeps frames in flight, and an echo for measurements without a second guest.

#![expect(clippy::indexing_slicing, reason = "sixty bytes of its own, in buffers that are longer")]

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::payload;
use super::store::Store;
use crate::frame::{Head, MacAddress, NetHeader};
use crate::packet::Packet;
use crate::pool::Pool;
use crate::port::end::{Backend, Ends, ReceiveEnd, TransmitEnd};
use crate::ring::{OpenOutcome, PlaceOutcome};

/// The MAC address that echoes. Unicast frames to it stay in packet buffers until they are echoed; others are accepted and
/// dropped.
#[derive(Debug)]
pub struct Loopback(pub MacAddress);

impl Backend for Loopback {
    fn into_ends(self, pool: &Arc<Pool>) -> std::io::Result<Ends> {
        let store = Arc::new(Mutex::new(Store::new(Arc::clone(pool))));
        let wake_up = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let readable = Some(File::from(wake_up.as_fd().try_clone_to_owned()?));
        let (transmit, receive) = (
            Box::new(LoopbackTransmit(Arc::clone(&store))),
            Box::new(LoopbackReceive { address: self.0, store, wake_up, bytes: Vec::new(), came: false }),
        );
        Ok(Ends { transmit, receive, readable, writable: None, room: None })
    }
}

/// Locks the store. Both ends belong to one worker, so the lock is never contended.
fn locked(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct LoopbackTransmit(Arc<Mutex<Store>>);

impl TransmitEnd for LoopbackTransmit {
    fn look(&mut self, most: u16) -> u16 {
        locked(&self.0).filled().min(most.into()) as u16
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        locked(&self.0).open(packet, true)
    }

    fn keep(&mut self, _packet: &Packet) {
        locked(&self.0).keep();
    }

    fn release(&mut self, head: u16) {
        locked(&self.0).release(head);
    }

    fn size(&self) -> u16 {
        locked(&self.0).size()
    }

    fn has_news(&self) -> bool {
        locked(&self.0).filled() > 0
    }

    fn wake(&mut self) {}
}

#[derive(Debug)]
struct LoopbackReceive {
    address: MacAddress,
    store: Arc<Mutex<Store>>,
    /// Wakes the worker for the transmit queue (an eventfd).
    wake_up: EventFd,
    /// Scratch.
    bytes: Vec<u8>,
    came: bool,
}

impl ReceiveEnd for LoopbackReceive {
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome {
        if Head::of(&packet.start).destination() != self.address {
            return PlaceOutcome::Complete(1);
        }
        let mut store = locked(&self.store);
        store.make_room(1);
        let Some(index) = store.take_free() else { return PlaceOutcome::NoRoom };
        self.bytes.clear();
        self.bytes.extend_from_slice(&packet.header.bytes());
        payload::append(packet, 0, packet.length, &mut self.bytes);
        // Destination and source, six bytes each, change places.
        self.bytes[NetHeader::SIZE..][..12].rotate_left(6);
        store.bytes(index)[..self.bytes.len()].copy_from_slice(&self.bytes);
        store.fill(index, self.bytes.len() as u32);
        self.came = true;
        PlaceOutcome::Complete(1)
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.came) {
            // Fails only if the eventfd is signalled already.
            let _ = self.wake_up.write(1);
        }
    }

    fn has_room(&mut self) -> bool {
        locked(&self.store).has_room()
    }
}
