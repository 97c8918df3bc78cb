//! The description of a network for another process of it (takeover). A snapshot has the records of ports, too.
//!
//! Both processes may be of different versions. Any change of these types is another [`FORMAT`](crate::daemon::takeover::FORMAT), and a process
//! refuses any other format than its own.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use memlane_backends::stream::SavedStream;
use memlane_backends::takeover::SavedConnection;
use memlane_observe::events::Record;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::author::Author;
use crate::config::{PortOrigin, UplinkConfig};
use crate::journal::NetworkEvent;
use crate::names::SavedLease;
use crate::stats::PortTotals;

/// The begin of a process that takes over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Hello {
    /// The state file that the process was started with.
    pub state: Option<PathBuf>,
}

/// A network, whose data path still runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Description {
    /// The ports as the network's file described them when it was read last.
    pub file_ports: Vec<Map<String, Value>>,
    /// And its uplinks.
    pub file_uplinks: Vec<UplinkConfig>,
    /// The uplinks at present. The first descriptors are those of their TAP devices.
    pub uplinks: Vec<SavedUplink>,
    /// The ports at present.
    pub ports: Vec<SavedPort>,
    /// Learned MAC addresses.
    pub addresses: Vec<SavedAddress>,
    /// Events that are kept.
    pub events: Vec<SavedEvent>,
    /// Sockets of the network; their descriptors follow those of the ports.
    pub sockets: SavedSockets,
    /// The environment by which a service manager is notified.
    pub service: SavedService,
}

/// A network whose data path stands still.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Standing {
    /// Author of the takeover.
    pub by: Option<Author>,
    /// Counters and states of the ports, then of the uplinks.
    pub records: Vec<PortRecord>,
    /// Leases that are kept for ports that have left.
    pub departed: Vec<SavedLease>,
    /// Events since the description.
    pub events: Vec<SavedEvent>,
    /// Number of the next event.
    pub next_event: u64,
    /// Connections of stream ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<SavedStreamPort>,
}

/// The connection of a stream port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedStreamPort {
    /// Name of the port.
    pub port: String,
    /// The connection. Its descriptor comes with the message.
    pub stream: SavedStream,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedEvent {
    /// Number of the event.
    pub sequence: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The event itself.
    pub event: NetworkEvent,
}

impl From<&Record<NetworkEvent>> for SavedEvent {
    fn from(record: &Record<NetworkEvent>) -> Self {
        let time = record.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Self { sequence: record.sequence, time, event: record.event.clone() }
    }
}

impl From<SavedEvent> for Record<NetworkEvent> {
    fn from(saved: SavedEvent) -> Self {
        let time = UNIX_EPOCH + Duration::from_nanos(saved.time);
        Self { sequence: saved.sequence, time, event: saved.event.bounded() }
    }
}

/// A segment's uplink to other hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedUplink {
    /// Configuration of the uplink.
    pub config: UplinkConfig,
    /// MTU of its segment.
    pub mtu: u16,
    /// Devices that were created for it, by their names and numbers: they are removed with it.
    pub made: Vec<(String, u32)>,
    /// Whether the kernel lets the network change the bridge's FDB.
    pub may_tell: bool,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedPort {
    /// The keys that attach it again.
    pub entry: Map<String, Value>,
    /// Origin of the port.
    pub origin: PortOrigin,
    /// Number of its descriptors, which the rest refers to.
    pub files: u32,
    /// The listening socket.
    pub listener: Option<SavedListener>,
    /// The connection of its front end.
    pub connection: Option<SavedConnection>,
    /// Number of the descriptor of its TAP device or packet socket.
    pub tap: Option<u32>,
    /// The front end of the ephemeral port has come and left.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub has_left: bool,
}

/// A listening Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedListener {
    /// Number of its descriptor.
    pub socket: u32,
    /// Device and inode of its file, if it had one.
    pub file: Option<(u64, u64)>,
}

/// Sockets of the network, with the numbers of their descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedSockets {
    /// The control socket.
    pub control: SavedListener,
    /// The socket of the metrics, and its place.
    pub metrics: Option<(String, SavedListener)>,
    /// The socket of the web page, and its address.
    pub web: Option<(String, u32)>,
    /// The locked state file.
    pub state: Option<u32>,
}

/// Environment variables of sd_notify(3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedService {
    /// NOTIFY_SOCKET.
    pub socket: Option<String>,
    /// WATCHDOG_USEC.
    pub watchdog: Option<String>,
}

/// A learned MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedAddress {
    /// Index of its port; uplinks follow the ports.
    pub port: u32,
    /// The address.
    pub address: [u8; 6],
    /// VLAN of the address; 0 for none.
    pub vlan: u16,
}

/// Counters and state of a port when the data path stands still.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortRecord {
    /// Counters of the port.
    pub totals: PortTotals,
    /// Number of its quarantines.
    pub quarantines: u64,
    /// Why it is in quarantine, if it is.
    pub quarantined: Option<String>,
    /// Leases of the responder.
    pub leases: Vec<SavedLease>,
    /// Addresses that its questions for DNS names were answered with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<GrantRecord>,
}

/// An address that a port's question for a DNS name was answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GrantRecord {
    /// The address.
    pub address: IpAddr,
    /// The name.
    pub name: String,
    /// Seconds until its TTL ends; less than 0 if it has ended.
    pub seconds: i64,
}
