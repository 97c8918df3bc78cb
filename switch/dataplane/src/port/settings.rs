//! Settings of a port that may change while it runs.

use crate::frame::MacAddress;
use crate::link::Impairment;
use crate::policy::PortLimits;

/// See the module. One value holds them from the file, the request or the state file to the port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSettings {
    /// Whether it forwards frames.
    pub enabled: bool,
    /// MAC address offered to the guest and tied to the port.
    pub mac: Option<MacAddress>,
    /// MTU offered to the guest.
    pub mtu: Option<u16>,
    /// Weight and rate limits.
    pub limits: PortLimits,
    /// Link emulation of the receive direction.
    pub link: Option<Impairment>,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self { enabled: true, mac: None, mtu: None, limits: PortLimits::default(), link: None }
    }
}
