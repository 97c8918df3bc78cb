//! The port registry: all ports of the network. They are added and removed while the network runs, and broadcast domains with them:
//! one is added with its first port and removed with its last.
//!
//! The number of a port or segment is used again only when every worker has removed its previous owner.

#![expect(clippy::indexing_slicing, reason = "the list has a place for each port's number")]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use thiserror::Error;

use super::{Network, Told};
use crate::author;
use crate::frame::MacAddress;
use crate::id::{MAX_PORTS, PortId, SegmentId};
use crate::journal::{NetworkEvent, note};
use crate::policy::rules::Service;
use crate::port::settings::PortSettings;
use crate::port::{Offer, Port, PortState};
use crate::segment::Segment;
use crate::twin::Twin;
use crate::worker::Worker;

/// Settings of a new port.
#[derive(Clone, Debug)]
pub struct AttachSettings<'t> {
    /// Name of the port.
    pub name: &'t str,
    /// The name of its segment.
    pub segment: &'t str,
    /// Settings of the port.
    pub settings: &'t PortSettings,
    /// Device properties that it offers.
    pub offer: Offer,
}

/// Reason why a port cannot be added, or get an address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddError {
    /// Another port has its name.
    #[error("port '{0}' exists already: choose another name, or detach that port first")]
    NameTaken(String),
    /// Another port has its address.
    #[error("MAC address {address} is configured at port '{port}': choose another, or detach that port first")]
    AddressTaken {
        /// The address.
        address: MacAddress,
        /// The port that has it.
        port: String,
    },
    /// The maximum number of ports is reached.
    #[error("the network has {MAX_PORTS} ports, which is the limit: detach some, or start another network")]
    Full,
}

/// Free numbers below [`MAX_PORTS`].
#[derive(Debug)]
struct Numbers {
    /// Numbers from here on were never given.
    fresh: u16,
    /// Numbers that were returned, the first one in front.
    free: VecDeque<u16>,
}

impl Numbers {
    const NONE_GIVEN: Self = Self { fresh: 0, free: VecDeque::new() };

    /// A returned number, if there is any, so that tables that are indexed by numbers stay small.
    fn take(&mut self) -> Option<u16> {
        self.free.pop_front().or_else(|| {
            let fresh = self.fresh;
            self.fresh += u16::from(usize::from(fresh) < MAX_PORTS);
            (self.fresh > fresh).then_some(fresh)
        })
    }

    fn give_back(&mut self, number: u16) {
        self.free.push_back(number);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct PortRegistry {
    /// By number; with the order in which they were added.
    ports: Vec<Option<(u64, Arc<Port>)>>,
    by_name: HashMap<String, PortId>,
    segments: HashMap<String, Arc<Segment>>,
    port_numbers: Numbers,
    segment_numbers: Numbers,
    come: u64,
}

impl Default for PortRegistry {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            by_name: HashMap::new(),
            segments: HashMap::new(),
            port_numbers: Numbers::NONE_GIVEN,
            segment_numbers: Numbers::NONE_GIVEN,
            come: 0,
        }
    }
}

impl PortRegistry {
    fn enter(&mut self, port: &Arc<Port>) {
        let index = port.id.index();
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        self.come += 1;
        self.ports[index] = Some((self.come, Arc::clone(port)));
        self.by_name.insert(port.name.clone(), port.id);
        self.segments.entry(port.segment.name.clone()).or_insert_with(|| Arc::clone(&port.segment));
    }

    fn strike(&mut self, port: &Port) {
        if let Some(entry) = self.ports.get_mut(port.id.index()) {
            *entry = None;
        }
        self.by_name.remove(&port.name);
    }

    fn port(&self, id: PortId) -> Option<&Arc<Port>> {
        self.ports.get(id.index())?.as_ref().map(|(_, port)| port)
    }
}

/// Enters the IP addresses that are configured for `port` in the map of its segment: they are in the VLAN of its frames without a tag. Those
/// inside are exchanged for them.
pub(super) fn configure_addresses(port: &Port, settings: &PortSettings) {
    let PortSettings { mac, limits, .. } = settings;
    port.policy.set_twin(mac.and_then(|mac| Twin::of(limits, mac)));
    let vlan = port.policy.gate().vlans.of_sent(0);
    port.segment.addresses().configure(port.id, *mac, vlan, &limits.addresses, limits.may_serve.contains(&Service::Ra));
}

impl Network {
    fn registry(&self) -> RwLockReadGuard<'_, PortRegistry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn registry_mut(&self) -> RwLockWriteGuard<'_, PortRegistry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks out other changes of ports and rules.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All ports, in the order in which they were added.
    pub fn ports(&self) -> Vec<Arc<Port>> {
        let mut ports: Vec<_> = self.registry().ports.iter().flatten().cloned().collect();
        ports.sort_by_key(|&(come, _)| come);
        ports.into_iter().map(|(_, port)| port).collect()
    }

    /// The port with this number.
    pub fn port(&self, id: PortId) -> Option<Arc<Port>> {
        self.registry().port(id).cloned()
    }

    /// The port of this name.
    pub fn find(&self, name: &str) -> Option<Arc<Port>> {
        let registry = self.registry();
        registry.port(*registry.by_name.get(name)?).cloned()
    }

    /// All segments.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.registry().segments.values().cloned().collect()
    }

    /// Adds a port: it can be given rings when this returns. `members` are as many ports as its segment is expected to have.
    ///
    /// # Errors
    /// An [`AddError`]; nothing has changed then.
    pub fn add_port(&self, attach_settings: &AttachSettings<'_>, members: usize) -> Result<Arc<Port>, AddError> {
        self.enter_port(attach_settings, members, Told::wait)
    }

    /// Like [`Self::add_port`], while no guest is served (takeover): the workers know the port before any virtqueue, not yet when this
    /// returns.
    ///
    /// # Errors
    /// An [`AddError`]; nothing has changed then.
    pub fn add_port_ahead(&self, attach_settings: &AttachSettings<'_>, members: usize) -> Result<Arc<Port>, AddError> {
        self.enter_port(attach_settings, members, drop)
    }

    fn enter_port(
        &self,
        attach_settings: &AttachSettings<'_>,
        members: usize,
        await_workers: fn(Told),
    ) -> Result<Arc<Port>, AddError> {
        let _alone = self.alone();
        if self.registry().by_name.contains_key(attach_settings.name) {
            return Err(AddError::NameTaken(attach_settings.name.into()));
        }
        let settings = attach_settings.settings;
        let id = PortId(self.registry_mut().port_numbers.take().ok_or(AddError::Full)?);
        let segment = self.segment_for(attach_settings.segment, members);
        let port = Port::new(id, attach_settings.name, &segment, &settings.limits, &self.shared);
        if let Err(taken) = settings.mac.map_or(Ok(()), |address| self.refuse_taken(address, &port)) {
            self.give_numbers_back(&port, segment.members().is_empty());
            return Err(taken);
        }
        port.set_offer(attach_settings.offer);
        port.set_path((&settings.link).into());
        port.set_link(settings.link.clone());
        port.set_enabled(settings.enabled);
        port.policy.transmit.set_shut(!settings.enabled);
        self.enter_filter(&port);
        await_workers(self.join(&port));
        if let Some(address) = settings.mac {
            // Last: workers look receivers up in the forwarding table, and all of them know this port from here on.
            let _ = segment.pin(address, id);
        }
        configure_addresses(&port, settings);
        self.tell_captures(&port);
        self.tell_recorder(&port);
        self.registry_mut().enter(&port);
        let (port_name, segment) = (port.name.clone(), port.segment.name.clone());
        let labels = settings.limits.labels.clone();
        note(&self.shared.journal, NetworkEvent::PortAttached { port: port_name, segment, labels, by: author::current() });
        Ok(port)
    }

    /// Refuses `address` for `port` where it is pinned to another port. No other thread pins addresses while the caller holds
    /// `changing`.
    fn refuse_taken(&self, address: MacAddress, port: &Port) -> Result<(), AddError> {
        match port.segment.table().pinned(address).filter(|&other| other != port.id) {
            Some(other) => {
                let port = self.port(other).map_or_else(String::new, |port| port.name.clone());
                Err(AddError::AddressTaken { address, port })
            }
            None => Ok(()),
        }
    }

    /// The segment of this name, which may be a new one.
    fn segment_for(&self, name: &str, members: usize) -> Arc<Segment> {
        let mut registry = self.registry_mut();
        if let Some(segment) = registry.segments.get(name) {
            return Arc::clone(segment);
        }
        // There are no more segments than ports.
        let number = registry.segment_numbers.take().unwrap_or_default();
        let segment = Segment::new(SegmentId(number), name, members, self.shared.key, self.shared.settings.moves);
        segment.addresses().set_age(self.shared.settings.age);
        self.apply_snooping(&segment);
        segment
    }

    /// Makes `port` known to its segment and to the workers.
    fn join(&self, port: &Arc<Port>) -> Told {
        let before = port.segment.table();
        port.segment.join(port.id);
        let (segment, table) = (port.segment.id, port.segment.table());
        let grown = !Arc::ptr_eq(&before, &table);
        self.tell_all(|| {
            let (port, table) = (Arc::clone(port), grown.then(|| Arc::clone(&table)));
            move |worker: &mut Worker| {
                worker.enter_port(&port);
                if let Some(table) = table {
                    worker.set_table(segment, table);
                }
            }
        })
    }

    /// Removes a port with its rings, routes and FDB entries; when this returns nothing of it is left at any worker.
    pub fn remove_port(&self, port: &Arc<Port>) {
        port.retire();
        self.stop_port(port);
        let _alone = self.alone();
        if !self.has(port) {
            return;
        }
        // Before all workers answer: after that none of them moves a MAC address to this number any more.
        port.segment.prepare_to_leave(port.id);
        let told = self.tell_all(|| {
            let port = Arc::clone(port);
            move |worker: &mut Worker| worker.remove_port(&port)
        });
        told.wait();
        port.segment.table().remove_expected(port.offer().mac, port.id);
        let last = port.segment.leave(port.id);
        self.leave_filter(port.id);
        self.registry_mut().strike(port);
        self.give_numbers_back(port, last);
        note(&self.shared.journal, NetworkEvent::PortDetached { port: port.name.clone(), by: author::current() });
        port.set_state(PortState::Gone);
    }

    /// Whether `port` is in the registry.
    pub(super) fn has(&self, port: &Port) -> bool {
        self.port(port.id).is_some_and(|known| std::ptr::eq(&*known, port))
    }

    fn give_numbers_back(&self, port: &Port, last: bool) {
        let mut registry = self.registry_mut();
        registry.port_numbers.give_back(port.id.0);
        if last {
            registry.segments.remove(&port.segment.name);
            registry.segment_numbers.give_back(port.segment.id.0);
        }
    }

    /// Pins `address` to `port` in place of the previous one, or none. A removed port gets none: another may have its number.
    ///
    /// # Errors
    /// [`AddError::AddressTaken`]; nothing has changed then.
    pub fn set_address(&self, port: &Port, address: Option<MacAddress>) -> Result<(), AddError> {
        let _alone = self.alone();
        if !self.has(port) {
            return Ok(());
        }
        if let Some(address) = address {
            self.refuse_taken(address, port)?;
            // Before the previous one goes: a frame to an unknown address is flooded, and its sender could take an unpinned one.
            let _ = port.segment.pin(address, port.id);
        }
        port.segment.unpin(port.id, address);
        Ok(())
    }
}
