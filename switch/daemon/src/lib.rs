//! memlane: the network between virtual machines that share a host.
//!
//! ```text
//!     guest A                     worker                      guest B
//!   +----------+   +----------------------------------+   +----------+
//!   | transmit |-->| chain -> packet -> verdict       |   | receive  |
//!   |  queue   |   |  checked  headers  receivers     |-->|  queue   |
//!   |          |   |  once     copied   and time      |   |          |
//!   |  frame   |   |           once                   |   |  buffer  |
//!   +----|-----+   +----------------------------------+   +-----^----+
//!        |                                                      |
//!        +---------------- one copy of the payload -------------+
//! ```
//!
//! - A **network** is served by one daemon; a **segment** is one broadcast domain of it; a **port** attaches a guest to a
//!   segment, by vhost-user, a TAP or another back end. Ports and segments are added, removed and changed while the network runs.
//! - Directions are the guest's: a **transmit queue** (TX) is a virtqueue that the guest fills and the switch reads, a **receive
//!   queue** (RX) one that the switch fills and the guest reads.
//! - A **frame** is an Ethernet frame behind a virtio-net header. A **packet** is a frame that still lies in its sender's memory:
//!   a copy of its headers, and the buffer segments of its payload.
//! - A **verdict** is the forwarding decision for a frame.
//! - A **worker** is a thread that owns virtqueues and moves frames between them, from its **sources** to its **outlets**.
//!
//! The switch is twelve crates, each of which depends on those above it and no other:
//!
//! 1. `memlane-virtq`: guest memory and virtqueues, the parsed headers of frames, the one copy.
//! 2. `memlane-observe`: the formats of captures, recordings, metrics and events, and the filters of captures.
//! 3. `memlane-model`: values that are configured and reported, with their JSON; the memory and descriptors that the host grants this process.
//! 4. `memlane-dataplane`: forwarding and scheduling: workers, policy, forwarding table, link emulation, and the network of
//!    ports.
//! 5. `memlane-names`: the responder of a segment, for addresses and names: DHCP, router advertisements, DHCPv6, DNS.
//! 6. `memlane-backends`: the back ends of ports and their sessions.
//! 7. `memlane-config`: the network's file, checked as a whole, and the kinds of ports.
//! 8. `memlane-confine`: the sandbox of the network's process, and the processes outside of it.
//! 9. `memlane-control`: a running network: ports, uplinks, the control socket and its API, state, takeover, snapshots.
//! 10. `memlane-command`: parts that commands share.
//! 11. `memlane-integrations`: libvirt, Proxmox VE, QEMU, CNI, `memlane doctor`.
//! 12. This one, `memlane`: the command line. Its library re-exports the modules of the others too, for tests, benches and
//!     fuzzers.
//!
//! Places for additions:
//!
//! - *A kind of port*: a file or folder in `memlane-backends` that makes the two ends of [`port::end`], as
//!   [`null`](memlane_backends::null) and [`loopback`](memlane_backends::loopback) do; its key in [`config::document`]; the rest in a file of [`config::kinds`].
//! - *A rule by which frames are dropped or redirected*: [`verdict::decide`], with its [`stats::DropReason`].
//! - *A control command*: its route in [`control`], its effect in the [`daemon`], its arguments in [`cli`].
//!
//! `docs/explanation/how-a-frame-travels.md` follows one frame through the modules, `docs/reference/back-end-rules.md` says where
//! each rule of a vhost-user back end is kept.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

use memlane_command::system;
pub use memlane_config as config;
pub use memlane_config::{cpus, folder};
use memlane_confine::forwarder;
pub use memlane_confine::{helper, resolvers, sandbox};
pub use memlane_control::{control, daemon, description, explain, names, snapshot, uplink, version};
pub use memlane_dataplane::{
    address_map, cpu_time, driven, egress, grounds, handover, headers, held, id, link, multicast, network, policy, port, record,
    refusal, replay, segment, settings, shared, stats, table, tap, too_long, trial, twin, verdict, weight, worker,
};
pub use memlane_model::{author, descriptors, host_memory, journal, known_addresses, moment, peer, quantity};
#[cfg(fuzzing)]
pub use memlane_virtq::probe;
pub use memlane_virtq::{budget, copy, frame, memory, offload, packet, ring, time, watchdog};

pub mod cli;
