//! Multicast snooping of segments, and the thread of its querier, which runs once a segment has it.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::Network;
use crate::frame::MacAddress;
use crate::multicast::querier::{Query, Schedule};
use crate::policy::gate::Vlans;
use crate::segment::Segment;
use crate::time::SECOND;
use crate::worker::Worker;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SnoopedSegments {
    names: Vec<String>,
    /// The querier ends when this is dropped.
    querier: Option<Sender<()>>,
}

/// Multicast groups of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentGroups {
    /// The segment.
    pub segment: String,
    /// Ports with members, by group.
    pub groups: Vec<(MacAddress, Vec<String>)>,
    /// Ports that get every multicast frame: new ones, those of routers, uplinks, trunks, and those with too many groups.
    pub all: Vec<String>,
}

impl Network {
    fn snooped(&self) -> MutexGuard<'_, SnoopedSegments> {
        self.snooping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of the segments with multicast snooping, as configured.
    pub fn snooping(&self) -> Vec<String> {
        self.snooped().names.clone()
    }

    /// Has these segments snoop from now on, and no others; a segment may come later.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub fn set_snooping(self: &Arc<Self>, segments: &[String]) -> io::Result<()> {
        let _alone = self.alone();
        {
            let mut snooped = self.snooped();
            if snooped.querier.is_none() && !segments.is_empty() {
                let (querier, end) = channel();
                self.start_querier(end)?;
                snooped.querier = Some(querier);
            }
            snooped.names = segments.to_vec();
        }
        self.segments().iter().for_each(|segment| self.apply_snooping(segment));
        Ok(())
    }

    /// Has a segment snoop, or not, as configured.
    pub(super) fn apply_snooping(&self, segment: &Segment) {
        segment.snooping.set_on(self.snooped().names.contains(&segment.name));
    }

    /// Ends the querier.
    pub(super) fn end_querier(&self) {
        self.snooped().querier = None;
    }

    fn start_querier(self: &Arc<Self>, end: Receiver<()>) -> io::Result<()> {
        let (network, fatal) = (Arc::downgrade(self), Arc::clone(&self.fatal));
        let run = move || fatal.guard("the querier", || run(&network, &end)).unwrap_or_default();
        let thread = std::thread::Builder::new().name("querier".into()).stack_size(128 * 1024).spawn(run)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// A second has begun, which a frozen network leaves out.
    pub(super) fn tick_querier(&self, schedules: &mut HashMap<String, Schedule>) {
        if self.frozen_for().is_some() {
            return;
        }
        let segments = self.segments();
        let snooping = || segments.iter().filter(|segment| segment.snooping.is_on());
        schedules.retain(|name, _| snooping().any(|segment| segment.name == *name));
        for segment in snooping() {
            if schedules.entry(segment.name.clone()).or_default().tick(&segment.snooping) {
                self.query(segment);
            }
        }
    }

    /// Asks all guests of a segment for their groups; trunks and uplinks get every frame anyway.
    fn query(&self, segment: &Segment) {
        let frames: Arc<[Vec<u8>; 2]> = Arc::new([Query::General4, Query::General6].map(Query::frame));
        for port in segment.members().into_iter().filter_map(|id| self.port(id)) {
            if segment.uplink() == Some(port.id) || matches!(port.policy.gate().vlans, Vlans::Trunk { .. }) {
                continue;
            }
            let frames = Arc::clone(&frames);
            self.worker(self.worker_of(port.id, 0)).tell(move |worker: &mut Worker| {
                frames.iter().for_each(|frame| worker.deliver(&port, frame));
            });
        }
    }

    /// The multicast groups of the segments that snoop.
    pub fn multicast_groups(&self) -> Vec<SegmentGroups> {
        let segments = self.segments().into_iter().filter(|segment| segment.snooping.is_on());
        let mut all: Vec<SegmentGroups> = segments.map(|segment| self.groups_of(&segment)).collect();
        all.sort_by(|one, other| one.segment.cmp(&other.segment));
        all
    }

    fn groups_of(&self, segment: &Segment) -> SegmentGroups {
        let mut found = SegmentGroups { segment: segment.name.clone(), ..SegmentGroups::default() };
        for port in segment.members().into_iter().filter_map(|id| self.port(id)) {
            let (groups, gets_all) = port.multicast_groups();
            found.all.extend(gets_all.then(|| port.name.clone()));
            for group in groups {
                match found.groups.iter_mut().find(|(known, _)| *known == group) {
                    Some((_, ports)) => ports.push(port.name.clone()),
                    None => found.groups.push((group, vec![port.name.clone()])),
                }
            }
        }
        found.groups.sort();
        found
    }
}

fn run(network: &Weak<Network>, end: &Receiver<()>) {
    let mut schedules = HashMap::new();
    while end.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
        let Some(network) = network.upgrade() else { return };
        network.tick_querier(&mut schedules);
    }
}
