//! Feature negotiation: the features that memlane offers, and those that a driver accepted (virtio 1.4, sections 2.2, 5.1.3 and 6;
//! vhost-user, "Protocol features"). Packed virtqueues and RSS are not offered
//! (`docs/adr/0030-features-not-offered.md`).

use std::fmt;

use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use virtio_bindings::{virtio_config as config, virtio_net as net, virtio_ring as ring};

use crate::memory::holes;
use crate::offload::Offloads;
use crate::ring::RingOptions;

/// Bit 30: the vhost-user protocol features exist.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// VHOST_F_LOG_ALL: every write to the guest is marked in the front end's dirty log (vhost-user, "Migration").
const LOG_ALL_BIT: u32 = 26;

const fn bit(number: u32) -> u64 {
    1 << number
}

const MAC: u64 = bit(net::VIRTIO_NET_F_MAC);
const MTU: u64 = bit(net::VIRTIO_NET_F_MTU);
const MQ: u64 = bit(net::VIRTIO_NET_F_MQ);
const CTRL_VQ: u64 = bit(net::VIRTIO_NET_F_CTRL_VQ);
const ANNOUNCE: u64 = bit(net::VIRTIO_NET_F_GUEST_ANNOUNCE);
const MERGEABLE: u64 = bit(net::VIRTIO_NET_F_MRG_RXBUF);
const VERSION_1: u64 = bit(config::VIRTIO_F_VERSION_1);
const EVENT_INDEX: u64 = bit(ring::VIRTIO_RING_F_EVENT_IDX);
const ACCESS_PLATFORM: u64 = bit(config::VIRTIO_F_ACCESS_PLATFORM);
const IN_ORDER: u64 = bit(config::VIRTIO_F_IN_ORDER);
const LOG_ALL: u64 = bit(LOG_ALL_BIT);
const INDIRECT: u64 = bit(ring::VIRTIO_RING_F_INDIRECT_DESC);

/// Offered to every guest.
const ALWAYS: u64 = VERSION_1
    | EVENT_INDEX
    | INDIRECT
    | MERGEABLE
    | MAC
    | PROTOCOL_FEATURES
    | LOG_ALL
    | bit(config::VIRTIO_F_ANY_LAYOUT)
    | bit(net::VIRTIO_NET_F_STATUS)
    | bit(net::VIRTIO_NET_F_CSUM)
    | bit(net::VIRTIO_NET_F_HOST_TSO4)
    | bit(net::VIRTIO_NET_F_HOST_TSO6)
    | bit(net::VIRTIO_NET_F_HOST_ECN)
    | bit(net::VIRTIO_NET_F_HOST_USO)
    | bit(net::VIRTIO_NET_F_GUEST_CSUM)
    | bit(net::VIRTIO_NET_F_GUEST_TSO4)
    | bit(net::VIRTIO_NET_F_GUEST_TSO6)
    | bit(net::VIRTIO_NET_F_GUEST_ECN)
    | bit(net::VIRTIO_NET_F_GUEST_USO4)
    | bit(net::VIRTIO_NET_F_GUEST_USO6);

/// Receive offloads: with these, a driver accepts GSO frames and partial checksums.
const RECEIVE_OFFLOADS: u64 = bit(net::VIRTIO_NET_F_GUEST_CSUM)
    | bit(net::VIRTIO_NET_F_GUEST_TSO4)
    | bit(net::VIRTIO_NET_F_GUEST_TSO6)
    | bit(net::VIRTIO_NET_F_GUEST_ECN)
    | bit(net::VIRTIO_NET_F_GUEST_USO4)
    | bit(net::VIRTIO_NET_F_GUEST_USO6);

/// Names of the virtio and virtio-net features that have one (virtio 1.4, sections 5.1.3 and 6), without their prefixes.
const NAMES: [(u32, &str); 41] = [
    (net::VIRTIO_NET_F_CSUM, "CSUM"),
    (net::VIRTIO_NET_F_GUEST_CSUM, "GUEST_CSUM"),
    (net::VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, "CTRL_GUEST_OFFLOADS"),
    (net::VIRTIO_NET_F_MTU, "MTU"),
    (net::VIRTIO_NET_F_MAC, "MAC"),
    (net::VIRTIO_NET_F_GUEST_TSO4, "GUEST_TSO4"),
    (net::VIRTIO_NET_F_GUEST_TSO6, "GUEST_TSO6"),
    (net::VIRTIO_NET_F_GUEST_ECN, "GUEST_ECN"),
    (net::VIRTIO_NET_F_GUEST_UFO, "GUEST_UFO"),
    (net::VIRTIO_NET_F_HOST_TSO4, "HOST_TSO4"),
    (net::VIRTIO_NET_F_HOST_TSO6, "HOST_TSO6"),
    (net::VIRTIO_NET_F_HOST_ECN, "HOST_ECN"),
    (net::VIRTIO_NET_F_HOST_UFO, "HOST_UFO"),
    (net::VIRTIO_NET_F_MRG_RXBUF, "MRG_RXBUF"),
    (net::VIRTIO_NET_F_STATUS, "STATUS"),
    (net::VIRTIO_NET_F_CTRL_VQ, "CTRL_VQ"),
    (net::VIRTIO_NET_F_CTRL_RX, "CTRL_RX"),
    (net::VIRTIO_NET_F_CTRL_VLAN, "CTRL_VLAN"),
    (net::VIRTIO_NET_F_GUEST_ANNOUNCE, "GUEST_ANNOUNCE"),
    (net::VIRTIO_NET_F_MQ, "MQ"),
    (net::VIRTIO_NET_F_CTRL_MAC_ADDR, "CTRL_MAC_ADDR"),
    (config::VIRTIO_F_NOTIFY_ON_EMPTY, "NOTIFY_ON_EMPTY"),
    (config::VIRTIO_F_ANY_LAYOUT, "ANY_LAYOUT"),
    (LOG_ALL_BIT, "LOG_ALL"),
    (ring::VIRTIO_RING_F_INDIRECT_DESC, "INDIRECT_DESC"),
    (ring::VIRTIO_RING_F_EVENT_IDX, "EVENT_IDX"),
    (30, "PROTOCOL_FEATURES"),
    (config::VIRTIO_F_VERSION_1, "VERSION_1"),
    (config::VIRTIO_F_ACCESS_PLATFORM, "ACCESS_PLATFORM"),
    (config::VIRTIO_F_RING_PACKED, "RING_PACKED"),
    (config::VIRTIO_F_IN_ORDER, "IN_ORDER"),
    (config::VIRTIO_F_ORDER_PLATFORM, "ORDER_PLATFORM"),
    (config::VIRTIO_F_SR_IOV, "SR_IOV"),
    (config::VIRTIO_F_NOTIFICATION_DATA, "NOTIFICATION_DATA"),
    (config::VIRTIO_F_RING_RESET, "RING_RESET"),
    (net::VIRTIO_NET_F_HASH_REPORT, "HASH_REPORT"),
    (net::VIRTIO_NET_F_RSS, "RSS"),
    (net::VIRTIO_NET_F_GUEST_USO4, "GUEST_USO4"),
    (net::VIRTIO_NET_F_GUEST_USO6, "GUEST_USO6"),
    (net::VIRTIO_NET_F_HOST_USO, "HOST_USO"),
    (net::VIRTIO_NET_F_SPEED_DUPLEX, "SPEED_DUPLEX"),
];

/// Protocol features that a port serves.
const PROTOCOL: Protocol = Protocol::MQ
    .union(Protocol::LOG_SHMFD)
    .union(Protocol::INFLIGHT_SHMFD)
    .union(Protocol::RARP)
    .union(Protocol::REPLY_ACK)
    .union(Protocol::MTU)
    .union(Protocol::BACKEND_REQ)
    .union(Protocol::RESET_DEVICE)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .union(Protocol::STATUS);

/// The circumstances that decide on the protocol features offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening {
    /// SET_OWNER came before the question, as from UML and Cloud Hypervisor; QEMU asks before SET_OWNER.
    pub owned: bool,
    /// The front end before asked before SET_OWNER too, and hung up for want of CONFIG.
    pub wants_config: bool,
}

/// Protocol features to offer a front end in feature negotiation.
///
/// CONFIG is for front ends that show the guest our configuration space: UML takes the MAC address from there. Most of these
/// begin with SET_OWNER. QEMU's network device has a configuration space of its own: it asks before SET_OWNER, and logs a warning
/// for every queue pair about a CONFIG that it does not use. QEMU's generic vhost-user device asks at the same point, and
/// disconnects if CONFIG is missing: so the next front end after such a disconnect is offered it.
///
/// DEVICE_STATE is for Cloud Hypervisor, which takes snapshots of back ends that have it; the state is empty. QEMU from version 10 would
/// put the empty state into the guest's migration stream, where no older QEMU and no other back end (TAP) can load it: to QEMU it is not
/// offered, and nothing is lost.
pub fn protocol(opening: Opening) -> Protocol {
    let mut offer = PROTOCOL;
    // Where the kernel has no userfaultfd, page faults could not be handed to the front end.
    offer.set(Protocol::PAGEFAULT, holes::check().is_ok());
    offer.set(Protocol::CONFIG, opening.owned || opening.wants_config);
    offer.set(Protocol::DEVICE_STATE, opening.owned);
    offer
}

/// All protocol features that any front end was offered, by this process or by the one that it took over from.
pub(super) fn known_protocol() -> Protocol {
    PROTOCOL | Protocol::CONFIG | Protocol::DEVICE_STATE | Protocol::PAGEFAULT
}

/// The circumstances that decide on the offer beside the port's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Queue pairs configured.
    pub pairs: u16,
    /// An MTU is configured.
    pub has_mtu: bool,
    /// The guest may receive GSO frames and partial checksums (configuration key `receive-offloads`).
    pub receive_offloads: bool,
    /// Offer IN_ORDER, see `Settings::in_order`.
    pub in_order: bool,
    /// Protocol features that the front end has agreed to so far.
    pub protocol: u64,
}

/// Virtio features to offer.
///
/// A front end such as QEMU serves the guest's control virtqueue itself and wants MQ, GUEST_ANNOUNCE and MTU offered by a back
/// end whose own configuration space the guest never sees. It shows itself by agreeing to the protocol features NET_MTU or RARP
/// before it asks for virtio features again. Others (UML, crosvm) hand every offered bit to the guest: for them the port serves a
/// control virtqueue, and only if more than one queue pair is configured. Cloud Hypervisor wants it offered too, and serves it
/// itself.
///
/// ACCESS_PLATFORM is for guests with `iommu_platform=on`, as confidential guests need it: their buffers lie in ordinary shared
/// memory, and the front end does not translate addresses unless the machine has a vIOMMU, which shows itself by IOTLB messages.
/// Only front ends that manage memory slots (QEMU, Cloud Hypervisor) are offered it: UML hands it to its guest, which has no use
/// for it.
pub fn offer(circumstances: Circumstances) -> u64 {
    let serves_control_itself = circumstances.protocol & (Protocol::MTU | Protocol::RARP).bits() != 0;
    let mut offer = ALWAYS;
    if serves_control_itself {
        offer |= MQ | ANNOUNCE | MTU;
    } else if circumstances.pairs > 1 {
        offer |= MQ | ANNOUNCE | CTRL_VQ;
    }
    if circumstances.has_mtu {
        offer |= MTU;
    }
    if circumstances.protocol & Protocol::CONFIGURE_MEM_SLOTS.bits() != 0 {
        offer |= ACCESS_PLATFORM;
    }
    if circumstances.in_order {
        offer |= IN_ORDER;
    }
    if circumstances.receive_offloads { offer } else { offer & !RECEIVE_OFFLOADS }
}

/// The features negotiated with a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed(pub u64);

impl fmt::Display for Agreed {
    /// The features by name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |number| {
            NAMES.iter().find(|(known, _)| *known == number).map_or_else(|| format!("bit {number}"), |(_, name)| (*name).into())
        };
        let names: Vec<String> = (0..64).filter(|&number| self.0 & bit(number) != 0).map(name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" "))
    }
}

impl Agreed {
    fn has(self, feature: u64) -> bool {
        self.0 & feature == feature
    }

    /// The negotiated options of virtqueues.
    pub fn ring(self) -> RingOptions {
        let long = self.0 & (VERSION_1 | MERGEABLE) != 0;
        RingOptions {
            event_index: self.has(EVENT_INDEX),
            indirect: self.has(INDIRECT),
            in_order: self.has(IN_ORDER),
            header_length: if long { 12 } else { 10 },
        }
    }

    /// Whether a frame may span several receive buffers (mergeable receive buffers).
    pub fn mergeable(self) -> bool {
        self.has(MERGEABLE)
    }

    /// Whether the guest agreed on the MTU that it was offered.
    pub fn mtu(self) -> bool {
        self.has(MTU)
    }

    /// Whether virtqueues must be enabled by message.
    pub fn protocol(self) -> bool {
        self.has(PROTOCOL_FEATURES)
    }

    /// Whether the driver uses several queue pairs.
    pub fn multiqueue(self) -> bool {
        self.has(MQ)
    }

    /// Whether the driver has a control virtqueue that this back end serves.
    pub fn control_queue(self) -> bool {
        self.has(CTRL_VQ)
    }

    /// Whether writes to the guest are marked in the front end's dirty log.
    pub fn logs(self) -> bool {
        self.has(LOG_ALL)
    }

    /// Whether only [`Self::logs`] may differ from `other`.
    pub fn differs_in_logging(self, other: Self) -> bool {
        (self.0 ^ other.0) & !LOG_ALL == 0
    }

    /// Whether the front end may translate the device's addresses (vIOMMU).
    pub(crate) fn access_platform(self) -> bool {
        self.has(ACCESS_PLATFORM)
    }

    /// Transmit offloads: the driver may send GSO frames and partial checksums. Segmentation offload requires checksum offload
    /// (virtio 1.4, section 5.1.3.1).
    pub fn sender(self) -> Offloads {
        let checksum = self.has(bit(net::VIRTIO_NET_F_CSUM));
        let udp = checksum && self.has(bit(net::VIRTIO_NET_F_HOST_USO));
        Offloads {
            checksum,
            tcp4: checksum && self.has(bit(net::VIRTIO_NET_F_HOST_TSO4)),
            tcp6: checksum && self.has(bit(net::VIRTIO_NET_F_HOST_TSO6)),
            ecn: self.has(bit(net::VIRTIO_NET_F_HOST_ECN)),
            udp4: udp,
            udp6: udp,
        }
    }

    /// Receive offloads: the GSO frames and partial checksums that the driver accepts.
    pub fn receiver(self) -> Offloads {
        let checksum = self.has(bit(net::VIRTIO_NET_F_GUEST_CSUM));
        Offloads {
            checksum,
            tcp4: checksum && self.has(bit(net::VIRTIO_NET_F_GUEST_TSO4)),
            tcp6: checksum && self.has(bit(net::VIRTIO_NET_F_GUEST_TSO6)),
            ecn: self.has(bit(net::VIRTIO_NET_F_GUEST_ECN)),
            udp4: checksum && self.has(bit(net::VIRTIO_NET_F_GUEST_USO4)),
            udp6: checksum && self.has(bit(net::VIRTIO_NET_F_GUEST_USO6)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(pairs: u16, protocol: Protocol) -> u64 {
        offer(Circumstances { pairs, has_mtu: false, receive_offloads: true, in_order: false, protocol: protocol.bits() })
    }

    #[test]
    fn a_guest_without_receive_offloads_gets_no_gso_frames_and_full_checksums() {
        let circumstances =
            Circumstances { pairs: 1, has_mtu: false, receive_offloads: false, in_order: false, protocol: PROTOCOL.bits() };
        let agreed = Agreed(offer(circumstances));
        assert_eq!(agreed.receiver(), Offloads::default());
        assert_eq!(agreed.sender(), Agreed(ALWAYS).sender());
    }

    #[test]
    fn uml_is_never_offered_what_needs_a_control_queue_that_nobody_serves() {
        let uml = Protocol::REPLY_ACK | Protocol::BACKEND_REQ | Protocol::CONFIG | Protocol::MQ;
        assert_eq!(offered(1, uml) & (MQ | ANNOUNCE | MTU | CTRL_VQ), 0);
        assert_eq!(offered(2, uml) & (MQ | ANNOUNCE | CTRL_VQ), MQ | ANNOUNCE | CTRL_VQ);
    }

    #[test]
    fn only_front_ends_that_need_not_pass_it_on_are_offered_translation() {
        let uml = Protocol::REPLY_ACK | Protocol::BACKEND_REQ | Protocol::CONFIG | Protocol::MQ;
        let cloud_hypervisor = Protocol::MQ | Protocol::REPLY_ACK | Protocol::CONFIGURE_MEM_SLOTS;
        assert_eq!([uml, PROTOCOL, cloud_hypervisor].map(|front_end| offered(1, front_end) >> 33 & 1), [0, 1, 1]);
    }

    #[test]
    fn only_front_ends_that_begin_with_set_owner_are_offered_a_device_state() {
        let has_state = |owned, wants_config| protocol(Opening { owned, wants_config }).contains(Protocol::DEVICE_STATE);
        assert_eq!([has_state(false, false), has_state(false, true), has_state(true, false)], [false, false, true]);
    }

    #[test]
    fn qemu_is_offered_what_it_serves_itself() {
        assert_eq!(offered(1, PROTOCOL) & (MQ | ANNOUNCE | MTU | CTRL_VQ), MQ | ANNOUNCE | MTU);
    }

    #[test]
    fn segmentation_without_checksums_counts_as_neither() {
        let without = Agreed(ALWAYS & !bit(net::VIRTIO_NET_F_GUEST_CSUM) & !bit(net::VIRTIO_NET_F_CSUM));
        assert!(!without.receiver().tcp4 && !without.receiver().udp6 && !without.sender().tcp6);
        assert_eq!(Agreed(ALWAYS).receiver(), Offloads::ALL);
    }

    #[test]
    fn features_are_told_by_their_names() {
        assert_eq!(
            Agreed(VERSION_1 | MERGEABLE | PROTOCOL_FEATURES | 1 << 44).to_string(),
            "MRG_RXBUF PROTOCOL_FEATURES VERSION_1 bit 44"
        );
        assert_eq!(Agreed(0).to_string(), "none");
        let all = Agreed(ALWAYS | MQ | MTU | ANNOUNCE | CTRL_VQ | IN_ORDER).to_string();
        assert!(!all.contains("bit "), "what is offered has a name: {all}");
    }

    #[test]
    fn only_legacy_drivers_without_mergeable_buffers_have_the_short_header() {
        assert_eq!([0, VERSION_1, MERGEABLE].map(|f| Agreed(f).ring().header_length), [10, 12, 12]);
    }
}
