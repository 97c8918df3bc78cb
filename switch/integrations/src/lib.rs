//! Other programs that start guests or containers on a network, and this machine as they need it.
//!
//! 1. [`hook`]: hooks of libvirt and Proxmox VE; [`cni`]: the plugin of container runtimes, a port in a container's network namespace.
//! 2. [`libvirt`], [`qemu`]: properties of what is installed, on which arguments depend; [`domain`]: counters of a domain of libvirt.
//! 3. [`doctor`]: findings about this machine (KVM, Landlock, seccomp, system calls, kernel modules), with their remedies.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub(crate) use memlane_command::{Failure, keys, net, output};
pub(crate) use memlane_config as config;
pub(crate) use memlane_config::{cpus, folder};
pub(crate) use memlane_control::{control, uplink};
pub(crate) use memlane_dataplane::{port, stats};
pub(crate) use memlane_model::{descriptors, quantity};
pub(crate) use memlane_virtq::{frame, memory};

pub mod cni;
pub mod doctor;
pub mod domain;
pub mod hook;
mod kvm;
pub mod libvirt;
pub mod qemu;
