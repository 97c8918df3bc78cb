//! State that all workers and ports of a network share: settings, counters of the workers, and bounds on memory.

use std::sync::{Arc, OnceLock};

use crate::budget::Budget;
use crate::descriptors::Descriptors;
use crate::journal::{Journal, KEPT, KEPT_OF_PORT};
use crate::memory::{Fetch, sigbus};
use crate::policy::filter::Filter;
use crate::policy::rules::Published;
use crate::pool::Pool;
use crate::settings::Settings;
use crate::stats::WorkerCounters;
use crate::trial::Trials;

/// Maximum size of the unused buffers for TAPs, in bytes.
const MOST_SPARE: u64 = 2 << 20;

/// See the module.
#[derive(Debug)]
pub struct Shared {
    /// Counters of each worker.
    pub workers: Box<[WorkerCounters]>,
    /// Memory of all frames from TAPs and in flight on emulated links.
    pub budget: Arc<Budget>,
    /// Guests' memory that may be mapped, all together.
    pub guest_memory: Arc<Budget>,
    /// Maximum of mappings of guests' memory, of all guests together.
    pub mappings: Arc<Budget>,
    /// Descriptors that ports and their front ends may hold.
    pub descriptors: Descriptors,
    /// Buffers for frames of senders without shared memory.
    pub pool: Arc<Pool>,
    /// Fetches the pages that Xen guests granted, once there are any.
    pub foreign: Arc<OnceLock<Arc<dyn Fetch>>>,
    /// Recent events.
    pub journal: Arc<Journal>,
    /// Makes hash tables and random numbers unpredictable to guests.
    pub key: u64,
    /// Settings of the operator.
    pub settings: Settings,
    /// Policy rules between ports.
    pub filter: Published<Filter>,
    /// Rules that decide on no frame.
    pub trials: Published<Trials>,
}

impl Shared {
    /// For `workers` workers; `key` makes the tables unpredictable to guests.
    pub fn new(workers: usize, key: u64, settings: Settings) -> Self {
        // A part is for unused buffers, so that all of it together is the configured size.
        let spare = (settings.memory / 8).min(MOST_SPARE);
        let budget = Budget::new(settings.memory - spare);
        Self {
            workers: std::iter::repeat_with(WorkerCounters::default).take(workers).collect(),
            guest_memory: Budget::new(settings.guest_memory),
            descriptors: Descriptors::for_network(workers),
            mappings: Budget::new(sigbus::most_mappings() as u64),
            pool: Arc::new(Pool::new(Arc::clone(&budget), spare)),
            budget,
            foreign: Arc::default(),
            journal: Arc::new(Journal::new(KEPT, KEPT_OF_PORT)),
            key,
            settings,
            filter: Published::default(),
            trials: Published::default(),
        }
    }
}
