//! Frames: building them, describing their offloads, judging them.
//!
//! Nouns, in the order in which a test meets them:
//! 1. [`Host`]: MAC address, IP address and port of one end. [`Packet`]: a TCP or UDP packet with all its headers.
//! 2. [`NetHeader`]: the virtio-net header before the frame: offload requests and promises.
//! 3. `Packet` makes frames: [`Packet::frame`] complete, [`Packet::partial`] with a checksum left to the device,
//!    [`Packet::gso`] with the segmentation left to it; [`Packet::segments`] are the segments that must come out of that.
//! 4. [`mod@check`]: whether a received frame (with its header) is sound: lengths, checksums, promises.
//! 5. [`control`]: ARP, neighbour discovery and ping, as far as a toy guest answers them.

mod check;
mod checksum;
pub mod control;
mod header;
mod packet;

pub use check::{Flaw, Sound, check};
pub use checksum::{checksum, pseudo_header_sum};
pub use header::{GsoKind, NetHeader};
pub use packet::{Host, Network, Packet, Transport, complete_checksum};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];
/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_BYTES: usize = 14;
/// The shortest frame that Ethernet knows, without its check sequence.
pub const SHORTEST_FRAME: usize = 60;
