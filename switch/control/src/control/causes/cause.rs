//! A cause that keeps a port from its work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fault of a port; the worst ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CauseKind {
    /// The network is frozen for a snapshot.
    Frozen,
    /// Its guest or front end broke a rule.
    Quarantined,
    /// The VMM has stopped the virtqueues and is connected, or its process is stopped: the guest is paused.
    GuestPaused,
    /// Guest memory under a queue is still to be filled by the guest's monitor.
    MemoryNotFilled,
    /// The driver posts no receive buffers any more.
    NoReceiveBuffers,
    /// The driver was interrupted, and does not look at received frames.
    NotLooking,
    /// The driver requests interrupts, and none can be sent.
    NotInterrupted,
    /// The driver has made entries available, and has not kicked.
    NotKicked,
    /// The interface that leads out of its segment has no carrier.
    NoCarrier,
    /// The driver has never posted a receive buffer, or the interface of the port is down or has no carrier.
    InterfaceDown,
    /// The front end has disabled its queues.
    QueuesDisabled,
    /// No front end is connected.
    NoFrontEnd,
    /// The front end is connected, and no ring runs.
    NotStarted,
    /// The operator has disabled it.
    Disabled,
    /// The port's back end gives advice, as on memory that is not shared.
    Advice,
    /// Another machine claims its IP address, or it claims another's.
    AddressConflict,
    /// A MAC address moves between it and another port.
    Loop,
    /// Other front ends were refused, since it has one.
    PortInUse,
    /// The guest uses other VLANs than all others of the segment.
    Vlan,
    /// The port's MTU is another than that of other ports of the segment.
    Mtu,
    /// The port is the only one of its segment.
    Alone,
    /// A machine behind it was refused an address by memlane's DHCP server.
    NoAddress,
    /// Frames were dropped.
    Dropped,
    /// Its rate limits hold frames back.
    Limited,
    /// A transmit queue is blocked at this moment: by the rate limit, by a receiver without room, or by CPU-time fairness.
    Blocked,
    /// The guest has transmitted nothing.
    NothingTransmitted,
    /// Kicks were missing.
    MissedKicks,
    /// Frames wait for receive buffers.
    Waiting,
}

impl CauseKind {
    /// Name of the cause, as in JSON.
    pub fn name(self) -> String {
        // A unit variant is a string.
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// Whether a port with this cause takes no frames from others.
    pub fn keeps_frames_out(self) -> bool {
        self <= Self::Disabled && self != Self::NoCarrier
    }
}

/// A cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Cause {
    /// Its kind.
    pub cause: CauseKind,
    /// The reason of drops, as in the counters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The fault, in words.
    pub text: String,
    /// The remedy; empty where the text says it.
    pub remedy: String,
    /// How often it happened in the last minute, if it is no state but happens now and then.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recent: Option<u64>,
    /// When it happened last, in seconds since 1970, if that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last: Option<f64>,
}

impl Cause {
    /// A cause of this kind.
    pub fn new(cause: CauseKind, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause, reason: None, text: text.into(), remedy: remedy.into(), recent: None, last: None }
    }

    /// In one line.
    pub fn line(&self) -> String {
        if self.remedy.is_empty() { self.text.clone() } else { format!("{}. {}", self.text, self.remedy) }
    }
}
