//! The confinement of the process that runs a network, and the processes outside that do for it what it has no right to do.
//!
//! ```text
//!   network's process  -- requests -->     helper  -- starts -->  forwarder, passt
//!    in its sandbox    <-- descriptors --
//! ```
//!
//! 1. [`sandbox`]: capabilities, files by Landlock, system calls by seccomp, and why it refuses a port.
//! 2. [`helper`]: makes and removes sockets, opens NICs, replaces the state file, starts passt and forwarders.
//! 3. [`forwarder`]: asks resolvers for DNS names outside a segment; [`resolvers`]: those of this host.
//! 4. [`system`]: system calls for these, and the process that starts and ends successors.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub(crate) use memlane_config as config;
pub(crate) use memlane_config::folder;

pub mod forwarder;
pub mod helper;
pub mod resolvers;
pub mod sandbox;
pub mod system;
