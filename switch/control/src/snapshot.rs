//! Snapshot of a frozen network: a folder with one file, of which any number of networks can be made.
//!
//! The file has a header with the number of the format, the version of memlane, lengths and a checksum; a description as JSON; and the bytes of
//! the frames in flight, in the order in which the description has them. The process of the network makes its contents, and the command
//! `memlane snapshot` writes them: a network in a sandbox opens no files.
//!
//! The checksum tells of a file that was cut off or changed by accident. A user that may write the file may make another one, so that each value is
//! checked where it is used, as one from a guest.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::{Config, Mistakes, runtime_folder};
use crate::description::PortRecord;
use crate::names::SavedLease;
use crate::policy::BUCKETS;
use crate::port::short_hash;

/// Number of the format.
pub const FORMAT: u32 = 1;
/// Name of the file in the folder.
const FILE: &str = "network";
const MAGIC: [u8; 8] = *b"memsnap\n";
/// Bytes of the header: magic, format, length of the description, length of the frames, checksum, version.
const HEADER: usize = 8 + 4 + 4 + 8 + 8 + VERSION;
/// Bytes of the version's text.
const VERSION: usize = 32;
/// Most bytes of a description, and of the frames.
const MOST_DESCRIPTION: u32 = 256 << 20;
const MOST_FRAMES: u64 = 16 << 30;

/// Why a snapshot cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Something is there already.
    #[error("{0} exists already: name a folder that does not")]
    Exists(PathBuf),
    /// The kernel refuses to write it.
    #[error("cannot write the snapshot {path}: {cause}")]
    Write {
        /// The folder.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The kernel refuses to read it.
    #[error("cannot read the snapshot {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The file is no snapshot.
    #[error("this is no snapshot of a memlane network")]
    Foreign,
    /// The file is of another format.
    #[error(
        "the snapshot was taken by memlane {version}, in format {format}; this is memlane {own}, which reads format {FORMAT}: restore it with \
         that version", own = crate::version()
    )]
    Version {
        /// Version of memlane that took it.
        version: String,
        /// Format of the file.
        format: u32,
    },
    /// The file was cut off or changed.
    #[error("the snapshot is damaged: {0}. It was cut off or changed since it was taken: take another one")]
    Damaged(String),
    /// The snapshot is of another machine.
    #[error(
        "the snapshot was taken on another machine ({theirs}, here {own}): its guests have agreed with the other one on offloads and CPUs, and their \
         memory is there. Restore it there"
    )]
    Machine {
        /// The machine on which it was taken.
        theirs: String,
        /// The machine of this process.
        own: String,
    },
    /// The network that it describes is invalid.
    #[error("the network of the snapshot is invalid: {0}")]
    Network(#[from] Mistakes),
}

/// A frozen network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Snapshot {
    /// Name of the network.
    pub network: String,
    /// Name of the network of which its usual MAC addresses are made.
    pub addresses_of: String,
    /// The machine, see [`machine`].
    pub machine: String,
    /// Keys of the network, without its ports.
    pub document: Map<String, Value>,
    /// Ports that are part of it.
    pub ports: Vec<SnapshotPort>,
    /// Ports and uplinks that are not, in words.
    pub outside: Vec<String>,
    /// Learned MAC addresses of the forwarding table.
    pub addresses: Vec<SnapshotAddress>,
    /// Leases that are kept for ports that have left.
    pub departed: Vec<SavedLease>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SnapshotPort {
    /// Keys of the port.
    pub entry: Map<String, Value>,
    /// MTU that the guest was offered.
    pub mtu: Option<u16>,
    /// Counters and leases.
    pub record: PortRecord,
    /// Nanoseconds until each token bucket of the rate limits is full again.
    pub buckets: [u64; BUCKETS],
    /// Flows that the port opened: rules let their replies pass.
    pub flows: SnapshotFlows,
    /// Virtqueues that ran: queue pair, and whether it is a receive queue.
    pub running: Vec<(u16, bool)>,
    /// Frames in flight to it.
    pub lines: Vec<SnapshotLine>,
}

/// Flows of a port: see [`SavedFlows`](crate::policy::flows::SavedFlows).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SnapshotFlows {
    /// Key of their hashes.
    pub key: [u64; 2],
    /// Hash and idle seconds of each.
    pub entries: Vec<(u64, u32)>,
}

/// The emulated link before a receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SnapshotLine {
    /// The queue pair.
    pub pair: u16,
    /// State of the link emulation: generator of losses and delays.
    pub seed: u64,
    /// The link is in the bad state of its loss bursts.
    pub bad: bool,
    /// Nanoseconds until each frame in the transmitter's queue has left.
    pub leaving: Vec<u64>,
    /// Nanoseconds until the last frame arrives.
    pub last_due: u64,
    /// The frames, in order.
    pub frames: Vec<SnapshotFrame>,
}

/// A frame in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SnapshotFrame {
    /// Index of its sender among the ports; none if that is no part of the snapshot.
    pub from: Option<u32>,
    /// The virtio-net header.
    pub header: [u8; 12],
    /// Length in bytes.
    pub length: u32,
    /// Segments of an unsegmented frame (GSO) that were delivered already.
    pub segments_done: u16,
    /// Nanoseconds until it arrives.
    pub left: u64,
}

/// A learned MAC address, an entry of the forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SnapshotAddress {
    /// Index of its port.
    pub port: u32,
    /// The address.
    pub address: [u8; 6],
    /// VLAN of the address; 0 for none.
    pub vlan: u16,
}

/// A snapshot with the bytes of its frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotFile {
    /// The description.
    pub snapshot: Snapshot,
    /// The Ethernet frames in flight, one after the other.
    pub frames: Vec<u8>,
}

/// The machine: its architecture, and a hash of /etc/machine-id (machine-id(5) asks not to show the id itself), or the host's name without one.
pub fn machine() -> String {
    let id = std::fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty());
    let host = || nix::sys::utsname::uname().map(|names| names.nodename().to_string_lossy().into_owned()).unwrap_or_default();
    let id =
        id.map_or_else(host, |id| format!("{:016x}", short_hash(b"memlane snapshot ".iter().chain(id.trim().as_bytes()).copied())));
    format!("{} {id}", std::env::consts::ARCH)
}

impl Snapshot {
    /// Frames in flight.
    pub fn frames(&self) -> u64 {
        self.ports.iter().flat_map(|port| &port.lines).map(|line| line.frames.len() as u64).sum()
    }

    /// Names of the ports of which a virtqueue ran.
    pub fn running(&self) -> Vec<&str> {
        self.ports.iter().filter(|port| !port.running.is_empty()).map(SnapshotPort::name).collect()
    }

    /// The configuration of a copy called `name`: sockets of ports lie beside its control socket, and no port or uplink leads out.
    ///
    /// # Errors
    /// The description is no valid network.
    pub fn config(&self, name: &str) -> Result<Config, Mistakes> {
        // Sockets and files of which there can be one only, and ways out.
        const LEFT_OUT: [&str; 7] = ["name", "control", "metrics", "metrics-access", "web", "web-token", "xen-vifs"];
        const OF_UPLINKS: [&str; 10] = ["uplink", "nic", "vni", "local", "udp-port", "netns", "mtu", "tap", "bridge", "vxlan"];
        let mut document = self.document.clone();
        document.retain(|key, _| !LEFT_OUT.contains(&key.as_str()));
        document.insert("name".into(), name.into());
        if let Some(Value::Array(segments)) = document.get_mut("segment") {
            segments
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(|segment| OF_UPLINKS.iter().for_each(|key| drop(segment.remove(*key))));
        }
        let port = |port: &SnapshotPort| {
            let mut entry = port.entry.clone();
            if entry.contains_key("vhost-user") {
                let socket = runtime_folder().join(format!("{name}.{}.sock", port.name()));
                entry.insert("vhost-user".into(), socket.to_string_lossy().into());
            }
            if let Some(mtu) = port.mtu {
                entry.insert("mtu".into(), mtu.into());
            }
            Value::Object(entry)
        };
        document.insert("port".into(), self.ports.iter().map(port).collect());
        let config = Config::from_json(&Value::Object(document), name, Path::new("/"))?;
        Ok(Config { addresses_of: Some(self.addresses_of.clone()), ..config })
    }
}

impl SnapshotPort {
    /// Name of the port.
    pub fn name(&self) -> &str {
        self.entry.get("name").and_then(Value::as_str).unwrap_or_default()
    }
}

impl SnapshotFile {
    /// The file.
    ///
    /// # Errors
    /// The description is too long.
    pub fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let unfit = |text: String| SnapshotError::Damaged(text);
        let description = serde_json::to_vec(&self.snapshot).map_err(|error| unfit(error.to_string()))?;
        let length = u32::try_from(description.len()).ok().filter(|length| *length <= MOST_DESCRIPTION);
        let length = length.ok_or_else(|| unfit("its description is too long".into()))?;
        let mut version = [0; VERSION];
        version.iter_mut().zip(crate::version().bytes()).for_each(|(place, byte)| *place = byte);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend((self.frames.len() as u64).to_le_bytes());
        bytes.extend(checksum(length, self.frames.len() as u64, &[&version, &description, &self.frames]).to_le_bytes());
        bytes.extend(version);
        bytes.extend(description);
        bytes.extend(&self.frames);
        Ok(bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A [`SnapshotError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let damaged = |text: &str| SnapshotError::Damaged(text.into());
        let rest = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::Foreign)?;
        let mut header = rest.get(..HEADER - MAGIC.len()).ok_or_else(|| damaged("its header is not whole"))?;
        let mut number = |count: usize| {
            let (word, after) = header.split_at(count);
            header = after;
            word.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let [format, length] = [number(4), number(4)].map(|number| number as u32);
        let (frames, sum) = (number(8), number(8));
        let version = header;
        if format != FORMAT {
            let text: Vec<u8> = version.iter().copied().take_while(|byte| byte.is_ascii_graphic()).collect();
            return Err(SnapshotError::Version { version: String::from_utf8_lossy(&text).into_owned(), format });
        }
        let body = &bytes[HEADER..];
        if length > MOST_DESCRIPTION || frames > MOST_FRAMES || body.len() as u64 != u64::from(length) + frames {
            return Err(damaged("its length is not as its header says"));
        }
        let (description, blob) = body.split_at(length as usize);
        if checksum(length, frames, &[version, description, blob]) != sum {
            return Err(damaged("its checksum is wrong"));
        }
        let snapshot: Snapshot = serde_json::from_slice(description).map_err(|error| SnapshotError::Damaged(error.to_string()))?;
        let all = snapshot.ports.iter().flat_map(|port| &port.lines).flat_map(|line| &line.frames);
        if all.map(|frame| u64::from(frame.length)).sum::<u64>() != frames {
            return Err(damaged("its frames are not as its description says"));
        }
        Ok(Self { snapshot, frames: blob.to_vec() })
    }

    /// Reads the snapshot in `folder`, which was taken on this machine.
    ///
    /// # Errors
    /// A [`SnapshotError`].
    pub fn load(folder: &Path) -> Result<Self, SnapshotError> {
        let path = folder.join(FILE);
        let failed = |cause| SnapshotError::Read { path: path.clone(), cause };
        let mut bytes = Vec::new();
        let most = HEADER as u64 + u64::from(MOST_DESCRIPTION) + MOST_FRAMES;
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).map_err(failed)?;
        file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
        let file = Self::decode(&bytes)?;
        let own = machine();
        match file.snapshot.machine == own {
            true => Ok(file),
            false => Err(SnapshotError::Machine { theirs: file.snapshot.machine, own }),
        }
    }
}

fn checksum(length: u32, frames: u64, parts: &[&[u8]]) -> u64 {
    let lengths = length.to_le_bytes().into_iter().chain(frames.to_le_bytes());
    short_hash(lengths.chain(parts.iter().flat_map(|part| part.iter().copied())))
}

/// A folder that is written whole or not at all: under another name until [`Self::finish`].
#[derive(Debug)]
pub struct NewFolder {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl NewFolder {
    /// Makes the folder that becomes `path`, for its owner only.
    ///
    /// # Errors
    /// [`SnapshotError::Exists`], [`SnapshotError::Write`].
    pub fn make(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |cause| SnapshotError::Write { path: path.into(), cause };
        let path = std::path::absolute(path).map_err(failed)?;
        if path.symlink_metadata().is_ok() {
            return Err(SnapshotError::Exists(path));
        }
        let name = path.file_name().ok_or_else(|| SnapshotError::Exists(path.clone()))?.to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let failed = |cause| SnapshotError::Write { path: path.clone(), cause };
        DirBuilder::new().mode(0o700).create(&temporary).map_err(failed)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary.join(FILE)).map_err(|cause| {
            // The error of the file says more.
            let _ = std::fs::remove_dir(&temporary);
            failed(cause)
        })?;
        Ok(Self { path, temporary, file })
    }

    /// Writes a part of the file.
    ///
    /// # Errors
    /// [`SnapshotError::Write`].
    pub fn write(&mut self, part: &[u8]) -> Result<(), SnapshotError> {
        self.file.write_all(part).map_err(|cause| SnapshotError::Write { path: self.path.clone(), cause })
    }

    /// Gives the folder its name, once all of it is on the disk; returns its path.
    ///
    /// # Errors
    /// [`SnapshotError::Write`]; there is no folder then.
    pub fn finish(self) -> Result<PathBuf, SnapshotError> {
        let sync = |folder: &Path| File::open(folder)?.sync_all();
        let named = || match renameat2(AT_FDCWD, &self.temporary, AT_FDCWD, &self.path, RenameFlags::RENAME_NOREPLACE) {
            // A file system without this flag; an empty folder that came meanwhile is replaced then.
            Err(Errno::EINVAL) => std::fs::rename(&self.temporary, &self.path),
            renamed => renamed.map_err(io::Error::from),
        };
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let done = self.file.sync_all().and_then(|()| sync(&self.temporary)).and_then(|()| named()).and_then(|()| sync(parent));
        let path = self.path.clone();
        done.map(|()| path.clone()).map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => SnapshotError::Exists(path),
            _ => SnapshotError::Write { path, cause },
        })
    }
}

impl Drop for NewFolder {
    /// Removes a folder that did not get its name.
    fn drop(&mut self) {
        remove(&self.temporary);
    }
}

/// Removes the snapshot in `folder`, and the folder if nothing else is in it.
pub fn remove(folder: &Path) {
    let _ = std::fs::remove_file(folder.join(FILE));
    let _ = std::fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> SnapshotFile {
        let frame = SnapshotFrame { from: Some(0), header: [0; 12], length: 60, segments_done: 0, left: 1_000_000 };
        let line =
            SnapshotLine { pair: 0, seed: u64::MAX, leaving: vec![5], frames: vec![frame, frame], ..SnapshotLine::default() };
        let entry = Map::from_iter([("name".to_owned(), "a".into()), ("vhost-user".to_owned(), "/x/a.sock".into())]);
        let flows = SnapshotFlows { key: [1, u64::MAX], entries: vec![(7, 3)] };
        let port = SnapshotPort { entry, flows, lines: vec![line], running: vec![(0, true)], ..SnapshotPort::default() };
        let document = serde_json::json!({ "workers": 2, "control": "/x/control", "segment": [{ "name": "lan", "subnet": "10.0.0.0/24", "mtu": 1400, "uplink": true, "vni": 7, "local": "10.9.0.1" }] });
        let Value::Object(document) = document else { unreachable!() };
        let snapshot = Snapshot {
            network: "lab".into(),
            addresses_of: "lab".into(),
            machine: machine(),
            document,
            ports: vec![port],
            ..Snapshot::default()
        };
        SnapshotFile { snapshot, frames: vec![9; 120] }
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written_and_not_if_it_was_changed_or_cut() {
        let bytes = file().encode().unwrap();
        assert_eq!(SnapshotFile::decode(&bytes).unwrap(), file());
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 0x20;
            assert!(SnapshotFile::decode(&changed).is_err(), "byte {index}");
            assert!(SnapshotFile::decode(&bytes[..index]).is_err(), "{index} bytes");
        }
        assert!(SnapshotFile::decode(&[&bytes[..], &[0]].concat()).is_err());
        let mut more = file();
        more.frames.push(0);
        assert!(SnapshotFile::decode(&more.encode().unwrap()).unwrap_err().to_string().contains("not as its description says"));
    }

    #[test]
    fn another_format_is_refused_with_both_versions() {
        let mut bytes = file().encode().unwrap();
        bytes[8] = 9;
        let told = SnapshotFile::decode(&bytes).unwrap_err().to_string();
        let own = format!("taken by memlane {0}, in format 9; this is memlane {0}, which reads format 1", crate::version());
        assert!(told.contains(&own), "{told}");
    }

    #[test]
    fn a_copy_has_the_keys_with_sockets_of_its_own_and_no_way_out() {
        let config = file().snapshot.config("copy").unwrap();
        assert_eq!((config.name.as_str(), config.workers, config.seed()), ("copy", 2, "lab"));
        assert!(config.control.is_none() && config.uplinks.is_empty() && config.names.len() == 1);
        let place = config.ports[0].kind.place();
        assert!(place.ends_with("/copy.a.sock"), "{place}");
    }

    #[test]
    fn a_folder_is_there_whole_or_not_at_all_and_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("cut");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let entries = || std::fs::read_dir(parent.path()).unwrap().count();
        let mut folder = NewFolder::make(&path).unwrap();
        folder.write(b"half").unwrap();
        assert!(!path.exists());
        drop(folder);
        assert_eq!(entries(), 0);
        let mut folder = NewFolder::make(&path).unwrap();
        folder.write(&file().encode().unwrap()).unwrap();
        assert_eq!(folder.finish().unwrap(), path);
        assert_eq!((entries(), mode(&path), mode(&path.join(FILE))), (1, 0o700, 0o600));
        assert_eq!(SnapshotFile::load(&path).unwrap(), file());
        assert!(matches!(NewFolder::make(&path), Err(SnapshotError::Exists(_))));
        let mut theirs = file();
        theirs.snapshot.machine = "other 1".into();
        std::fs::write(path.join(FILE), theirs.encode().unwrap()).unwrap();
        assert!(matches!(SnapshotFile::load(&path), Err(SnapshotError::Machine { .. })));
        remove(&path);
        assert_eq!(entries(), 0);
        assert!(matches!(SnapshotFile::load(&path), Err(SnapshotError::Read { .. })));
    }
}
