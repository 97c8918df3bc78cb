//! Requests and reports about a frozen network.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Content type of a snapshot.
pub const CONTENT_TYPE: &str = "application/x-memlane-snapshot";
/// Time for which a frozen network waits for a command, unless the order states another, and the most.
const USUAL: Duration = Duration::from_secs(60);
/// See [`USUAL`].
pub const MOST: Duration = Duration::from_secs(3600);

/// Parameters of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SnapshotOrder {
    /// Milliseconds after which the network goes on without a command.
    #[schemars(range(min = 1, max = 3600000))]
    pub milliseconds: u64,
    /// The machine, as the command knows it.
    pub machine: String,
}

impl Default for SnapshotOrder {
    fn default() -> Self {
        Self { milliseconds: USUAL.as_millis() as u64, machine: String::new() }
    }
}

/// Parameters of a thaw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ThawOrder {
    /// Why, for the event; none if an operator ends the freeze.
    pub cause: Option<String>,
}

/// A network that goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ThawView {
    /// Milliseconds for which no frame moved.
    pub milliseconds: u64,
    /// Frames that were in flight.
    pub frames: u64,
    /// Frames that were dropped, because the queue of their receiver did not run.
    pub lost: u64,
    /// Ports with virtqueues that ran before, and do not run.
    pub not_running: Vec<String>,
}

/// The freeze of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct FrozenView {
    /// Milliseconds since its beginning.
    pub milliseconds: u64,
    /// Milliseconds until the network goes on without a command; none for a copy, which goes on once its guests run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub left: Option<u64>,
    /// Ports with virtqueues that ran at its beginning, and do not run.
    pub not_running: Vec<String>,
}
