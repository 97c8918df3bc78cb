//! The rings of a port that run at workers.

use std::collections::HashMap;

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
    /// Queue pairs that the driver asked for through a control queue; else all that are enabled count.
    pub active_pairs: Option<u16>,
}

impl Rings {
    /// Where the port's frames are delivered, by queue pair.
    pub fn entries(&self) -> Vec<RouteEntry> {
        let most = self.active_pairs.unwrap_or(u16::MAX);
        let serves = |key: &RingKey, ring: &Running| key.direction == Direction::Delivery && ring.enabled && key.pair < most;
        let mut pairs: Vec<(u16, RouteEntry)> =
            self.running.iter().filter(|(key, ring)| serves(key, ring)).map(|(key, ring)| (key.pair, ring.entry)).collect();
        pairs.sort_by_key(|&(pair, _)| pair);
        pairs.into_iter().map(|(_, entry)| entry).collect()
    }
}
