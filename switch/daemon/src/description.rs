//! The messages of a takeover: JSON behind a header with the number of the format, the length and a checksum.
//!
//! Both processes may be of different versions. Any change of these types is another [`FORMAT`], and a process refuses any other format
//! than its own.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use crate::quantity::counted;
use memlane_backends::stream::saved::SavedStream;
use memlane_backends::vhost_user::saved::SavedConnection;
use memlane_observe::events::Record;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::author::Author;
use crate::config::{PortOrigin, UplinkConfig};
use crate::journal::NetworkEvent;
use crate::names::SavedLease;
use crate::port::short_hash;
use crate::stats::PortTotals;

/// Number of the format of all messages.
pub const FORMAT: u32 = 6;
/// Bytes of a header: magic, format, length, number of descriptors, checksum.
pub const HEADER: usize = 28;
/// Most bytes of a message.
pub const MOST_BYTES: u32 = 256 << 20;
/// Most descriptors of a message.
pub const MOST_FILES: u32 = 1 << 18;
const MAGIC: [u8; 8] = *b"memlane\n";

/// Why a message cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// The bytes are no message of this protocol.
    #[error("the other process does not speak the takeover protocol of memlane")]
    Foreign,
    /// The other process is of another version.
    #[error(
        "the other process is of a version whose takeover format is {0}, not {FORMAT}: restart the network instead, as `memlane down` and `memlane up`"
    )]
    Version(u32),
    /// The message is longer than the limits allow.
    #[error("a takeover message of {} and {} exceeds the limits", counted(*.0, "byte"), counted(*.1, "descriptor"))]
    Length(u32, u32),
    /// The message was damaged, or is of another version after all.
    #[error("a takeover message cannot be read: {0}")]
    Body(String),
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Message {
    /// The process that takes over begins.
    Hello(Hello),
    /// The network, with descriptors. Its data path still runs.
    Description(Box<Description>),
    /// All ports are prepared.
    Prepared {},
    /// The data path stands still: the other process may start it.
    Go(Box<Standing>),
    /// All virtqueues run again.
    Running {},
    /// The sender gives up, for this reason.
    Failed(String),
}

/// See [`Message::Hello`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Hello {
    /// The state file that the process was started with.
    pub state: Option<PathBuf>,
}

/// See [`Message::Description`].
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

/// See [`Message::Go`].
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

/// Lengths that a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Bytes of the body.
    pub length: u32,
    /// Descriptors that follow it.
    pub files: u32,
    checksum: u64,
}

impl Announced {
    /// Reads a header.
    ///
    /// # Errors
    /// A [`FormatError`].
    pub fn read(header: [u8; HEADER]) -> Result<Self, FormatError> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
        if header[..MAGIC.len()] != MAGIC {
            return Err(FormatError::Foreign);
        }
        if word(8) != FORMAT {
            return Err(FormatError::Version(word(8)));
        }
        let (length, files) = (word(12), word(16));
        if length > MOST_BYTES || files > MOST_FILES {
            return Err(FormatError::Length(length, files));
        }
        Ok(Self { length, files, checksum: u64::from(word(20)) | u64::from(word(24)) << 32 })
    }

    /// Reads the body that it announces.
    ///
    /// # Errors
    /// [`FormatError::Body`].
    pub fn body(&self, body: &[u8]) -> Result<Message, FormatError> {
        if body.len() != self.length as usize || checksum(self.length, self.files, body) != self.checksum {
            return Err(FormatError::Body("it was damaged on its way".into()));
        }
        serde_json::from_slice(body).map_err(|error| FormatError::Body(error.to_string()))
    }
}

impl Message {
    /// The message in bytes, with `files` descriptors that follow it.
    ///
    /// # Errors
    /// The message is too long, or a path in it is no Unicode.
    pub fn encode(&self, files: u32) -> Result<Vec<u8>, FormatError> {
        let body = serde_json::to_vec(self).map_err(|error| FormatError::Body(error.to_string()))?;
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if length > MOST_BYTES || files > MOST_FILES {
            return Err(FormatError::Length(length, files));
        }
        Ok(framed(FORMAT, &body, files))
    }

    /// Reads a whole message; returns the number of its descriptors too.
    ///
    /// # Errors
    /// A [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), FormatError> {
        let (header, body) = bytes.split_first_chunk().ok_or(FormatError::Foreign)?;
        let announced = Announced::read(*header)?;
        Ok((announced.body(body)?, announced.files))
    }
}

/// `body` behind a header.
fn framed(format: u32, body: &[u8], files: u32) -> Vec<u8> {
    let length = body.len() as u32;
    let mut bytes = MAGIC.to_vec();
    [format, length, files].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(checksum(length, files, body).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn checksum(length: u32, files: u32, body: &[u8]) -> u64 {
    let lengths = [length, files].into_iter().flat_map(u32::to_le_bytes);
    short_hash(lengths.chain(body.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Attacher, SegmentEntry};
    use memlane_backends::stream::saved::Rest;
    use memlane_backends::vhost_user::saved::SavedMessage;

    fn description() -> Message {
        let owner = SavedMessage { request: 3, ..SavedMessage::default() };
        let features = SavedMessage { request: 2, payload: vec![u64::MAX], file: None };
        let region = SavedMessage { request: 37, payload: vec![0, 0, 1 << 30, u64::MAX >> 1, 4096], file: Some(3) };
        let connection = SavedConnection {
            mtu: Some(1400),
            messages: vec![owner, features, region],
            part: vec![1, 2, 255],
            ..SavedConnection::default()
        };
        let entry = Map::from_iter([("name".to_owned(), "web".into())]);
        let listener = Some(SavedListener { socket: 4, file: Some((7, 9)) });
        let origin = PortOrigin::labelled(Attacher::Libvirt, "web");
        let port = SavedPort { entry, origin, files: 5, listener, connection: Some(connection), tap: None, has_left: false };
        let addresses = vec![SavedAddress { port: 0, address: [2, 0, 0, 0, 0, 1], vlan: 7 }];
        let segment = SegmentEntry {
            name: Some("lan".into()),
            uplink: true,
            vni: Some(100),
            local: Some([10, 0, 0, 1].into()),
            mtu: Some(1400),
            ..SegmentEntry::default()
        };
        let config = UplinkConfig::of(&segment).unwrap();
        let uplinks = vec![SavedUplink { config: config.clone(), mtu: 1400, made: vec![("t".into(), 7)], may_tell: true }];
        let ports = vec![port];
        Message::Description(Box::new(Description {
            file_uplinks: vec![config],
            uplinks,
            ports,
            addresses,
            events: vec![SavedEvent {
                sequence: 7,
                time: 1 << 60,
                event: NetworkEvent::PortDetached { port: "a".into(), by: None },
            }],
            ..Description::default()
        }))
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let record = PortRecord { quarantines: 3, quarantined: Some("a fault".into()), ..PortRecord::default() };
        let event = SavedEvent { sequence: 7, time: 1 << 60, event: NetworkEvent::PortDetached { port: "a".into(), by: None } };
        assert_eq!(SavedEvent::from(&Record::from(event.clone())), event);
        let rest = Rest { read: vec![0, 0, 0, 60, 2], unwritten: Vec::new() };
        let streams =
            vec![SavedStreamPort { port: "db".into(), stream: SavedStream { socket: 0, rest, log: Some(1), flows: vec![] } }];
        let standing =
            Standing { by: None, records: vec![record], departed: Vec::new(), events: vec![event], next_event: 8, streams };
        let hello = Message::Hello(Hello { state: Some("/var/lib/a.state".into()) });
        let failed = Message::Failed("no".into());
        for message in [hello, description(), Message::Prepared {}, Message::Go(Box::new(standing)), Message::Running {}, failed] {
            assert_eq!(Message::decode(&message.encode(9).unwrap()), Ok((message, 9)));
        }
    }

    #[test]
    fn a_message_that_was_changed_or_cut_off_is_refused() {
        let bytes = description().encode(5).unwrap();
        for index in 0..bytes.len() {
            for change in [1, 0x20, 0x80] {
                let mut changed = bytes.clone();
                changed[index] ^= change;
                assert!(Message::decode(&changed).is_err(), "byte {index} ^ {change}");
            }
            assert!(Message::decode(&bytes[..index]).is_err(), "{index} bytes");
        }
        assert!(Message::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    /// A network of the version before keeps serving, and so does this one where that version asks for it.
    #[test]
    fn a_description_of_the_version_before_is_refused() {
        let body = include_str!("description/format-5.json").trim_end();
        assert_eq!(Message::decode(&framed(5, body.as_bytes(), 5)), Err(FormatError::Version(5)));
        // Nor is it read as one of this format.
        let told = Message::decode(&framed(FORMAT, body.as_bytes(), 5)).unwrap_err();
        assert!(matches!(&told, FormatError::Body(told) if told.contains("unknown field `owned`")), "{told}");
    }

    /// Types that change without another [`FORMAT`] would let two versions misunderstand each other.
    #[test]
    fn a_description_of_this_format_stays_the_same() {
        assert_eq!(FORMAT, 6, "keep a description of the new format beside that of the one before");
        let text = serde_json::to_string_pretty(&description()).unwrap();
        let kept = include_str!("description/format-6.json").trim_end();
        assert!(text == kept, "raise FORMAT, and keep this description of the new format:\n{text}");
    }

    #[test]
    fn another_format_and_unknown_keys_are_refused() {
        let mut bytes = Message::Prepared {}.encode(0).unwrap();
        bytes[8] = 2;
        let told = Message::decode(&bytes).unwrap_err();
        assert!(told == FormatError::Version(2) && told.to_string().contains("restart the network instead"), "{told}");
        let wrong = [
            r#"{"prepared":{"more":1}}"#,
            r#"{"hello":{"state":null,"more":1}}"#,
            r#"{"later":{}}"#,
            r#"{"go":{"records":[{"totals":{}}],"events":[],"next-event":0}}"#,
        ];
        for text in wrong {
            assert!(serde_json::from_str::<Message>(text).is_err(), "{text}");
        }
    }
}
