//! Whose turn it is: frames that wait for a receiver, served by deficit round robin over their senders.
//!
//! - **Parking** holds the parcels that wait at one worker, whoever they are for; its size is fixed.
//! - **Turns** belong to one receiver: a queue for each sender, and the order in which senders are served. A sender that has its turn
//!   sends until its **deficit** in bytes is used up (Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round
//!   Robin", 1995), so shares do not depend on packet sizes.
//!
//! Waiting is the exception: while nothing waits for a receiver, frames reach it without coming here.

use std::collections::VecDeque;

use crate::frame::MAX_FRAME;
use crate::parcel::Parcel;
use crate::port::PortId;

/// Bytes that a turn is worth: the longest frame, so that every turn serves at least one.
pub const QUANTUM: u32 = MAX_FRAME;

/// Place of a waiting parcel in the [`Parking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot(u32);

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Parked {
    parcel: Parcel,
    next: u32,
}

/// Waiting parcels of one worker.
#[derive(Debug)]
pub struct Parking {
    spots: Vec<Parked>,
    free: u32,
    used: usize,
    most: usize,
}

impl Parking {
    /// Room for `most` parcels; memory is used as it is needed and then kept.
    pub fn new(most: usize) -> Self {
        Self { spots: Vec::with_capacity(most), free: NONE, used: 0, most }
    }

    /// Parcels that wait.
    pub fn used(&self) -> usize {
        self.used
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
        let parked = Parked { parcel, next: NONE };
        if self.free == NONE {
            self.spots.push(parked);
            return Some(Spot(self.spots.len() as u32 - 1));
        }
        let spot = self.free;
        self.free = self.spots[spot as usize].next;
        self.spots[spot as usize] = parked;
        Some(Spot(spot))
    }

    /// The parcel at `spot`.
    pub fn parcel(&mut self, spot: Spot) -> &mut Parcel {
        &mut self.spots[spot.0 as usize].parcel
    }

    fn free(&mut self, spot: u32) {
        self.spots[spot as usize].next = self.free;
        self.free = spot;
        self.used -= 1;
    }
}

/// The queue of one sender at one receiver.
#[derive(Debug)]
struct Queue {
    sender: PortId,
    first: u32,
    last: u32,
    deficit: u32,
}

/// What waits for one receiver.
#[derive(Debug, Default)]
pub struct Turns {
    /// Senders that have something waiting, the next one first.
    queues: VecDeque<Queue>,
    waiting: u32,
}

impl Turns {
    /// Parcels that wait.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Appends the parcel at `spot` to the queue of `sender`.
    pub fn push(&mut self, sender: PortId, spot: Spot, parking: &mut Parking) {
        self.waiting += 1;
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.sender == sender) {
            parking.spots[queue.last as usize].next = spot.0;
            queue.last = spot.0;
        } else {
            self.queues.push_back(Queue { sender, first: spot.0, last: spot.0, deficit: 0 });
        }
    }

    /// The parcel whose turn it is. Gives senders their quantum as the turn passes.
    pub fn next(&mut self, parking: &Parking) -> Option<Spot> {
        loop {
            let queue = self.queues.front_mut()?;
            if parking.spots[queue.first as usize].parcel.length <= queue.deficit {
                return Some(Spot(queue.first));
            }
            queue.deficit += QUANTUM;
            if self.queues.len() > 1 {
                self.queues.rotate_left(1);
            }
        }
    }

    /// Takes away the parcel that [`Self::next`] named, and charges its sender for it.
    pub fn served(&mut self, parking: &mut Parking) {
        let Some(queue) = self.queues.front_mut() else { return };
        let spot = queue.first;
        let parked = &parking.spots[spot as usize];
        queue.deficit = queue.deficit.saturating_sub(parked.parcel.length);
        queue.first = parked.next;
        if queue.first == NONE {
            self.queues.pop_front();
        }
        parking.free(spot);
        self.waiting -= 1;
    }

    /// Takes away every parcel for which `condition` holds, telling `taken` of each.
    pub fn remove_if(&mut self, parking: &mut Parking, condition: impl Fn(&Parcel) -> bool, mut taken: impl FnMut(&Parcel)) {
        for queue in &mut self.queues {
            let (mut spot, mut kept_last) = (queue.first, NONE);
            queue.first = NONE;
            while spot != NONE {
                let next = parking.spots[spot as usize].next;
                if condition(&parking.spots[spot as usize].parcel) {
                    taken(&parking.spots[spot as usize].parcel);
                    parking.free(spot);
                    self.waiting -= 1;
                } else {
                    match kept_last {
                        NONE => queue.first = spot,
                        last => parking.spots[last as usize].next = spot,
                    }
                    kept_last = spot;
                }
                spot = next;
            }
            queue.last = kept_last;
            if kept_last != NONE {
                parking.spots[kept_last as usize].next = NONE;
            }
        }
        self.queues.retain(|queue| queue.first != NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(sender: u16, head: u16, length: u32) -> Parcel {
        let mut parcel = Parcel::default();
        (parcel.source, parcel.head, parcel.length) = (PortId(sender), head, length);
        parcel
    }

    fn push(turns: &mut Turns, parking: &mut Parking, sender: u16, head: u16, length: u32) {
        let spot = parking.park(parcel(sender, head, length)).unwrap();
        turns.push(PortId(sender), spot, parking);
    }

    fn serve(turns: &mut Turns, parking: &mut Parking) -> Option<(u16, u16, u32)> {
        let spot = turns.next(parking)?;
        let parcel = parking.parcel(spot);
        let seen = (parcel.source.0, parcel.head, parcel.length);
        turns.served(parking);
        Some(seen)
    }

    #[test]
    fn senders_get_equal_bytes_whatever_their_sizes() {
        let (mut turns, mut parking) = (Turns::default(), Parking::new(400_000));
        let sizes = [60, 1500, 60_000];
        for (sender, size) in sizes.into_iter().enumerate() {
            (0..20_000_000 / size).for_each(|n| push(&mut turns, &mut parking, sender as u16, n as u16, size));
        }
        let mut bytes = [0_u64; 3];
        while bytes.iter().sum::<u64>() < 30_000_000 {
            let (sender, _, length) = serve(&mut turns, &mut parking).unwrap();
            bytes[usize::from(sender)] += u64::from(length);
        }
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(most - least <= 2 * u64::from(QUANTUM), "{bytes:?}");
    }

    #[test]
    fn each_sender_keeps_its_order() {
        let (mut turns, mut parking) = (Turns::default(), Parking::new(64));
        for n in 0..20 {
            push(&mut turns, &mut parking, n % 3, n, 9000);
        }
        let mut last = [None; 3];
        while let Some((sender, head, _)) = serve(&mut turns, &mut parking) {
            assert!(last[usize::from(sender)] < Some(head));
            last[usize::from(sender)] = Some(head);
        }
        assert_eq!((turns.waiting(), parking.used()), (0, 0));
    }

    #[test]
    fn removing_keeps_the_rest_in_order() {
        let (mut turns, mut parking) = (Turns::default(), Parking::new(64));
        for n in 0..12 {
            push(&mut turns, &mut parking, n % 2, n, 100);
        }
        let mut taken = Vec::new();
        turns.remove_if(&mut parking, |p| p.head % 3 == 0 || p.head == 11, |p| taken.push(p.head));
        assert_eq!(turns.waiting() as usize + taken.len(), 12);
        push(&mut turns, &mut parking, 1, 99, 100);
        let mut left: Vec<_> = std::iter::from_fn(|| serve(&mut turns, &mut parking)).map(|(_, head, _)| head).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 4, 5, 7, 8, 10, 99]);
        assert_eq!(parking.used(), 0);
    }

    #[test]
    fn a_full_parking_refuses_and_recovers() {
        let (mut turns, mut parking) = (Turns::default(), Parking::new(2));
        push(&mut turns, &mut parking, 0, 0, 1);
        push(&mut turns, &mut parking, 0, 1, 1);
        assert!(parking.park(parcel(0, 2, 1)).is_none());
        serve(&mut turns, &mut parking).unwrap();
        assert!(parking.park(parcel(0, 2, 1)).is_some());
    }
}
