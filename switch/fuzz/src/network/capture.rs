//! A capture of a network: each frame that a guest transmits is in it once, each that a guest receives, and each that is dropped with its
//! reason. The [ledger](super::ledger) compares it with what happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlane::network::{Capture, Network};
use memlane::stats::DropReason;
use memlane::tap::{CaptureOrder, Sight};
use memlane::time::Cycles;

/// See the module.
#[derive(Debug)]
pub struct Tapped {
    capture: Capture,
    snaplen: u32,
    /// Frames that found no room, by their ports, when this was last read.
    missed: BTreeMap<u16, u64>,
}

/// Sights of a port in a capture.
#[derive(Debug, Default)]
pub struct Sights {
    /// The first bytes of transmitted frames, and their lengths.
    pub transmitted: Vec<(Vec<u8>, usize)>,
    pub received: u64,
    pub dropped: BTreeMap<DropReason, u64>,
    /// Frames that found no room.
    pub missed: u64,
}

impl Tapped {
    /// Begins a capture of so many bytes of each frame.
    pub fn start(network: &Arc<Network>, snaplen: u32) -> Self {
        let order = CaptureOrder { snaplen, ..CaptureOrder::default() };
        Self { capture: network.capture(order).expect("no other capture"), snaplen, missed: BTreeMap::new() }
    }

    /// The sights that are new, by ports.
    pub fn read(&mut self) -> BTreeMap<u16, Sights> {
        let (mut all, snaplen) = (BTreeMap::<u16, Sights>::new(), self.snaplen);
        self.capture.read(usize::MAX, Cycles::MAX, |seen, bytes| {
            let of = all.entry(seen.port.0).or_default();
            assert_eq!(seen.captured, seen.length.min(snaplen), "{seen:?}");
            match seen.sight {
                Sight::Transmit => of.transmitted.push((bytes.to_vec(), seen.length as usize)),
                Sight::Receive => of.received += 1,
                Sight::Dropped(reason) => *of.dropped.entry(reason).or_default() += 1,
            }
        });
        for port in self.capture.network().ports() {
            let missed = self.capture.missed(port.id);
            all.entry(port.id.0).or_default().missed = missed - self.missed.insert(port.id.0, missed).unwrap_or(0);
        }
        all
    }
}
