//! The table of one transmit queue's frames in flight: each is held by the receivers and workers that are not done with it, and its
//! buffer is free again after the last holder has released it.

#![expect(clippy::indexing_slicing, reason = "both lists are grown to the head before")]

/// Frames in flight by their heads, each with its holders and a value of the queue's own.
#[derive(Debug)]
pub struct InFlight<T> {
    /// Holders of each head's frame; 0 when it is not in flight. Apart from the values, so that the fast path loads two bytes a frame.
    holders: Vec<u16>,
    values: Vec<T>,
    count: u16,
}

impl<T: Copy> InFlight<T> {
    /// An empty table with memory for heads below `heads`, which holds `value` for each until it is [kept](Self::keep). It grows for
    /// larger heads.
    pub fn new(heads: u16, value: T) -> Self {
        Self { holders: vec![0; heads.into()], values: vec![value; heads.into()], count: 0 }
    }

    /// Frames in flight.
    #[inline]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// True if the frame of `head` is in flight.
    #[inline(always)]
    pub fn contains(&self, head: u16) -> bool {
        self.holders.get(usize::from(head)).is_some_and(|&holders| holders != 0)
    }

    /// The frame of `head`, which was not in flight, is from now on, with at least one holder.
    pub fn keep(&mut self, head: u16, holders: u16, value: T) {
        let index = usize::from(head);
        if index >= self.holders.len() {
            self.holders.resize(index + 1, 0);
            self.values.resize(index + 1, value);
        }
        (self.holders[index], self.values[index]) = (holders, value);
        self.count += 1;
    }

    /// The frame of `head` has so many `more` holders. One that is not in flight gets none.
    pub fn hold(&mut self, head: u16, more: u16) {
        if let Some(holders) = self.holders.get_mut(usize::from(head)).filter(|holders| **holders > 0) {
            *holders += more;
        }
    }

    /// One holder releases the frame of `head`; returns its value after the last one, when it is no longer in flight.
    pub fn release(&mut self, head: u16) -> Option<T> {
        let holders = self.holders.get_mut(usize::from(head)).filter(|holders| **holders > 0)?;
        *holders -= 1;
        if *holders > 0 {
            return None;
        }
        self.count -= 1;
        self.values.get(usize::from(head)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_free_after_its_last_holder_and_only_once() {
        let mut in_flight = InFlight::new(2, 'x');
        in_flight.keep(1, 2, 'a');
        in_flight.keep(700, 1, 'b');
        assert!(in_flight.contains(1) && in_flight.contains(700) && !in_flight.contains(0) && !in_flight.contains(u16::MAX));
        in_flight.hold(1, 1);
        in_flight.hold(0, 1);
        assert_eq!([1, 1, 0, u16::MAX].map(|head| in_flight.release(head)), [None; 4]);
        assert_eq!((in_flight.release(700), in_flight.release(1), in_flight.count()), (Some('b'), Some('a'), 0));
        assert_eq!((in_flight.release(1), in_flight.release(700), in_flight.contains(1)), (None, None, false));
    }
}
