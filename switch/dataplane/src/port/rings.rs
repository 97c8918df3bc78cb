//! The rings of a port that run at workers, and the receive queues among which a multiqueue port's frames are spread by flow.

use std::collections::{HashMap, HashSet};

use crate::id::{Direction, RingKey, RouteEntry, Slot};

/// A running ring.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// The worker that serves it, and its slot there.
    pub entry: RouteEntry,
    /// Whether its front end has enabled it.
    pub enabled: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Rings {
    /// Running rings.
    pub running: HashMap<RingKey, Running>,
    /// Rings to which their driver has posted a buffer, with their slots: an earlier ring of the same key may be reported late.
    pub filled: HashSet<(RingKey, Slot)>,
    /// Queue pairs that the driver requested through a control queue (VIRTIO_NET_F_MQ); else all that are enabled and filled count.
    pub active_pairs: Option<u16>,
}

impl Rings {
    /// The receive queues of the port, by queue pair. A pair with a receive queue that never held a buffer is one that the driver
    /// does not use, though its front end has enabled it; where that is true of all pairs, the first one is used until one is
    /// filled.
    pub fn entries(&self) -> Vec<RouteEntry> {
        let most = self.active_pairs.unwrap_or(u16::MAX);
        let serves = |key: &RingKey, ring: &Running| key.direction == Direction::Receive && ring.enabled && key.pair < most;
        let mut pairs: Vec<(RingKey, RouteEntry)> =
            self.running.iter().filter(|(key, ring)| serves(key, ring)).map(|(key, ring)| (*key, ring.entry)).collect();
        pairs.sort_by_key(|(key, _)| key.pair);
        let is_filled = |(key, entry): &(RingKey, RouteEntry)| self.filled.contains(&(*key, entry.slot));
        match pairs.iter().any(is_filled) {
            true => pairs.retain(is_filled),
            false => pairs.truncate(1),
        }
        pairs.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Forgets filled rings that do not run any more.
    pub(crate) fn forget_ended(&mut self) {
        let running = &self.running;
        self.filled.retain(|(key, slot)| running.get(key).is_some_and(|ring| ring.entry.slot == *slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PortId;

    #[test]
    fn that_an_earlier_ring_was_filled_says_nothing_of_the_next() {
        let key = |pair| RingKey { port: PortId(0), pair, direction: Direction::Receive };
        let entry = |number| RouteEntry { worker: 0, slot: Slot::from_number(number) };
        let mut rings = Rings::default();
        for (pair, number) in [(0, 7), (1, 8)] {
            rings.running.insert(key(pair), Running { entry: entry(number), enabled: true });
        }
        rings.filled.insert((key(0), entry(7).slot));
        // The ring of pair 1 ran in another slot before, and its event comes late.
        rings.filled.insert((key(1), entry(6).slot));
        assert_eq!(rings.entries(), [entry(7)]);
        rings.filled.insert((key(1), entry(8).slot));
        assert_eq!(rings.entries(), [entry(7), entry(8)]);
        rings.running.remove(&key(0));
        rings.forget_ended();
        assert_eq!(rings.filled.iter().copied().collect::<Vec<_>>(), [(key(1), entry(8).slot)]);
    }
}
