//! The responder of a segment: it gives guests addresses and names (configuration keys `subnet` and `subnet6`).
//!
//! ```text
//!   frame of a guest --> wire --> ARP, echo, neighbour discovery (nd)   --> answer
//!                                 DHCP (dhcp4), DHCPv6 (dhcp6)  <--> leases
//!                                 DNS (dns), also by TCP (tcp)   <--
//!                                   | names outside                      ^
//!                                   v                                    |
//!                                 pending, forward --> a forwarder --> outside
//! ```
//!
//! 1. [`Responder`]: takes one frame of one port and returns its answer. It reads no clock and no socket: the moment, the port and the
//!    frame come in as arguments.
//! 2. `leases`: the owner of each address. An address belongs to a port: to one of its static `addresses`, or as a lease of the port and
//!    one of its machines, or as a claim of the guest (`claims`). No port can take an address, or the name, of another.
//! 3. `wire`: frames are read by the switch's own bounded parsers, and answers are written with complete checksums.
//!
//! 4. `outside`: answers of resolvers are read here, and those of which a guest is told written anew.
//!
//! Messages of DNS, options of DHCP and DHCPv6, and the few segments of DNS over TCP are read, and written, here: see the decision on
//! dependencies.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod claims;
mod departed;
mod dhcp4;
mod dhcp6;
mod dns;
mod exchange;
pub mod forward;
mod lease;
mod leases;
mod nd;
mod outside;
mod pending;
mod report;
mod responder;
mod settings;
mod tcp;
mod wire;

pub use claims::MOST_CLAIMS;
pub use exchange::{Refused, Service};
pub use lease::{Holder, Lease, LeaseKind};
pub use leases::{MOST_LEASES, Sightings};
pub use report::{LeaseReport, NamesReport};
pub use responder::{Admission, Given, NamePolicy, Responder};
pub use settings::{PortAddresses, Settings};

#[cfg(test)]
mod tests;
