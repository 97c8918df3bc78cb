//! Parts that commands share.
//!
//! 1. [`Failure`]: why a command fails, and its exit code.
//! 2. [`net`]: the network or port that a command is for; [`keys`]: the keys of a port as options.
//! 3. [`output`]: text, tables and JSON on standard output; [`words`]: quoting for shells, QEMU and XML.
//! 4. [`system`]: system calls that no safe crate wraps.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub(crate) use memlane_config as config;
pub(crate) use memlane_control::control;
pub(crate) use memlane_virtq::memory;

mod failure;
pub mod keys;
pub mod net;
pub mod output;
pub mod system;
pub mod words;

pub use failure::Failure;
