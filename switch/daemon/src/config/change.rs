//! What can be changed of a port while its network runs.

use crate::frame::MacAddress;
use crate::link::Impairment;
use crate::policy::Allowance;

/// What is to be changed of a port; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortChange {
    /// What it is allowed.
    pub allowance: Option<Allowance>,
    /// What frames to it go through.
    pub link: Option<Option<Impairment>>,
    /// The address that is tied to it. Its guest is offered it when it connects next.
    pub mac: Option<Option<MacAddress>>,
    /// MTU that its guest is offered when it connects next.
    pub mtu: Option<Option<u16>>,
    /// Whether it sends and is sent to.
    pub enabled: Option<bool>,
}
