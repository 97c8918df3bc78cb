//! Changes to a port while its network runs.

use crate::frame::MacAddress;
use crate::link::Impairment;
use crate::policy::PortLimits;

/// Changes to a port; `None` leaves a value as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortChange {
    /// Weight and rate limits.
    pub limits: Option<PortLimits>,
    /// Link emulation of the receive direction.
    pub link: Option<Option<Impairment>>,
    /// MAC address that is tied to the port. Its guest is offered it when it connects next.
    pub mac: Option<Option<MacAddress>>,
    /// MTU that its guest is offered when it connects next.
    pub mtu: Option<Option<u16>>,
    /// Whether the port forwards frames.
    pub enabled: Option<bool>,
}
