//! Tests that may run beside each other, as one program: each program more would be linked with the whole switch. Tests that
//! measure times, or watch the whole process, are programs of their own, in the folder above.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../../benches/bed/mod.rs"]
mod bed;
#[path = "../command/mod.rs"]
mod command;
#[path = "../common/mod.rs"]
mod common;
#[path = "../dice/mod.rs"]
mod dice;
#[allow(dead_code, clippy::duplicate_mod, reason = "the seeds are not needed here; it has the beds' device for itself")]
#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;
#[path = "../pages/mod.rs"]
mod pages;
#[path = "../reference/mod.rs"]
mod reference;
#[path = "../../../../rig/tests/virtio_queue_device/mod.rs"]
mod virtio_queue_device;

mod addresses;
mod af_packet;
mod attach_cost;
mod audit;
mod busy_ports;
mod captures;
mod cli;
mod cloud_hypervisor;
mod cni;
mod comes_and_goes;
mod commands;
mod control;
mod control_queue;
mod crashes;
mod descriptors_run_out;
mod dirty_log;
mod docs;
mod drop_reasons;
mod events;
mod extcap;
mod fatal;
mod faults;
mod finding;
mod flows;
mod forecasts;
mod forwards;
mod front_ends;
mod histograms;
mod identity;
mod lazy_memory;
mod memory_runs_out;
mod messages;
mod metrics;
mod multicast;
mod names;
mod names_outside;
mod nic;
mod offloads;
mod openmetrics;
mod operator;
mod policy;
mod port_settings;
mod probes;
mod properties;
mod record;
mod renamed;
mod ring_states;
mod rings_agree_with_virtio_queue;
mod rings_are_bounded;
mod rings_begin;
mod rings_churn;
mod rings_move;
mod sandbox;
mod separation;
mod service;
mod sessions;
mod snapshot;
mod source_rules;
mod statements;
mod stream;
mod stream_takeover;
mod takeover;
mod tap;
mod top;
mod turns_are_bounded;
mod twins;
mod uplink;
mod verdicts_hold;
mod wake_ups;
mod way_out;
mod web;
mod why;
mod worker_panics;
mod xen;
