//! Front-end habits: which messages a front end sends in which order. Plain data, so that a test can make its own.
//!
//! The orders are those of the programs themselves: QEMU (enables the rings before it has sent features), User Mode Linux
//! (`arch/um/drivers/virtio_uml.c`: features before memory, the call descriptor is a socket, a ring is enabled right after its kick
//! descriptor), DPDK's virtio-user (call descriptors first, all enabled last; stops and starts again on the same connection), Cloud
//! Hypervisor (`virtio-devices/src/vhost_user/vu_common_ctrl.rs`: all sizes first, every base is the available index).

use crate::frontend::Acknowledge;
use crate::frontend::notify::CallKind;

/// One part of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// SET_OWNER.
    Owner,
    /// GET_FEATURES; the features to acknowledge follow from it.
    GetFeatures,
    /// GET_PROTOCOL_FEATURES and SET_PROTOCOL_FEATURES, if the back end has any.
    ProtocolFeatures,
    /// GET_QUEUE_NUM, if MQ was negotiated.
    QueueNumber,
    /// GET_MAX_MEM_SLOTS, if memory slots were negotiated.
    MemorySlots,
    /// SET_BACKEND_REQ_FD, if it was negotiated.
    BackendChannel,
    /// SET_FEATURES.
    SetFeatures,
    /// SET_MEM_TABLE.
    MemoryTable,
    /// ADD_MEM_REG for each region not yet announced on this connection, if memory slots were negotiated; else SET_MEM_TABLE.
    MemoryRegions,
    /// SET_STATUS, if it was negotiated.
    Status(u8),
    /// These, for each ring in turn.
    EachRing(&'static [RingStep]),
}

/// One message about one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingStep {
    /// SET_VRING_CALL.
    Call,
    /// SET_VRING_ERR.
    Error,
    /// SET_VRING_NUM.
    Size,
    /// SET_VRING_BASE.
    Base,
    /// SET_VRING_ADDR.
    Addresses,
    /// SET_VRING_KICK.
    Kick,
    /// SET_VRING_ENABLE 1, if protocol features were negotiated.
    Enable,
    /// SET_VRING_ENABLE 0, likewise.
    Disable,
    /// GET_VRING_BASE.
    Stop,
}

/// The base that a front end states for a ring that starts (SET_VRING_BASE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToldBase {
    /// The base that the back end stated when the ring stopped; the used index where the back end is gone.
    Kept,
    /// The ring's available index, posted buffers that are not used included.
    Available,
    /// 0, even where the ring goes on.
    Zero,
}

/// How a kind of front end goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habit {
    /// Name of the front end.
    pub name: &'static str,
    /// Sent once, when the connection stands.
    pub connect: &'static [Step],
    /// Sent when the device is started (again).
    pub start: &'static [Step],
    /// Sent when the device is stopped.
    pub stop: &'static [Step],
    /// Messages that the back end is to acknowledge.
    pub acknowledge: Acknowledge,
    /// Kind of its call descriptors.
    pub call: CallKind,
    /// Whether its rings go on where they were after the back end has gone and come back; else they begin anew at 0.
    pub resumes: bool,
    /// The base that it states for a ring.
    pub base: ToldBase,
}

/// Device status: FEATURES_OK alone, as QEMU sends it.
const FEATURES_OK: u8 = 0x08;
/// Device status: everything up to DRIVER_OK (virtio 1.4 section 2.1).
const DRIVER_OK: u8 = 0x0f;

impl Habit {
    /// QEMU 7.2 (recorded from it: the rings are enabled before SET_FEATURES).
    pub const QEMU: Self = Self {
        name: "qemu",
        connect: &[
            Step::GetFeatures,
            Step::ProtocolFeatures,
            Step::QueueNumber,
            Step::MemorySlots,
            Step::BackendChannel,
            Step::Owner,
            Step::GetFeatures,
            Step::EachRing(&[RingStep::Call, RingStep::Error]),
        ],
        start: &[
            Step::EachRing(&[RingStep::Enable]),
            Step::SetFeatures,
            Step::Status(FEATURES_OK),
            Step::MemoryRegions,
            Step::EachRing(&[RingStep::Size, RingStep::Base, RingStep::Addresses, RingStep::Kick, RingStep::Call]),
            Step::Status(DRIVER_OK),
        ],
        stop: &[Step::Status(0), Step::EachRing(&[RingStep::Stop])],
        acknowledge: Acknowledge::Memory,
        call: CallKind::Eventfd,
        resumes: true,
        base: ToldBase::Kept,
    };

    /// User Mode Linux 6.4 and later.
    pub const UML: Self = Self {
        name: "uml",
        connect: &[Step::Owner, Step::GetFeatures, Step::ProtocolFeatures, Step::BackendChannel, Step::QueueNumber],
        start: &[
            Step::SetFeatures,
            Step::MemoryTable,
            Step::EachRing(&[RingStep::Call, RingStep::Size, RingStep::Base, RingStep::Addresses]),
            Step::EachRing(&[RingStep::Kick, RingStep::Enable]),
        ],
        stop: &[Step::EachRing(&[RingStep::Disable]), Step::GetFeatures],
        acknowledge: Acknowledge::Everything,
        call: CallKind::SocketPair,
        resumes: false,
        base: ToldBase::Zero,
    };

    /// DPDK's virtio-user.
    pub const DPDK: Self = Self {
        name: "dpdk",
        connect: &[Step::Owner, Step::GetFeatures, Step::ProtocolFeatures, Step::QueueNumber, Step::Status(0)],
        start: &[
            Step::EachRing(&[RingStep::Call]),
            Step::SetFeatures,
            Step::MemoryTable,
            Step::EachRing(&[RingStep::Size, RingStep::Base, RingStep::Addresses, RingStep::Kick]),
            Step::EachRing(&[RingStep::Enable]),
            Step::Status(DRIVER_OK),
        ],
        stop: &[Step::EachRing(&[RingStep::Disable]), Step::EachRing(&[RingStep::Stop])],
        acknowledge: Acknowledge::Memory,
        call: CallKind::Eventfd,
        resumes: true,
        base: ToldBase::Zero,
    };

    /// Cloud Hypervisor, as of 2026, where IN_ORDER is not negotiated.
    pub const CLOUD_HYPERVISOR: Self = Self {
        name: "cloud-hypervisor",
        connect: &[Step::Owner, Step::GetFeatures, Step::ProtocolFeatures, Step::QueueNumber],
        start: &[
            Step::SetFeatures,
            Step::MemoryTable,
            Step::EachRing(&[RingStep::Size]),
            Step::EachRing(&[RingStep::Addresses, RingStep::Base, RingStep::Call, RingStep::Kick]),
            Step::EachRing(&[RingStep::Enable]),
        ],
        stop: &[Step::EachRing(&[RingStep::Disable, RingStep::Stop])],
        acknowledge: Acknowledge::Everything,
        call: CallKind::Eventfd,
        resumes: true,
        base: ToldBase::Available,
    };

    /// All of them.
    pub const ALL: [Self; 4] = [Self::QEMU, Self::UML, Self::DPDK, Self::CLOUD_HYPERVISOR];

    /// The habit called `name`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|habit| habit.name == name)
    }
}
