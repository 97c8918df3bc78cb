//! State that both ends of one queue share with each other and with the xenstore watcher: the domain that they serve, and its
//! violation of the protocol.

#![expect(clippy::indexing_slicing, reason = "a place was taken from the same pages")]

use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;

use super::layer::{Channel, Domain, GrantCopy, Layer, OwnPage, PAGE};
use super::netif::Fault;
use crate::memory::{Fetch, Foreign, Granted, Iovec};

/// See the module.
#[derive(Debug)]
pub(super) struct QueueContext {
    pub(super) layer: Arc<dyn Layer>,
    /// The domain of the front end.
    pub(super) domain: Domain,
    /// The front end's violation of the protocol, if any.
    pub(super) fault: Arc<OnceLock<Fault>>,
    /// Wakes the xenstore watcher (an eventfd).
    pub(super) wake_up: Arc<EventFd>,
}

impl QueueContext {
    /// Records a violation of the protocol; the xenstore watcher then ends the session.
    pub(super) fn fail(&self, fault: Fault) {
        if self.fault.set(fault).is_ok() {
            // Fails only if the eventfd is signalled already.
            let _ = self.wake_up.write(1);
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.fault.get().is_some()
    }
}

/// An event channel by which one or both ends of a queue are notified.
pub(super) type SharedChannel = Arc<Box<dyn Channel>>;

/// Granted pages of ours that grant copies read from or write to, allocated from the first byte on until it is
/// [emptied](Self::empty).
#[derive(Debug)]
pub(super) struct Stage {
    pages: Vec<OwnPage>,
    used: u32,
}

impl Stage {
    /// A stage of so many pages.
    ///
    /// # Errors
    /// Pages or grants have run out.
    pub(super) fn new(layer: &dyn Layer, pages: u16) -> std::io::Result<Self> {
        Ok(Self { pages: layer.own_pages(pages)?, used: 0 })
    }

    /// Bytes left.
    pub(super) fn left(&self) -> u32 {
        self.pages.len() as u32 * PAGE - self.used
    }

    /// Frees all of it.
    pub(super) fn empty(&mut self) {
        self.used = 0;
    }

    /// Bytes in use, as an argument for [`Self::go_back`].
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Frees the bytes allocated after `used` was taken.
    pub(super) fn go_back(&mut self, used: u32) {
        self.used = used;
    }

    /// Allocates up to `length` bytes, at least one, within one page: the grant by which copies name them, and their address
    /// here. `None` if nothing is left.
    pub(super) fn take(&mut self, length: u32) -> Option<(Granted, Iovec)> {
        let page = self.pages.get((self.used / PAGE) as usize)?;
        let offset = self.used % PAGE;
        let iovec = page.page.iovec().skip(offset).first(length);
        self.used += iovec.length();
        Some((page.place.after(offset), iovec))
    }

    /// Has the next `length` bytes, at most a page, lie in one page.
    pub(super) fn keep_together(&mut self, length: u32) {
        if PAGE - self.used % PAGE < length {
            self.used = self.used.next_multiple_of(PAGE);
        }
    }

    /// Allocates `length` bytes, at most a page, within one page.
    pub(super) fn take_contiguous(&mut self, length: u32) -> Option<(Granted, Iovec)> {
        self.keep_together(length);
        self.take(length)
    }
}

/// Places of half a page each, in granted pages of ours, allocated and freed one by one.
#[derive(Debug)]
pub(super) struct Shelf {
    pages: Vec<OwnPage>,
    free: Vec<u16>,
}

impl Shelf {
    /// Bytes of a place: a frame of the usual MTU.
    pub(super) const PLACE: u32 = PAGE / 2;
    const PLACES_A_PAGE: u16 = (PAGE / Self::PLACE) as u16;

    /// A shelf of so many pages.
    ///
    /// # Errors
    /// Pages or grants have run out.
    pub(super) fn new(layer: &dyn Layer, pages: u16) -> std::io::Result<Self> {
        let free = (0..pages * Self::PLACES_A_PAGE).rev().collect();
        Ok(Self { pages: layer.own_pages(pages)?, free })
    }

    /// Allocates a place; `None` if all are in use.
    pub(super) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Frees the place.
    pub(super) fn give_back(&mut self, place: u16) {
        self.free.push(place);
    }

    /// The grant by which copies name the place, and its address here.
    pub(super) fn at(&self, place: u16) -> (Granted, Iovec) {
        let page = &self.pages[usize::from(place / Self::PLACES_A_PAGE)];
        let offset = u32::from(place % Self::PLACES_A_PAGE) * Self::PLACE;
        (page.place.after(offset), page.page.iovec().skip(offset).first(Self::PLACE))
    }
}

/// Fetches memory granted by other domains to pages of ours, for receive ends that need an address.
#[derive(Debug)]
pub(super) struct Fetcher {
    layer: Arc<dyn Layer>,
    stage: std::sync::Mutex<Stage>,
}

impl Fetcher {
    /// Pages enough to fetch most frames by one request.
    const PAGES: u16 = 18;

    pub(super) fn new(layer: Arc<dyn Layer>) -> std::io::Result<Self> {
        let stage = Stage::new(&*layer, Self::PAGES)?;
        Ok(Self { layer, stage: stage.into() })
    }
}

impl Fetch for Fetcher {
    fn fetch(&self, names: &[Foreign], to: &mut [u8]) -> bool {
        let mut stage = self.stage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut to = to;
        let mut names = names;
        while !names.is_empty() {
            stage.empty();
            let (mut copies, mut places) = (Vec::new(), Vec::new());
            while let Some((name, rest)) = names.split_first()
                && let Some((place, iovec)) = stage.take_contiguous(name.length)
            {
                copies.push(GrantCopy::new(name.place, place, name.length));
                places.push(iovec);
                names = rest;
            }
            self.layer.copy(&mut copies);
            for (copy, iovec) in copies.iter().zip(places) {
                let Some((now, later)) = std::mem::take(&mut to).split_at_mut_checked(iovec.length() as usize) else {
                    return false;
                };
                if !copy.is_done() {
                    return false;
                }
                iovec.copy_in(now);
                to = later;
            }
        }
        true
    }
}
