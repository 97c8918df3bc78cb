//! What the ends of one queue share with each other and with the keeper: whom they serve, and the rule that was broken.

use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;

use super::layer::{Channel, Domain, GrantCopy, Layer, OwnPage, PAGE};
use super::netif::Fault;
use crate::memory::{Fetch, Foreign, Granted, Piece};

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) layer: Arc<dyn Layer>,
    /// Whose front end it is.
    pub(super) domain: Domain,
    /// The rule that it broke, if it did.
    pub(super) fault: Arc<OnceLock<Fault>>,
    /// Has the keeper look.
    pub(super) bell: Arc<EventFd>,
}

impl Link {
    /// Notes that a rule was broken; the keeper ends the session.
    pub(super) fn fail(&self, fault: Fault) {
        if self.fault.set(fault).is_ok() {
            // Full only if it was rung already.
            let _ = self.bell.write(1);
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.fault.get().is_some()
    }
}

/// An event channel that one or both ends are told by.
pub(super) type SharedChannel = Arc<Box<dyn Channel>>;

/// Pages of ours that copies read from or write to, used from the first on until it is [emptied](Self::empty).
#[derive(Debug)]
pub(super) struct Stage {
    pages: Vec<OwnPage>,
    used: u32,
}

impl Stage {
    /// So many pages.
    ///
    /// # Errors
    /// There are no more to be had.
    pub(super) fn new(layer: &dyn Layer, pages: u16) -> std::io::Result<Self> {
        Ok(Self { pages: layer.own_pages(pages)?, used: 0 })
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> u32 {
        self.pages.len() as u32 * PAGE - self.used
    }

    /// All of it is free again.
    pub(super) fn empty(&mut self) {
        self.used = 0;
    }

    /// Bytes in use, to go back to.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// What was taken after there were so many `used` is free again.
    pub(super) fn go_back(&mut self, used: u32) {
        self.used = used;
    }

    /// Takes up to `length` bytes, at least one, that lie in one page: where copies find them, and where we do. `None` if nothing is left.
    pub(super) fn take(&mut self, length: u32) -> Option<(Granted, Piece)> {
        let page = self.pages.get((self.used / PAGE) as usize)?;
        let offset = self.used % PAGE;
        let piece = page.page.piece().skip(offset).first(length);
        self.used += piece.length();
        Some((page.place.after(offset), piece))
    }

    /// What is taken next lies in one page up to `length` bytes, at most a page.
    pub(super) fn keep_together(&mut self, length: u32) {
        if PAGE - self.used % PAGE < length {
            self.used = self.used.next_multiple_of(PAGE);
        }
    }

    /// Takes `length` bytes, at most a page, that lie in one page.
    pub(super) fn take_whole(&mut self, length: u32) -> Option<(Granted, Piece)> {
        self.keep_together(length);
        self.take(length)
    }
}

/// Places of half a page each, in pages of ours, taken and given back one by one.
#[derive(Debug)]
pub(super) struct Shelf {
    pages: Vec<OwnPage>,
    free: Vec<u16>,
}

impl Shelf {
    /// Bytes of a place: a frame of the usual MTU.
    pub(super) const PLACE: u32 = PAGE / 2;
    const PLACES_A_PAGE: u16 = (PAGE / Self::PLACE) as u16;

    /// So many pages.
    ///
    /// # Errors
    /// There are no more to be had.
    pub(super) fn new(layer: &dyn Layer, pages: u16) -> std::io::Result<Self> {
        let free = (0..pages * Self::PLACES_A_PAGE).rev().collect();
        Ok(Self { pages: layer.own_pages(pages)?, free })
    }

    /// Takes a place; `None` if all are taken.
    pub(super) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// The place is free again.
    pub(super) fn give_back(&mut self, place: u16) {
        self.free.push(place);
    }

    /// Where copies find the place, and where we do.
    pub(super) fn at(&self, place: u16) -> (Granted, Piece) {
        let page = &self.pages[usize::from(place / Self::PLACES_A_PAGE)];
        let offset = u32::from(place % Self::PLACES_A_PAGE) * Self::PLACE;
        (page.place.after(offset), page.page.piece().skip(offset).first(Self::PLACE))
    }
}

/// Fetches what other domains granted by way of pages of ours, for receivers that reach frames by address.
#[derive(Debug)]
pub(super) struct Fetcher {
    layer: Arc<dyn Layer>,
    stage: std::sync::Mutex<Stage>,
}

impl Fetcher {
    /// Pages, so that most frames are fetched by one request.
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
                && let Some((place, piece)) = stage.take_whole(name.length)
            {
                copies.push(GrantCopy::new(name.place, place, name.length));
                places.push(piece);
                names = rest;
            }
            self.layer.copy(&mut copies);
            for (copy, piece) in copies.iter().zip(places) {
                let Some((now, later)) = std::mem::take(&mut to).split_at_mut_checked(piece.length() as usize) else {
                    return false;
                };
                if !copy.is_done() {
                    return false;
                }
                piece.copy_in(now);
                to = later;
            }
        }
        true
    }
}
