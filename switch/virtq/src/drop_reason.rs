//! Why frames are dropped.

use serde::Serialize;

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Why a frame went nowhere. Reasons before `ReceiverAbsent` are counted at the sender's port, the others at the receiver's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum DropReason { $($(#[$doc])* $name),* }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name that operators see.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

drop_reasons! {
    /// The chain loops, or is longer than the ring or than any frame needs.
    ChainLoop = "chain-loop",
    /// A `next` outside the indirect table.
    ChainNext = "chain-next-outside",
    /// An indirect descriptor where none may be.
    ChainIndirect = "chain-indirect-misplaced",
    /// An indirect table of an impossible length.
    ChainIndirectLength = "chain-indirect-length",
    /// A buffer outside the guest's memory.
    ChainAddress = "chain-address",
    /// A writable buffer in a transmit chain.
    ChainDirection = "chain-direction",
    /// More bytes or pieces than a frame may have.
    ChainTooLong = "chain-too-long",
    /// A head made available again while its frame was still out.
    HeadTwice = "head-twice",
    /// Shorter than a virtio-net and an Ethernet header.
    Runt = "runt",
    /// A checksum range outside the frame.
    BadChecksumOffload = "bad-checksum-offload",
    /// A segmentation request that does not fit the frame.
    BadSegmentation = "bad-segmentation",
    /// An offload that was not negotiated.
    OffloadNotAgreed = "offload-not-agreed",
    /// The source is a group address, all zeroes, or another port's configured address.
    BadSource = "bad-source",
    /// The destination is behind the sender's own port.
    SamePort = "same-port",
    /// More flooded frames than the port may send.
    Storm = "storm",
    /// The source is not the port's own address, and the port may send from no other.
    SpoofedSource = "spoofed-source",
    /// A flooded frame of a port between which and another addresses move to and fro, as in a loop.
    Loop = "loop",
    /// The port's transmit ring is started but disabled.
    TransmitDisabled = "transmit-disabled",
    /// The sender's ring was stopped or moved while the frame waited.
    SenderStopped = "sender-stopped",
    /// The frame lay in too many pages that the sender had not in memory.
    SenderMemory = "sender-memory",
    /// The receiver has no running receive ring.
    ReceiverAbsent = "receiver-absent",
    /// The sender's share of waiting frames for this receiver is used up.
    ReceiverFull = "receiver-full",
    /// The receiver took nothing for too long.
    ReceiverStalled = "receiver-stalled",
    /// The receiver's buffers can never hold the frame, or did not within the patience, though they held others.
    TooLongForReceiver = "too-long-for-receiver",
    /// The receiver's buffers broke rules, one after the other.
    BadReceiveChains = "bad-receive-chains",
    /// The receiver's buffers lay in too many pages that it had not in memory.
    ReceiverMemory = "receiver-memory",
    /// A flooded frame met a receiver without room, and enough of its sender's wait there already.
    FloodNoRoom = "flood-no-room",
    /// The link lost the frame, as its configuration says.
    LinkLoss = "link-loss",
    /// Too many frames waited for the link's transmitter, or were under way.
    LinkFull = "link-full",
    /// The kernel refused the frame at a TAP.
    TapRefused = "tap-refused",
    /// A page that a Xen guest had granted, the sender or the receiver, could not be reached.
    GrantRefused = "grant-refused",
}
