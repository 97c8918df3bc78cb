//! The ports that are attached, in the order in which they were, found by their names and by the resources that they claim.

use std::collections::{BTreeMap, HashMap};

use super::Attached;
use crate::config::PortConfig;
use crate::config::claim::Claims;
use crate::port::settings::PortSettings;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AttachedPorts {
    by_order: BTreeMap<u64, Attached>,
    orders: HashMap<String, u64>,
    claims: Claims,
    /// Number of the next port.
    next: u64,
}

impl AttachedPorts {
    pub(super) fn add(&mut self, attached: Attached) {
        self.claims.enter(&attached.config);
        self.orders.insert(attached.config.name.clone(), self.next);
        self.by_order.insert(self.next, attached);
        self.next += 1;
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Attached> {
        self.claims.remove(name);
        self.by_order.remove(&self.orders.remove(name)?)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Attached> {
        self.by_order.get(self.orders.get(name)?)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Attached> {
        self.by_order.get_mut(self.orders.get(name)?)
    }

    /// Records new settings of a port, and the resources that it claims by them.
    pub(super) fn set_settings(&mut self, name: &str, settings: PortSettings) {
        let Some(attached) = self.orders.get(name).and_then(|order| self.by_order.get_mut(order)) else { return };
        attached.config.settings = settings;
        self.claims.enter(&attached.config);
    }

    /// Like [`Claims::clashes`].
    pub(super) fn clashes(&self, port: &PortConfig, own: &str) -> Vec<(&'static str, String)> {
        self.claims.clashes(port, own)
    }

    pub(super) fn len(&self) -> usize {
        self.by_order.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attached> {
        self.by_order.values()
    }

    /// All of them, for the end of the network.
    pub(super) fn into_all(self) -> impl Iterator<Item = Attached> {
        self.by_order.into_values()
    }
}
