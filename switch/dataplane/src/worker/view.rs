//! Views of the virtqueues of a port, for the operator.

use super::Worker;
use crate::id::{PortId, RingKey};
use crate::ingress::{Blocked, PollState, Source};
use crate::port::queue_view::{QueueBlock, QueueView};
use crate::time::{Cycles, cycles, duration};

impl Worker {
    /// The virtqueues of `port` that run here.
    pub fn queue_views(&mut self, port: PortId) -> Vec<QueueView> {
        let now = cycles();
        let transmit = self.sources.iter().filter(|(_, source)| source.port.id == port).filter_map(|(_, source)| {
            let awaits_kick = matches!(source.state, PollState::Unstarted | PollState::Asleep) && !source.polled;
            let (enabled, started) = (source.enabled, source.state != PollState::Unstarted);
            let ring = source.feed.ring()?.view();
            let blocked = block(source, self.cpu_time.is_throttled(port), now);
            Some(QueueView { key: source.key, ring, enabled, started, unfilled: false, awaits_kick, stuck: None, blocked })
        });
        let mut views: Vec<QueueView> = transmit.collect();
        views.extend(self.egress.views(port, now));
        views
    }

    /// The transmit queues of all ports that are blocked here, and why.
    pub fn blocked(&mut self) -> Vec<(RingKey, QueueBlock)> {
        let now = cycles();
        let block = |source: &mut Source| {
            let throttled = self.cpu_time.is_throttled(source.port.id);
            block(source, throttled, now)
        };
        self.sources.iter().filter_map(|(_, source)| Some((source.key, block(source)?))).collect()
    }
}

/// Why `source` takes no more frames in moment `now`, if there is a reason; its port may be `throttled`.
fn block(source: &mut Source, throttled: bool, now: Cycles) -> Option<QueueBlock> {
    let throttled = throttled && source.feed.ring().is_some_and(|ring| ring.view().available > 0);
    own_block(source, now).or(throttled.then_some(QueueBlock::CpuTime))
}

/// A reason of the source itself. Timer polling is none: it takes frames later by design.
fn own_block(source: &Source, now: Cycles) -> Option<QueueBlock> {
    match source.blocked()? {
        Blocked::RateLimit(until) if until <= now => None,
        Blocked::RateLimit(until) => Some(QueueBlock::RateLimit((until < Cycles::MAX).then(|| duration(until - now)))),
        Blocked::NoRoom(_) => source.backpressured.map(|backpressured| QueueBlock::NoRoom {
            receiver: backpressured.port,
            waited: duration(now.saturating_sub(backpressured.since)),
        }),
        Blocked::TimerPoll(_) => None,
    }
}
