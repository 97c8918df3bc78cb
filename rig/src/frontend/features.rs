//! Feature bits: virtio-net's (virtio 1.4 section 5.1.3) and vhost-user's protocol features, by name.

use vhost::vhost_user::message::VhostUserProtocolFeatures;
use virtio_bindings::{virtio_config as config, virtio_net as net, virtio_ring as ring};

/// Bits of virtio features.
pub type Features = u64;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:expr;)*) => {
        $($(#[$doc])* pub const $name: Features = 1 << $bit;)*
        /// Every feature that this file knows, with its name in lower case.
        const NAMES: &[(&str, Features)] = &[$((stringify!($name), $name)),*];
    };
}

features! {
    /// Checksum offload: the device completes partial checksums of transmit frames.
    CSUM = net::VIRTIO_NET_F_CSUM;
    /// The guest takes frames with partial checksums.
    GUEST_CSUM = net::VIRTIO_NET_F_GUEST_CSUM;
    /// The guest may change its receive offloads while running.
    CTRL_GUEST_OFFLOADS = net::VIRTIO_NET_F_CTRL_GUEST_OFFLOADS;
    /// The device tells its MTU.
    MTU = net::VIRTIO_NET_F_MTU;
    /// The device tells its MAC address.
    MAC = net::VIRTIO_NET_F_MAC;
    /// The guest takes unsegmented TCP over IPv4.
    GUEST_TSO4 = net::VIRTIO_NET_F_GUEST_TSO4;
    /// The guest takes unsegmented TCP over IPv6.
    GUEST_TSO6 = net::VIRTIO_NET_F_GUEST_TSO6;
    /// The guest takes unsegmented TCP with ECN.
    GUEST_ECN = net::VIRTIO_NET_F_GUEST_ECN;
    /// The guest takes fragmented UDP (legacy).
    GUEST_UFO = net::VIRTIO_NET_F_GUEST_UFO;
    /// The device segments TCP over IPv4.
    HOST_TSO4 = net::VIRTIO_NET_F_HOST_TSO4;
    /// The device segments TCP over IPv6.
    HOST_TSO6 = net::VIRTIO_NET_F_HOST_TSO6;
    /// The device segments TCP with ECN.
    HOST_ECN = net::VIRTIO_NET_F_HOST_ECN;
    /// The device fragments UDP (legacy).
    HOST_UFO = net::VIRTIO_NET_F_HOST_UFO;
    /// A frame may fill several receive buffers.
    MRG_RXBUF = net::VIRTIO_NET_F_MRG_RXBUF;
    /// The configuration space tells the link's state.
    STATUS = net::VIRTIO_NET_F_STATUS;
    /// There is a control queue.
    CTRL_VQ = net::VIRTIO_NET_F_CTRL_VQ;
    /// The device can ask the guest to announce itself.
    GUEST_ANNOUNCE = net::VIRTIO_NET_F_GUEST_ANNOUNCE;
    /// Several queue pairs.
    MQ = net::VIRTIO_NET_F_MQ;
    /// The guest takes unsegmented UDP over IPv4.
    GUEST_USO4 = net::VIRTIO_NET_F_GUEST_USO4;
    /// The guest takes unsegmented UDP over IPv6.
    GUEST_USO6 = net::VIRTIO_NET_F_GUEST_USO6;
    /// The device segments UDP.
    HOST_USO = net::VIRTIO_NET_F_HOST_USO;
    /// The driver tells exact header lengths.
    GUEST_HDRLEN = net::VIRTIO_NET_F_GUEST_HDRLEN;
    /// Kicks when the ring is empty although suppressed (legacy).
    NOTIFY_ON_EMPTY = config::VIRTIO_F_NOTIFY_ON_EMPTY;
    /// vhost: log every page written.
    LOG_ALL = 26;
    /// Any layout of header and payload over descriptors.
    ANY_LAYOUT = config::VIRTIO_F_ANY_LAYOUT;
    /// Indirect descriptor tables.
    INDIRECT_DESC = ring::VIRTIO_RING_F_INDIRECT_DESC;
    /// Both sides say at which index they want to be notified.
    EVENT_IDX = ring::VIRTIO_RING_F_EVENT_IDX;
    /// vhost-user: there are protocol features.
    PROTOCOL_FEATURES = 30;
    /// Virtio 1.0 or later: the header has 12 bytes.
    VERSION_1 = config::VIRTIO_F_VERSION_1;
    /// Addresses go through an IOMMU.
    ACCESS_PLATFORM = config::VIRTIO_F_ACCESS_PLATFORM;
    /// Packed rings.
    RING_PACKED = config::VIRTIO_F_RING_PACKED;
    /// The device returns chains on the used ring in the order in which they were made available.
    IN_ORDER = config::VIRTIO_F_IN_ORDER;
    /// Single rings can be reset.
    RING_RESET = config::VIRTIO_F_RING_RESET;
}

/// Receive and transmit offloads for TCP, with the features that they depend on.
pub const TCP_OFFLOADS: Features = CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | HOST_TSO4 | HOST_TSO6 | HOST_ECN;

/// Features that a guest with a current Linux driver takes if they are offered; split rings only.
pub const LINUX: Features = TCP_OFFLOADS
    | GUEST_USO4
    | GUEST_USO6
    | HOST_USO
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | ANY_LAYOUT
    | PROTOCOL_FEATURES
    | VERSION_1
    | MTU
    | MAC
    | STATUS
    | MQ
    | GUEST_ANNOUNCE;

/// A plain guest: virtio 1, mergeable buffers, no offload, no indirect tables, no EVENT_IDX.
pub const PLAIN: Features = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF;

/// The names of the bits in `features`, in lower case; bits without a name as `bit-N`.
pub fn names(features: Features) -> Vec<String> {
    let bit = |number: u32| (features & (1 << number) != 0).then(|| name(1 << number));
    (0..64).filter_map(bit).collect()
}

fn name(feature: Features) -> String {
    match NAMES.iter().find(|(_, bit)| *bit == feature) {
        Some((name, _)) => name.to_lowercase(),
        None => format!("bit-{}", feature.trailing_zeros()),
    }
}

/// The feature called `name` (case and `-`/`_` do not matter), or `bit-N`.
pub fn by_name(name: &str) -> Option<Features> {
    let wanted = name.to_uppercase().replace('-', "_");
    let known = NAMES.iter().find(|(name, _)| *name == wanted).map(|(_, bit)| *bit);
    let bit = || wanted.strip_prefix("BIT_")?.parse().ok().filter(|&bit: &u32| bit < 64).map(|bit| 1 << bit);
    known.or_else(bit)
}

/// The protocol features that a guest asks for unless told otherwise.
pub fn usual_protocol() -> VhostUserProtocolFeatures {
    type P = VhostUserProtocolFeatures;
    P::MQ | P::REPLY_ACK | P::RARP | P::MTU | P::BACKEND_REQ | P::CONFIG | P::CONFIGURE_MEM_SLOTS | P::STATUS | P::RESET_DEVICE
}

/// Bytes of the virtio-net header under these features: 12, or 10 for a legacy driver without mergeable buffers.
pub fn header_bytes(features: Features) -> usize {
    if features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_lead_to_each_other() {
        for bit in 0..64 {
            let names = names(1 << bit);
            assert_eq!(names.len(), 1);
            assert_eq!(by_name(&names[0]), Some(1 << bit), "{names:?}");
        }
        assert_eq!(by_name("Event-Idx"), Some(EVENT_IDX));
        assert_eq!(by_name("nonsense"), None);
        assert_eq!(by_name("bit-64"), None);
    }
}
