//! The rings of a port that run at workers.

use std::collections::{HashMap, HashSet};

use crate::id::{Direction, RingKey, RouteEntry};

/// A running ring.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// Where it is served.
    pub entry: RouteEntry,
    /// Whether its front end lets frames through.
    pub enabled: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Rings {
    /// Those that run.
    pub running: HashMap<RingKey, Running>,
    /// Those of them that their driver has given a buffer.
    pub filled: HashSet<RingKey>,
    /// Queue pairs that the driver asked for through a control queue; else all that are enabled and filled count.
    pub active_pairs: Option<u16>,
}

impl Rings {
    /// Where the port's frames are delivered, by queue pair. A pair whose receive ring never held a buffer is one that the driver does not use,
    /// though its front end has enabled it; where that is true of all, the first is to be used first.
    pub fn entries(&self) -> Vec<RouteEntry> {
        let most = self.active_pairs.unwrap_or(u16::MAX);
        let serves = |key: &RingKey, ring: &Running| key.direction == Direction::Delivery && ring.enabled && key.pair < most;
        let mut pairs: Vec<(RingKey, RouteEntry)> =
            self.running.iter().filter(|(key, ring)| serves(key, ring)).map(|(key, ring)| (*key, ring.entry)).collect();
        pairs.sort_by_key(|(key, _)| key.pair);
        match pairs.iter().any(|(key, _)| self.filled.contains(key)) {
            true => pairs.retain(|(key, _)| self.filled.contains(key)),
            false => pairs.truncate(1),
        }
        pairs.into_iter().map(|(_, entry)| entry).collect()
    }
}
