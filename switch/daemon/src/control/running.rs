//! Networks that run, and how they are found: by their control sockets in run-time folders.
//!
//! A control socket lies in the run-time folder of its user, called after the network and its file
//! ([`default_control`](crate::config::default_control)); for one that the file places elsewhere, a symbolic link lies there. A socket without a
//! listener was left by a network that was killed, and counts as none.

use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::client::{Client, Peer};
use crate::config::claim::place;
use crate::config::{default_control, file_mark};
use crate::folder;
use memlane_backends::vhost_user::socket;

/// Ending of a control socket's name.
const ENDING: &str = ".control";
/// Most sockets of a folder that are looked at: in a folder of another user there may be any number.
const MOST_SOCKETS: usize = 256;
/// Most bytes of what a network says of itself.
const MOST_BYTES: usize = 64 << 10;
/// Longest wait for a network to say which one it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// A network's file, by which networks of the same name are told apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NetFile {
    /// Absolute path, without links to folders, as they led when it was named.
    pub path: PathBuf,
    /// Absolute path as it was stated: links in it may lead elsewhere by now.
    #[serde(default)]
    pub stated: PathBuf,
    /// Device of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl NetFile {
    /// The file at `path`.
    ///
    /// # Errors
    /// There is none.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self { path: place(path), stated: std::path::absolute(path)?, device: metadata.dev(), inode: metadata.ino() })
    }

    /// As it is now at the path that was stated: editors put a new file in the place of the old one, and deployments have a link lead to a new folder.
    /// The one that was known, where there is none.
    pub fn now(&self) -> Self {
        Self::at(&self.stated).map_or_else(|_| self.clone(), |now| Self { path: self.path.clone(), ..now })
    }

    /// Whether both are the same file, or were named by the same path.
    pub fn is(&self, other: &Self) -> bool {
        self.path == other.path || self.stated == other.stated || (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Which network answers at a control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// Name of the network.
    pub name: String,
    /// Version of memlane.
    pub version: String,
    /// Process, as it knows itself; in [`Running`], as it is known here, or 0 if it is in a PID namespace that is not seen from here.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime: u64,
    /// Its file, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<NetFile>,
    /// Number of ports.
    pub ports: usize,
}

impl Identity {
    /// As in a sentence: its name, file and process.
    pub fn told(&self) -> String {
        let file = self.file.as_ref().map(|file| format!(" of {}", file.path.display())).unwrap_or_default();
        format!("network {}{file} (process {})", self.name, self.pid).replace(char::is_control, "?")
    }
}

/// A network that runs, as its control socket and the kernel tell.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Running {
    /// What it says.
    #[serde(flatten)]
    pub identity: Identity,
    /// User that it runs as.
    pub user: u32,
    /// Its control socket.
    pub control: PathBuf,
}

/// Sockets in `folder` whose names `fit`, without their ending, and at which a process listens; behind links.
fn sockets(folder: &Path, fit: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let wanted = entries.filter(|entry| entry.file_name().to_str().and_then(|name| name.strip_suffix(ENDING)).is_some_and(&fit));
    let paths = wanted.take(MOST_SOCKETS).map(|entry| std::fs::read_link(entry.path()).unwrap_or_else(|_| entry.path()));
    let mut paths: Vec<PathBuf> = paths.filter(|path| listens(path)).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Whether a process listens at the socket `path`; one whose queue is full does.
fn listens(path: &Path) -> bool {
    socket::connect(path).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
}

/// The run-time folder, if others could not have put sockets there.
fn own_folder() -> Option<PathBuf> {
    let folder = folder::runtime();
    folder::is_ours(&folder).then_some(folder)
}

/// Control sockets of this user's networks that run and are called `name`.
pub fn called(name: &str) -> Vec<PathBuf> {
    let is_mark = |mark: &str| mark.len() == 8 && mark.bytes().all(|digit| digit.is_ascii_hexdigit());
    let fits = |stem: &str| match stem.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(is_mark),
        None => false,
    };
    own_folder().map(|folder| sockets(&folder, fits)).unwrap_or_default()
}

/// The control socket of this user's network that runs from `file`, whatever stands in it now: found by its path, or else, where a link leads to
/// it, as the same file.
pub fn of_file(file: &Path) -> Option<PathBuf> {
    let (folder, ending) = (own_folder()?, format!("-{}", file_mark(file)));
    let by_path = sockets(&folder, |stem| stem.ends_with(&ending)).pop();
    by_path.or_else(|| {
        let file = NetFile::at(file).ok()?;
        let is_same = |running: &Running| running.identity.file.as_ref().is_some_and(|known| known.is(&file));
        identify(sockets(&folder, |_| true)).into_iter().find(is_same).map(|running| running.control)
    })
}

/// All networks that run: this user's, and for root those of all users.
pub fn all() -> Vec<Running> {
    let found = |folder: &PathBuf| {
        // A link of another user may lead to any socket: only that user's processes are spoken with.
        let user = std::fs::symlink_metadata(folder).ok().map(|metadata| metadata.uid());
        sockets(folder, |_| true).into_iter().map(move |socket| (socket, user)).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = folders().iter().flat_map(found).collect();
    found.sort();
    found.dedup();
    ask_all(found)
}

/// Folders in which control sockets may lie. Sockets in another user's are only asked which network they are of.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = own_folder().into_iter().collect();
    if !nix::unistd::geteuid().is_root() {
        return folders;
    }
    folders.extend(folder::of_all_users());
    folders.sort();
    folders.dedup();
    folders
}

/// Asks all of these sockets at once which networks they are of; those that do not say so in time are left out.
pub fn identify(sockets: Vec<PathBuf>) -> Vec<Running> {
    ask_all(sockets.into_iter().map(|socket| (socket, None)).collect())
}

/// Asks sockets, each if a process of this user listens there.
fn ask_all(sockets: Vec<(PathBuf, Option<u32>)>) -> Vec<Running> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let mut running: Vec<Running> = runtime.block_on(async {
        let mut asked = JoinSet::new();
        sockets.into_iter().for_each(|(socket, user)| drop(asked.spawn(ask(socket, user))));
        let mut answers = Vec::new();
        while let Some(answer) = asked.join_next().await {
            answers.extend(answer.ok().flatten());
        }
        answers
    });
    let file = |running: &Running| running.identity.file.as_ref().map(|file| file.path.clone());
    running.sort_by_cached_key(|one| (one.user, one.identity.name.clone(), file(one), one.control.clone()));
    running
}

async fn ask(control: PathBuf, user: Option<u32>) -> Option<Running> {
    let client = Client::new(&control).reading(MOST_BYTES).of_user(user);
    let answer = tokio::time::timeout(PATIENCE, client.fetch(Method::GET, "/v1/identity", Vec::new()));
    let (answer, Peer { user, pid }) = answer.await.ok()?.ok()?;
    let mut identity: Identity = serde_json::from_slice(&answer).ok()?;
    // A process of any user may say anything, and one of another PID namespace has another number there; the kernel tells ours.
    identity.pid = pid.unwrap_or(0);
    Some(Running { identity, user, control })
}

/// The network at the control socket `path`, as in a sentence; another program, if it does not say so.
pub fn told(path: &Path) -> Option<String> {
    if !listens(path) {
        return None;
    }
    let found = identify(vec![path.into()]).pop();
    Some(found.map_or_else(|| "another program".into(), |running| running.identity.told()))
}

/// What leads to a control socket that lies elsewhere, from the run-time folder. It goes when it is dropped.
#[derive(Debug)]
pub struct Record {
    link: PathBuf,
    control: PathBuf,
}

impl Record {
    /// Has the network `name` of `file`, which listens at `control`, be found.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn make(control: &Path, name: &str, file: Option<&Path>) -> io::Result<Option<Self>> {
        let (link, control) = (default_control(name, file), place(control));
        if control == place(&link) {
            return Ok(None);
        }
        if let Some(folder) = link.parent() {
            folder::make(folder)?;
            clean(folder);
        }
        // A link left by an earlier start of the same network leads to the socket that listens by now.
        if std::fs::read_link(&link).is_ok_and(|known| known == control) {
            return Ok(Some(Self { link, control }));
        }
        if link.exists() && !socket::is_left(&link)? {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another network is there"));
        }
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(&control, &link)?;
        Ok(Some(Self { link, control }))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Another network may have taken the place since.
        if std::fs::read_link(&self.link).is_ok_and(|control| control == self.control) {
            let _ = std::fs::remove_file(&self.link);
        }
    }
}

/// Removes links that lead nowhere: their networks were killed, and the folders of their sockets are gone.
fn clean(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let is_ours = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "control");
    for link in entries.filter(is_ours).filter(|path| path.is_symlink() && matches!(path.try_exists(), Ok(false))) {
        let _ = std::fs::remove_file(link);
    }
}
