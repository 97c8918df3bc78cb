//! The tests of the rig as one program: each program more would be linked with the whole rig.

mod deaf;
mod hub;
#[path = "../virtio_queue_device/mod.rs"]
mod virtio_queue_device;

mod blast_measures;
mod command_line;
mod guest_talks;
mod legal_oddities;
mod placement_tells;
mod ring_agrees_with_virtio_queue;
mod villains_act;
