//! Reasons of dropped frames.

use serde::Serialize;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal),* $(,)?) => {
        /// Reason why a frame was dropped. Reasons before `ReceiverAbsent` are counted at the sender's port, the others at the
        /// receiver's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum DropReason { $($(#[doc = $doc])* $name),* }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name that operators see.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// Meaning of the reason, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),*).trim_ascii()),* }
            }

            /// Whether it is counted at the sender's port, and not at the receiver's.
            pub fn is_of_sender(self) -> bool {
                self < Self::ReceiverAbsent
            }
        }
    };
}

drop_reasons! {
    /// The descriptor chain loops, or is longer than the ring or than any frame needs.
    ChainLoop = "chain-loop",
    /// A `next` field of a descriptor points outside the indirect table.
    ChainNext = "chain-next-outside",
    /// An indirect descriptor in a wrong place.
    ChainIndirect = "chain-indirect-misplaced",
    /// An indirect table of an impossible length.
    ChainIndirectLength = "chain-indirect-length",
    /// A buffer outside the guest's memory.
    ChainAddress = "chain-address",
    /// A writable buffer in a transmit chain.
    ChainDirection = "chain-direction",
    /// More bytes or buffer segments than a frame may have.
    ChainTooLong = "chain-too-long",
    /// A head made available again while its frame was still in flight.
    HeadTwice = "head-twice",
    /// Shorter than a virtio-net and an Ethernet header.
    Runt = "runt",
    /// A checksum range outside the frame.
    BadChecksumOffload = "bad-checksum-offload",
    /// The checksum to be completed is not that of a TCP, UDP or SCTP header, or it is that of a fragment.
    ChecksumMisplaced = "checksum-misplaced",
    /// A segmentation request that does not fit the frame.
    BadSegmentation = "bad-segmentation",
    /// An offload that was not negotiated.
    OffloadNotAgreed = "offload-not-agreed",
    /// The source is a group address, all zeroes, or another port's configured address.
    BadSource = "bad-source",
    /// The destination is behind the sender's own port.
    SamePort = "same-port",
    /// Storm control: more flooded frames than the port may send.
    Storm = "storm",
    /// Anti-spoofing: the source is not the port's own address, and the port may send from no other.
    SpoofedSource = "spoofed-source",
    /// Anti-spoofing: the IP source is not an address of the port, or the IP header is hidden or malformed.
    SpoofedIp = "spoofed-ip",
    /// Anti-spoofing: an ARP or neighbour discovery message that claims an address which the port has not, or is malformed.
    SpoofedArp = "spoofed-arp",
    /// Anti-spoofing: a DHCP answer, router advertisement or redirect from a port that may not serve them.
    NotAServer = "not-a-server",
    /// Loop protection: a flooded frame from a port whose MAC addresses keep moving to another port and back.
    Loop = "loop",
    /// Isolation: the destination is behind another isolated port.
    Isolated = "isolated",
    /// The frame's VLAN is none of the sender's port, or of the receiver's.
    VlanNotCarried = "vlan-not-carried",
    /// The destination is a reserved group address (01:80:c2:00:00:00 to 0f), and the port drops these.
    ReservedGroup = "reserved-group",
    /// A policy rule denies the frame between the two ports, or the frame hides its headers from a rule that denies by them.
    PolicyDenied = "policy-denied",
    /// The port's transmit queue is started but disabled.
    TransmitDisabled = "transmit-disabled",
    /// The kernel's receive buffer of an AF_PACKET port was full.
    SocketFull = "socket-full",
    /// The sender's transmit queue was stopped or moved while the frame was enqueued.
    SenderStopped = "sender-stopped",
    /// The frame lay in too many pages of the sender that were not in memory.
    SenderMemory = "sender-memory",
    /// A frame of passt belongs to no flow of a guest and to no port forwarding.
    NoFlow = "no-flow",
    /// The receiver has no running receive queue.
    ReceiverAbsent = "receiver-absent",
    /// The sender's quota of frames in flight to this receiver is used up, or the wait queue is full.
    ReceiverFull = "receiver-full",
    /// The receiver posted no buffers within the stall timeout.
    ReceiverStalled = "receiver-stalled",
    /// The frame is too large for the posted receive buffers, and larger ones did not come within the stall timeout.
    TooLongForReceiver = "too-long-for-receiver",
    /// The packet is longer than the MTU of the segment's uplink, or than that on which the receiver agreed; its sender is told by ICMP, where
    /// that is possible.
    TooLong = "too-long",
    /// Consecutive receive chains violated the virtio specification.
    BadReceiveChains = "bad-receive-chains",
    /// The receiver's buffers lay in too many pages that were not in memory.
    ReceiverMemory = "receiver-memory",
    /// A flooded frame met a receiver without buffers, with enough of its sender's frames enqueued already.
    FloodNoRoom = "flood-no-room",
    /// Link emulation lost the frame, as configured.
    LinkLoss = "link-loss",
    /// Too many frames waited for the emulated link's transmitter, or were in flight on it.
    LinkFull = "link-full",
    /// The router of a passt port does not translate the frame: a fragment, another protocol than TCP, UDP and echo requests, an address of the
    /// segment, or a connection that it does not know.
    NotTranslated = "not-translated",
    /// The kernel refused to take the frame from a TAP or AF_PACKET port.
    TapRefused = "tap-refused",
    /// A granted page of a Xen guest, the sender or the receiver, could not be accessed.
    GrantRefused = "grant-refused",
    /// The headers of a frame to a twin (`inside`) reach behind the bytes that the switch copies, so its addresses cannot be exchanged.
    TwinHeaders = "twin-headers",
}
