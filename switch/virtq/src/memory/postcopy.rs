//! Postcopy, the live migration in which the guest runs already while its front end fetches its memory from another host (vhost-user,
//! "Migration").
//!
//! The front end answers page faults of a mapping that it was told of, which are reported to it by a userfaultfd of this process. Such a fault
//! lasts until it has answered, which it may never do. So workers do not touch that mapping: they meet holes in their own
//! ([`super::holes`]), leave the descriptor chain in the available ring (backpressure), and ask for the pages. **One thread for each port**
//! touches these in the mapping of the front end, one after the other. A page is in the guest's file once it has come, for all mappings: the
//! transmit queue or receive queue is kicked then, and goes on with the descriptor chain, buffer segment or used ring that lies there.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::mapping::Mapping;
use super::region::{Quota, Region, RegionError};
use super::sigbus;
use crate::budget::Permit;

/// Pages that virtqueues ask for at a time; further ones are asked for again when the virtqueue is looked at next.
const MOST: usize = 256;
/// Bytes of the stack of the thread that fetches.
const STACK: usize = 128 << 10;

/// The kick of a virtqueue.
pub trait Kick: std::fmt::Debug + Send {
    /// Has the virtqueue looked at again, without waiting: a full counter is a kick that is on its way.
    fn kick(&self);
}

type Kicks = BTreeMap<u32, (Box<dyn Kick>, Permit)>;

/// See the module.
#[derive(Debug)]
pub struct Postcopy {
    userfault: File,
    state: Mutex<State>,
    news: Condvar,
    /// By virtqueue: the kick by which the virtqueue is looked at again once a page has come.
    kicks: Mutex<Kicks>,
}

#[derive(Debug, Default)]
struct State {
    areas: Vec<Arc<Area>>,
    /// Pages to fetch, by area and offset.
    wanted: VecDeque<(Arc<Area>, usize)>,
    /// The thread runs.
    fetches: bool,
    /// Pages that have come because they were asked for.
    fetched: u64,
    ended: bool,
}

/// The mapping of a region of which the front end answers the page faults.
#[derive(Debug)]
struct Area {
    region: Arc<Region>,
    /// Declared before the mapping, as in the region.
    _watch: sigbus::Watch,
    mapping: Mapping,
    /// Page faults of the area are reported: before, a touch would fill a hole.
    is_reported: AtomicBool,
    _permit: Permit,
}

impl Postcopy {
    /// The front end announces postcopy (POSTCOPY_ADVISE).
    ///
    /// # Errors
    /// The kernel refuses a userfaultfd.
    pub fn advise() -> io::Result<Arc<Self>> {
        let userfault = sigbus::userfault_of_front_end()?;
        Ok(Arc::new(Self { userfault, state: Mutex::default(), news: Condvar::new(), kicks: Mutex::default() }))
    }

    /// The userfaultfd, for the front end.
    pub fn userfault(&self) -> &File {
        &self.userfault
    }

    /// Maps `region` once more; returns the address of its first byte there, by which the front end knows its page faults.
    ///
    /// # Errors
    /// The kernel or `quota` refuses the mapping.
    pub fn add(&self, region: &Arc<Region>, quota: &Quota) -> Result<u64, RegionError> {
        if let Some(known) = self.state().areas.iter().find(|area| Arc::ptr_eq(&area.region, region)) {
            return Ok(known.first_byte());
        }
        let permit = quota.mappings.take(1).ok_or_else(|| RegionError::NoSlot(quota.mappings.quota()))?;
        let mapping = region.map_again()?;
        let watch = sigbus::Watch::new(mapping.start().addr(), mapping.length()).ok_or(RegionError::NoSlot(0))?;
        let area = Arc::new(Area {
            region: Arc::clone(region),
            _watch: watch,
            mapping,
            is_reported: AtomicBool::new(false),
            _permit: permit,
        });
        let first_byte = area.first_byte();
        self.state().areas.push(area);
        Ok(first_byte)
    }

    /// The front end is ready for page faults of all areas: those that were asked for are fetched from now on.
    ///
    /// # Errors
    /// The kernel refuses to report them, or a thread.
    pub fn begin(self: &Arc<Self>) -> io::Result<()> {
        let mut state = self.state();
        for area in &state.areas {
            sigbus::report_to(&self.userfault, area.mapping.start().addr(), area.mapping.length())?;
            area.is_reported.store(true, Ordering::Release);
        }
        if !std::mem::replace(&mut state.fetches, true) {
            let own = Arc::clone(self);
            std::thread::Builder::new().name("postcopy".into()).stack_size(STACK).spawn(move || own.fetch())?;
        }
        Ok(())
    }

    /// Kicks virtqueue `index` with `kick` whenever a page has come.
    pub fn wake_by(&self, index: u32, kick: Box<dyn Kick>, permit: Permit) {
        self.kicks.lock().unwrap_or_else(PoisonError::into_inner).insert(index, (kick, permit));
    }

    /// Has all virtqueues looked at: which of them waits for a page is not known here.
    fn wake(&self) {
        for (kick, _) in self.kicks.lock().unwrap_or_else(PoisonError::into_inner).values() {
            kick.kick();
        }
    }

    /// Keeps only the areas of `regions`: others were removed.
    pub fn keep_only(&self, regions: &[Arc<Region>]) {
        let mut state = self.state();
        let is_kept = |area: &Area| regions.iter().any(|region| Arc::ptr_eq(region, &area.region));
        let State { areas, wanted, .. } = &mut *state;
        areas.iter().filter(|area| !is_kept(area)).for_each(|area| self.release(area));
        areas.retain(|area| is_kept(area));
        wanted.retain(|(area, _)| is_kept(area));
    }

    /// Asks for the page with `address` in a region's mapping for reading. It comes later, or never.
    #[cold]
    pub(super) fn ask(&self, address: usize) {
        let mut state = self.state();
        let found = state.areas.iter().filter(|area| area.is_reported.load(Ordering::Acquire)).find_map(|area| {
            let offset = address.checked_sub(area.region.readable_start())?;
            (offset < area.mapping.length()).then(|| (Arc::clone(area), offset))
        });
        let Some((area, offset)) = found else { return };
        let is_known = state.wanted.iter().any(|(of, at)| Arc::ptr_eq(of, &area) && *at == offset);
        if !is_known && !state.ended && state.wanted.len() < MOST {
            state.wanted.push_back((area, offset));
            drop(state);
            self.news.notify_one();
        }
    }

    /// Ends it (POSTCOPY_END, or the front end has left): a page that is being fetched is given up. Returns the number of pages that were
    /// fetched.
    pub fn end(&self) -> u64 {
        let mut state = self.state();
        state.ended = true;
        state.wanted.clear();
        for area in std::mem::take(&mut state.areas) {
            self.release(&area);
        }
        self.news.notify_all();
        self.kicks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        state.fetched
    }

    /// Ends a wait for a page of `area` without filling the page.
    fn release(&self, area: &Area) {
        // In this order: a thread that is woken finds other memory there, and fills no hole of the file.
        area.mapping.discard();
        sigbus::wake(&self.userfault, area.mapping.start().addr(), area.mapping.length());
    }

    /// Touches the pages that are asked for, until the end.
    fn fetch(&self) {
        loop {
            let state = self.news.wait_while(self.state(), |state| state.wanted.is_empty() && !state.ended);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            let Some((area, offset)) = state.wanted.front().map(|(area, offset)| (Arc::clone(area), *offset)) else { return };
            drop(state);
            area.mapping.touch(offset);
            // Only now: meanwhile it is not asked for again.
            state = self.state();
            if state.wanted.front().is_some_and(|(of, at)| Arc::ptr_eq(of, &area) && *at == offset) {
                state.wanted.pop_front();
                state.fetched += 1;
            }
            drop(state);
            self.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Area {
    fn first_byte(&self) -> u64 {
        (self.mapping.start().addr() + self.region.offset_in_mapping()) as u64
    }
}
