//! The device side of virtio-net's split virtqueues (virtio 1.4, section 2.7), for a device that trusts no guest: available and
//! used rings, descriptor chains, offloads, guest memory, and notifications (kicks, interrupts, EVENT_IDX, coalescing).

#![deny(unsafe_code)]

pub mod budget;
pub mod copy;
pub mod drop_reason;
pub mod frame;
pub mod id;
pub mod memory;
pub mod notice;
pub mod offload;
pub mod parcel;
#[cfg(fuzzing)]
pub mod probe;
pub mod ring;
pub mod system;
pub mod time;
pub mod watchdog;
