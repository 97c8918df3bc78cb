//! The worker's port table: the ports and broadcast domains that a worker knows. The control side enters a port before any of its
//! rings starts, and removes it after all have stopped; so a look-up by number never finds a later port.

#![expect(clippy::indexing_slicing, reason = "the list is grown to the index before")]

use std::sync::Arc;

use crate::audience::Audience;
use crate::id::{PortId, SegmentId};
use crate::packet::Packet;
use crate::policy::Flood;
use crate::policy::filter::{Changed, Filter, Filtered};
use crate::policy::rules::KnownRules;
use crate::port::Port;
use crate::shared::Shared;
use crate::stats::PortCounters;
use crate::table::Table;
use crate::time::Cycles;
use crate::too_long;
use crate::trial::Trials;

/// A port, with this worker's record of it.
#[derive(Debug)]
struct Known {
    port: Arc<Port>,
    /// The session of the last start of one of its rings here.
    session: u32,
}

/// A segment as this worker knows it.
#[derive(Debug)]
pub(super) struct Members {
    /// The forwarding table (FDB): MAC addresses and their ports.
    pub table: Arc<Table>,
    /// Ports of the segment.
    pub ports: Vec<PortId>,
}

impl Members {
    /// Limits for a flood of `port` in moment `now`, of second `second`.
    pub(super) fn flood(&self, port: &Port, second: u32, now: Cycles) -> Flood {
        let uplink = port.segment.uplink();
        let reaches_one = self.ports.len() <= 2 && uplink.is_none();
        // An uplink carries the floods of all MAC addresses of other hosts: a guest that spoofs one of them does not throttle the
        // rest.
        let suspect = uplink != Some(port.id) && self.table.is_suspect(port.id, second);
        Flood { reaches_one, suspect, now }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct PortTable {
    worker: usize,
    ports: Vec<Option<Known>>,
    segments: Vec<Option<Members>>,
    /// Counters of ports that are gone.
    nobody: PortCounters,
    /// Policy rules between ports.
    filter: KnownRules<Filter>,
    /// Rules that decide on no frame.
    trials: KnownRules<Trials>,
}

impl PortTable {
    /// The port table of worker `worker`.
    pub(super) fn new(worker: u8) -> Self {
        Self {
            worker: worker.into(),
            ports: Vec::new(),
            segments: Vec::new(),
            nobody: PortCounters::default(),
            filter: KnownRules::default(),
            trials: KnownRules::default(),
        }
    }

    /// Exchanges policy rules that were replaced; the ports whose frames those that decide judge otherwise now.
    #[inline]
    pub(super) fn refresh_filter(&mut self, shared: &Shared) -> Option<Changed> {
        self.trials.refresh(&shared.trials);
        let before = self.filter.exchange(&shared.filter)?;
        Some(self.filter.get().changed_since(&before))
    }

    /// The policy rules between ports.
    pub(super) fn filter(&self) -> &Arc<Filter> {
        self.filter.shared()
    }

    /// Rules that decide on no frame.
    #[inline]
    pub(super) fn trials(&self) -> &Trials {
        self.trials.get()
    }

    /// The policy rules about frames of `port`, if there are any.
    #[inline]
    pub(super) fn filtered(&self, port: PortId) -> Option<Filtered<'_>> {
        let filter = self.filter.get();
        (!filter.is_empty()).then_some(Filtered { filter, from: port, is_forecast: false })
    }

    /// Adds `port`; returns for how many ports there is room from now on.
    pub(super) fn enter(&mut self, port: &Arc<Port>) -> usize {
        let (id, segment) = (port.id, port.segment.id);
        grow(&mut self.ports, id.index());
        self.ports[id.index()] = Some(Known { port: Arc::clone(port), session: 0 });
        grow(&mut self.segments, segment.index());
        let members =
            self.segments[segment.index()].get_or_insert_with(|| Members { table: port.segment.table(), ports: Vec::new() });
        if !members.ports.contains(&id) {
            members.ports.push(id);
        }
        self.ports.len()
    }

    /// Removes `port`, and its segment with the last port of it.
    pub(super) fn remove(&mut self, port: &Port) {
        if let Some(known) = self.ports.get_mut(port.id.index()) {
            *known = None;
        }
        let Some(segment) = self.segments.get_mut(port.segment.id.index()) else { return };
        if let Some(members) = segment {
            members.ports.retain(|&member| member != port.id);
            if members.ports.is_empty() {
                *segment = None;
            }
        }
    }

    /// Uses the forwarding table `table` in `segment` from now on.
    pub(super) fn set_table(&mut self, segment: SegmentId, table: Arc<Table>) {
        if let Some(Some(members)) = self.segments.get_mut(segment.index()) {
            members.table = table;
        }
    }

    /// The port with this number.
    #[inline]
    pub(super) fn port(&self, id: PortId) -> Option<&Arc<Port>> {
        Some(&self.ports.get(id.index())?.as_ref()?.port)
    }

    /// Whether this very port is entered, not a later one with its number.
    pub(super) fn knows(&self, port: &Arc<Port>) -> bool {
        self.port(port.id).is_some_and(|known| Arc::ptr_eq(known, port))
    }

    /// The port with this number, and its segment.
    #[inline]
    pub(super) fn member(&self, id: PortId) -> Option<(&Port, &Members)> {
        let port = self.port(id)?;
        Some((port, self.members(port.segment.id)?))
    }

    /// MTU of the way to port `to`.
    pub(super) fn mtu(&self, to: PortId) -> Option<u16> {
        self.port(to)?.mtu()
    }

    /// Bytes of `packet` [behind its Ethernet header](too_long::packet_length), if it may be too long for the way to a port.
    #[inline]
    pub(super) fn long_packet(&self, packet: &Packet) -> Option<u32> {
        let is_short = self.port(packet.source)?.segment.is_short(packet.length);
        (!is_short).then(|| too_long::packet_length(packet.start(), packet.length, packet.header))
    }

    /// The ports that get a flooded frame; `None` for all.
    #[inline]
    pub(super) fn audience(&self, packet: &Packet) -> Option<Audience> {
        Audience::of(&self.port(packet.source)?.segment, packet.start())
    }

    /// The segment with this number.
    #[inline]
    pub(super) fn members(&self, id: SegmentId) -> Option<&Members> {
        self.segments.get(id.index())?.as_ref()
    }

    /// Broadcast domains in which a MAC address was held at its port, since this was last asked, because it moved too often.
    pub(super) fn have_flapped(&self) -> impl Iterator<Item = SegmentId> {
        let all = self.segments.iter().enumerate();
        all.filter(|(_, members)| members.as_ref().is_some_and(|members| members.table.has_flapped()))
            .map(|(n, _)| SegmentId(n as u16))
    }

    /// The counters of port `id` that this worker writes.
    #[inline]
    pub(super) fn counters(&self, id: PortId) -> &PortCounters {
        self.port(id).map_or(&self.nobody, |port| port.counters(self.worker))
    }

    /// The weight of port `id` among senders.
    #[inline]
    pub(super) fn weight_of(&self, id: PortId) -> u16 {
        self.port(id).map_or(1, |port| port.policy.weight())
    }

    /// Records the `session` in which a ring of port `id` was started.
    pub(super) fn note_session(&mut self, id: PortId, session: u32) {
        if let Some(Some(known)) = self.ports.get_mut(id.index()) {
            known.session = session;
        }
    }

    /// Port `id`, and the session of the last start of one of its rings here.
    pub(super) fn session(&self, id: PortId) -> Option<(&Arc<Port>, u32)> {
        self.ports.get(id.index())?.as_ref().map(|known| (&known.port, known.session))
    }
}

/// Extends `list` to `index`.
fn grow<T>(list: &mut Vec<Option<T>>, index: usize) {
    if list.len() <= index {
        list.resize_with(index + 1, || None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MacAddress;
    use crate::settings::Settings;

    #[test]
    fn a_guest_that_sends_from_a_remote_address_does_not_throttle_the_uplink() {
        let ports = Port::row(&Shared::new(1, 7, Settings::default()), 3);
        let [uplink, guest, other] = &ports[..] else { panic!("three ports") };
        uplink.segment.set_uplink(Some(uplink.id));
        let mut port_table = PortTable::new(0);
        for port in &ports {
            port_table.enter(port);
        }
        let members = port_table.members(uplink.segment.id).unwrap();
        let remote = MacAddress::new([2, 0, 0, 0, 0, 9]);
        for n in 0..40 {
            members.table.learn(remote, [uplink, guest][n % 2].id, 5);
        }
        assert_eq!(members.table.find(remote), Some(uplink.id), "the MAC address is held where it was first");
        let is_suspect = |port: &Port| members.flood(port, 6, 0).suspect;
        assert_eq!([uplink, guest, other].map(|port| is_suspect(port)), [false, true, false]);
        uplink.segment.set_uplink(None);
        assert!(is_suspect(uplink), "any other port of a loop floods little");
    }
}
