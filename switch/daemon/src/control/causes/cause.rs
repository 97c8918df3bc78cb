//! A cause that keeps a port from its work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fault of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CauseKind {
    /// The operator has disabled it.
    Disabled,
    /// No front end is connected.
    NoFrontEnd,
    /// Other front ends were refused, since it has one.
    PortInUse,
    /// The front end is connected, and no ring runs.
    NotStarted,
    /// Its guest or front end broke a rule.
    Quarantined,
    /// Its back end gives advice, as on memory that is not shared.
    Advice,
    /// It is the only port of its segment.
    Alone,
    /// The front end has disabled its queues.
    QueuesDisabled,
    /// The driver has never posted a receive buffer, or the interface of the port is down.
    InterfaceDown,
    /// The driver posts no receive buffers any more.
    NoReceiveBuffers,
    /// The driver was interrupted, and does not look at received frames.
    NotLooking,
    /// The driver requests interrupts, and none can be sent.
    NotInterrupted,
    /// The driver has made entries available, and has not kicked.
    NotKicked,
    /// The guest has transmitted nothing.
    NothingTransmitted,
    /// Its MTU is another than that of other ports of the segment.
    Mtu,
    /// Its guest uses other VLANs than all others of the segment.
    Vlan,
    /// A MAC address moves between it and another port.
    Loop,
    /// A transmit queue is blocked at this moment: by the rate limit, by a receiver without room, or by CPU-time fairness.
    Blocked,
    /// Its rate limits hold frames back.
    Limited,
    /// Kicks were missing.
    MissedKicks,
    /// Frames wait for receive buffers.
    Waiting,
    /// A machine behind it was refused an address by memlane's DHCP server.
    NoAddress,
    /// Frames were dropped.
    Dropped,
}

/// A cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
}

impl Cause {
    /// A cause of this kind.
    pub fn new(cause: CauseKind, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause, reason: None, text: text.into(), remedy: remedy.into() }
    }

    /// In one line.
    pub fn line(&self) -> String {
        if self.remedy.is_empty() { self.text.clone() } else { format!("{}. {}", self.text, self.remedy) }
    }
}
