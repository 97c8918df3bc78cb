//! Transmit queues that are blocked at this moment: the worker takes no more frames from them, which is no fault by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::PortId;
use crate::network::Network;
use crate::port::queue_view::QueueBlock;

/// Longest wait for the workers' answers.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Why a transmit queue is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BlockReason {
    /// The transmit rate limit of its port.
    RateLimit,
    /// Backpressure: the receiver of the next frame has no room.
    Backpressure,
    /// CPU-time fairness: its port is throttled until other ports have had their share.
    CpuTime,
}

/// A transmit queue that is blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BlockedQueue {
    /// Number of its queue pair.
    pub queue: u16,
    /// The reason.
    pub reason: BlockReason,
    /// With backpressure, the receiver without room; none if it is a receiver of a flooded frame.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub receiver: Option<String>,
    /// Milliseconds since it has been blocked, with backpressure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since_ms: Option<u64>,
    /// Milliseconds until it is blocked no more, where the end is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ends_in_ms: Option<u64>,
}

/// Blocked transmit queues by the name of their port.
pub type BlockedQueues = BTreeMap<String, Vec<BlockedQueue>>;

impl BlockedQueue {
    /// Queue `queue`, blocked by `block`; `name` tells the name of a port, if it is another than the queue's own. `None` for a port
    /// that is disabled: its state tells that.
    pub fn new(queue: u16, block: QueueBlock, name: impl Fn(PortId) -> Option<String>) -> Option<Self> {
        let whole = |time: Duration| time.as_millis() as u64;
        let blocked = |reason| Self { queue, reason, receiver: None, since_ms: None, ends_in_ms: None };
        Some(match block {
            QueueBlock::RateLimit(left) => Self { ends_in_ms: Some(whole(left?) + 1), ..blocked(BlockReason::RateLimit) },
            QueueBlock::NoRoom { receiver, waited } => {
                Self { receiver: name(receiver), since_ms: Some(whole(waited)), ..blocked(BlockReason::Backpressure) }
            }
            QueueBlock::CpuTime => blocked(BlockReason::CpuTime),
        })
    }

    /// The blocked queues of all ports of `network`. Each worker wakes once for it; one that is stuck is left out.
    pub fn all(network: &Network) -> BlockedQueues {
        let mut all = BlockedQueues::new();
        for (key, block) in network.blocked(TIMEOUT) {
            let other = |port| network.port(port).filter(|other| other.id != key.port).map(|other| other.name.clone());
            // A port that was just detached is left out.
            if let Some((port, blocked)) = network.port(key.port).zip(Self::new(key.pair, block, other)) {
                all.entry(port.name.clone()).or_default().push(blocked);
            }
        }
        all
    }

    /// Remedy if the queue stays blocked.
    pub fn remedy(&self) -> &'static str {
        match self.reason {
            BlockReason::RateLimit => "Raise or remove the limit",
            BlockReason::Backpressure => "Ask again: it is no fault unless it stays so; then ask why that port is slow",
            BlockReason::CpuTime => "Give the port a higher weight, or the network more workers",
        }
    }
}

impl fmt::Display for BlockedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, receiver, since_ms, ends_in_ms, .. } = self;
        match self.reason {
            BlockReason::RateLimit => {
                write!(
                    f,
                    "its transmit queue {queue} is blocked for another {} ms by its rate limit",
                    ends_in_ms.unwrap_or_default()
                )
            }
            BlockReason::Backpressure => write!(
                f,
                "its transmit queue {queue} has been blocked for {} ms, because {} has no room (backpressure)",
                since_ms.unwrap_or_default(),
                receiver.as_deref().unwrap_or("a receiver of its flooded frame")
            ),
            BlockReason::CpuTime => {
                write!(f, "its transmit queue {queue} is throttled until other ports have had their share of the worker's CPU time")
            }
        }
    }
}
