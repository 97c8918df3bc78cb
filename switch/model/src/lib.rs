//! The values of a memlane network that its file, its control socket and its data path share.
//!
//! - **Configured**: [`limits`], [`addresses`] and [`vlans`] of a port, [`policy`] rules and the DNS names in them ([`name_pattern`]), [`impairment`] of an emulated link, [`poll`]; their text with units is a [`quantity`], and that of a time a [`moment`].
//! - **Reported**: [`totals`] of a port's counters, [`denials`] by policy rules, frames [`refused`] because of their addresses, [`loop_report`]s, [`known_addresses`], the [`peer`] of a connection, the [`author`] of a change, the events
//!   of the [`journal`], and the states in a [`recording`].
//! - **The host**: [`descriptors`] and [`host_memory`] that this process may use, and the [`load`] of the CPUs.
//!
//! All JSON of these values and all reading of `/proc` is here, so the data path (`memlane-dataplane`) does neither.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod addresses;
pub mod author;
pub mod denials;
pub mod descriptors;
pub mod host_memory;
pub mod impairment;
pub mod journal;
pub mod known_addresses;
pub mod limits;
pub mod load;
pub mod loop_report;
pub mod moment;
pub mod name_pattern;
pub mod peer;
pub mod policy;
pub mod poll;
pub mod quantity;
pub mod recording;
pub mod refused;
pub mod totals;
pub mod vlans;
