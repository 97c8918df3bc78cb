//! Configuration of a vhost-user port.

use std::sync::Arc;

use crate::listener::Second;
use crate::port::Port;

/// Configuration of a vhost-user port.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    /// The port.
    pub port: Arc<Port>,
    /// Whether the guest may receive GSO frames and partial checksums (configuration key `receive-offloads`).
    pub receive_offloads: bool,
    /// Queue pairs offered to guests, where the front end does not limit them itself.
    pub pairs: u16,
    /// Whether the guest's memory is still filled by its monitor while it runs (configuration key `lazy-memory`).
    pub lazy_memory: bool,
    /// Treatment of a second front end (configuration key `second`).
    pub second: Second,
}
