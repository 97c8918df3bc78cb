//! Views of the virtqueues of a port, for the operator.

use super::Worker;
use crate::id::PortId;
use crate::ingress::PollState;
use crate::port::queue_view::QueueView;
use crate::time::cycles;

impl Worker {
    /// The virtqueues of `port` that run here.
    pub fn queue_views(&mut self, port: PortId) -> Vec<QueueView> {
        let now = cycles();
        let transmit = self.sources.iter().filter(|(_, source)| source.port.id == port).filter_map(|(_, source)| {
            let awaits_kick = matches!(source.state, PollState::Unstarted | PollState::Asleep) && !source.polled;
            let (enabled, started) = (source.enabled, source.state != PollState::Unstarted);
            let ring = source.feed.ring()?.view();
            Some(QueueView { key: source.key, ring, enabled, started, unfilled: false, awaits_kick, stuck: None })
        });
        let mut views: Vec<QueueView> = transmit.collect();
        views.extend(self.egress.views(port, now));
        views
    }
}
