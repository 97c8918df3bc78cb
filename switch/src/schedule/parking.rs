//! Where waiting parcels lie.

use crate::frame::SHORTEST;
use crate::parcel::Parcel;

/// Place of a waiting parcel in the [`Parking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot(pub(super) u32);

impl Spot {
    /// No place.
    pub(super) const NONE: Self = Self(u32::MAX);
}

#[derive(Debug)]
struct Parked {
    parcel: Parcel,
    next: Spot,
}

/// Waiting parcels of one worker.
#[derive(Debug)]
pub struct Parking {
    spots: Vec<Parked>,
    free: Spot,
    used: usize,
    most: usize,
}

impl Parking {
    /// Room for `most` parcels; memory is used as it is needed and then kept.
    pub fn new(most: usize) -> Self {
        Self { spots: Vec::with_capacity(most), free: Spot::NONE, used: 0, most }
    }

    /// Parcels that wait.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Parcels that can wait.
    pub fn most(&self) -> usize {
        self.most
    }

    /// True if nothing more can wait.
    pub fn is_full(&self) -> bool {
        self.used == self.most
    }

    /// Parks a parcel; `None` when full.
    pub fn park(&mut self, parcel: Parcel) -> Option<Spot> {
        if self.is_full() {
            return None;
        }
        self.used += 1;
        let parked = Parked { parcel, next: Spot::NONE };
        if self.free == Spot::NONE {
            self.spots.push(parked);
            return Some(Spot(self.spots.len() as u32 - 1));
        }
        let spot = self.free;
        self.free = self.next(spot);
        self.spots[spot.0 as usize] = parked;
        Some(spot)
    }

    /// The parcel at `spot`.
    pub fn parcel(&mut self, spot: Spot) -> &mut Parcel {
        &mut self.spots[spot.0 as usize].parcel
    }

    /// What it counts, in bytes.
    pub(super) fn length(&self, spot: Spot) -> u32 {
        self.spots[spot.0 as usize].parcel.length.max(SHORTEST)
    }

    /// What comes after `spot` in its list.
    pub(super) fn next(&self, spot: Spot) -> Spot {
        self.spots[spot.0 as usize].next
    }

    /// Has `next` come after `spot`.
    pub(super) fn link(&mut self, spot: Spot, next: Spot) {
        self.spots[spot.0 as usize].next = next;
    }

    /// Takes away the parcel at `spot`.
    pub(super) fn free(&mut self, spot: Spot) {
        self.spots[spot.0 as usize].next = self.free;
        self.free = spot;
        self.used -= 1;
    }
}
