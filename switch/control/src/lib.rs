//! A running network and its control.
//!
//! ```text
//!   commands, API, metrics --> control --> daemon --> the network of memlane-dataplane
//!                                            |  names, uplink
//!                     daemon::takeover, snapshot --> description: for another process
//! ```
//!
//! 1. [`daemon`]: the network of a configuration, with the back ends of its ports; [`uplink`], [`names`]: what its segments have beside ports.
//! 2. [`control`]: requests of operators at the control socket, the state file, reports and metrics; [`explain`]: verdicts in sentences.
//! 3. [`daemon::takeover`], [`snapshot`]: the network for another process, by its [`description`].

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub(crate) use memlane_config as config;
pub(crate) use memlane_config::folder;
pub(crate) use memlane_confine::{forwarder, helper, resolvers, sandbox};
pub(crate) use memlane_dataplane::{
    address_map, grounds, held, id, link, network, policy, port, record, replay, segment, shared, stats, table, tap, twin, verdict,
    worker,
};
pub(crate) use memlane_model::{author, descriptors, host_memory, journal, known_addresses, moment, peer, quantity};
pub(crate) use memlane_virtq::{budget, frame, packet, time};

pub mod control;
pub mod daemon;
pub mod description;
pub mod explain;
pub mod names;
pub mod snapshot;
pub mod uplink;

/// The version of this program; opaque to the optimizer, so that a test of takeover can give a program another one.
pub fn version() -> &'static str {
    std::hint::black_box(env!("CARGO_PKG_VERSION"))
}
