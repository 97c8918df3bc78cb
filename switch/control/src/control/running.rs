//! Discovery of running networks by their control sockets in run-time folders.
//!
//! A control socket lies in the run-time folder of its user, called after the network and its file
//! ([`default_control`](crate::config::default_control)); if it is configured elsewhere, a symbolic link lies there. A socket
//! without a listener is the remains of a killed network, and is ignored.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde::Serialize;
use tokio::task::JoinSet;

use super::client::{Client, Peer};
use super::identity::{Identity, NetFile};
use super::state_file;
use crate::config::file_mark;
use crate::folder;
use crate::helper::record::Record;
use crate::sandbox;
use memlane_backends::vhost_user::socket;

/// Ending of a control socket's name.
const ENDING: &str = ".control";
/// Most sockets of a folder that are examined: a folder of another user may hold any number.
const MOST_SOCKETS: usize = 256;
/// Most bytes of a network's identity.
const MOST_BYTES: usize = 64 << 10;
/// Timeout for a network to answer with its identity.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A running network, from its control socket and the kernel.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Running {
    /// Identity of the network.
    #[serde(flatten)]
    pub identity: Identity,
    /// User id of its process.
    pub user: u32,
    /// Control socket of the network.
    pub control: PathBuf,
}

/// Sockets in `folder` with a listener and a name that `fit` accepts, without its ending; links are followed.
fn sockets(folder: &Path, fit: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    named(folder, fit).into_iter().filter(|path| listens(path)).collect()
}

/// Like [`sockets`], with a listener or without.
fn named(folder: &Path, fit: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let wanted = entries.filter(|entry| entry.file_name().to_str().and_then(|name| name.strip_suffix(ENDING)).is_some_and(&fit));
    let paths = wanted.take(MOST_SOCKETS).map(|entry| std::fs::read_link(entry.path()).unwrap_or_else(|_| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Whether a process listens at the socket `path`; a full listen queue means so too.
fn listens(path: &Path) -> bool {
    socket::connect(path).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
}

/// The run-time folder, if no other user can put sockets there.
fn own_folder() -> Option<PathBuf> {
    let folder = folder::runtime();
    folder::is_ours(&folder).then_some(folder)
}

/// Control sockets of running networks called `name`: this user's, or else those of other users that [`all`] finds.
pub fn called(name: &str) -> Vec<PathBuf> {
    let is_mark = |mark: &str| mark.len() == 8 && mark.bytes().all(|digit| digit.is_ascii_hexdigit());
    let fits = |stem: &str| match stem.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(is_mark),
        None => false,
    };
    let own = own_folder().map(|folder| sockets(&folder, fits)).unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    let found = of_others(fits).into_iter().filter(|running| running.identity.name == name);
    let found: Vec<PathBuf> = found.map(|running| running.control).collect();
    if found.is_empty() { shut(fits) } else { found }
}

/// The control socket of the network that runs from `file`, which may have changed: found by its path, or else, if a
/// link leads to it, as the same file. This user's networks come first, and then those of other users that [`all`] finds.
pub fn of_file(file: &Path) -> Option<PathBuf> {
    let ending = format!("-{}", file_mark(file));
    let by_path = own_folder().and_then(|folder| sockets(&folder, |stem| stem.ends_with(&ending)).pop());
    let same_file = || {
        let file = NetFile::at(file).ok()?;
        let is_same = |running: &Running| running.identity.file.as_ref().is_some_and(|known| known.is(&file));
        let own = own_folder().map(|folder| identify(sockets(&folder, |_| true))).unwrap_or_default();
        let found = own.into_iter().chain(of_others(|_| true)).find(is_same);
        found.map(|running| running.control)
    };
    by_path.or_else(same_file).or_else(|| shut(|stem| stem.ends_with(&ending)).pop())
}

/// The control socket of the only network that runs, if there is one and no other.
pub fn only_one() -> Option<PathBuf> {
    let mut running = all();
    if running.len() == 1 { running.pop().map(|running| running.control) } else { None }
}

/// Networks in run-time folders of other users, with a socket of a name that `fit` accepts.
fn of_others(fit: impl Fn(&str) -> bool) -> Vec<Running> {
    let own = own_folder();
    let others = folders().into_iter().filter(|folder| Some(folder) != own.as_ref());
    ask_all(others.flat_map(|folder| in_folder(&folder, &fit)).collect())
}

/// Control sockets of the packaged units with a name that `fit` accepts, which this user may see and not use: a command then tells the
/// user that may.
fn shut(fit: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let is_shut = |path: &PathBuf| socket::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    named(&folder::of_the_system(), fit).into_iter().filter(is_shut).collect()
}

/// All running networks: this user's and those of the packaged units, and for root those of all users.
pub fn all() -> Vec<Running> {
    let mut found: Vec<_> = folders().iter().flat_map(|folder| in_folder(folder, &|_: &str| true)).collect();
    found.sort();
    found.dedup();
    ask_all(found)
}

/// Sockets in the run-time folder of a user, with the user: a link may lead to any socket, and only processes of that user are asked.
fn in_folder(folder: &Path, fit: &impl Fn(&str) -> bool) -> Vec<(PathBuf, Option<u32>)> {
    let user = std::fs::symlink_metadata(folder).ok().map(|metadata| metadata.uid());
    sockets(folder, fit).into_iter().map(|socket| (socket, user)).collect()
}

/// Folders that may hold control sockets. Sockets of other users are only asked for their identity.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = own_folder().into_iter().collect();
    match nix::unistd::geteuid().is_root() {
        true => folders.extend(folder::of_all_users()),
        false => folders.push(folder::of_the_system()),
    }
    folders.sort();
    folders.dedup();
    folders
}

/// Asks all of these sockets at once for their identity; those that do not answer in time are left out.
pub fn identify(sockets: Vec<PathBuf>) -> Vec<Running> {
    ask_all(sockets.into_iter().map(|socket| (socket, None)).collect())
}

/// Asks sockets for their identity, each only if a process of the given user listens there.
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
    let answer = tokio::time::timeout(TIMEOUT, client.fetch(Method::GET, "/v1/identity", Vec::new()));
    let (answer, Peer { user, pid }) = answer.await.ok()?.ok()?;
    let mut identity: Identity = serde_json::from_slice(&answer).ok()?;
    // A process may claim any number, and has another one in another PID namespace; the kernel's is right.
    identity.pid = pid.unwrap_or(0);
    Some(Running { identity, user, control })
}

/// The process that runs the network with the control socket `control`, or of `file`, though none listens there: the one that has locked
/// its default state file.
pub fn holder(control: &Path, file: Option<&NetFile>) -> Option<String> {
    let folder = folder::state()?;
    let named = control.file_stem().map(|stem| folder.join(format!("{}.state", stem.display())));
    let of_file = file.and_then(|file| {
        let ending = format!("-{}.state", file_mark(&file.path));
        let states = std::fs::read_dir(&folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        states.take(MOST_SOCKETS).find(|path| path.to_str().is_some_and(|path| path.ends_with(&ending)))
    });
    named.into_iter().chain(of_file).find_map(|path| state_file::holder_of(&path))
}

/// A sentence for each running network that has the name of `file` but another file.
pub fn hint(file: &NetFile) -> String {
    let name = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let others = identify(called(&name));
    others.iter().map(|other| format!("The running network is {}, not {}. ", other.identity.told(), file.path.display())).collect()
}

/// The network at the control socket `path`, for a sentence; another program, if it has no identity.
pub fn told(path: &Path) -> Option<String> {
    if !listens(path) {
        return None;
    }
    let found = identify(vec![path.into()]).pop();
    Some(found.map_or_else(|| "another program".into(), |running| running.identity.told()))
}

/// The traces of a network in the run-time folder, removed when dropped: by the helper, if this process is in a sandbox.
#[derive(Debug)]
pub struct Recorded {
    name: String,
    file: Option<PathBuf>,
    /// Made by this process itself.
    record: Option<Record>,
}

impl Recorded {
    /// Makes the network `name` of `file`, which listens at `control`, discoverable, or logs the reason why it is not.
    pub fn make(control: &Path, name: &str, file: Option<&Path>) -> Self {
        let made = match sandbox::helper() {
            Some(helper) => helper.record(true).map(|()| None),
            None => Record::make_here(control, name, file),
        };
        let record = made.unwrap_or_else(|error| {
            tracing::warn!(
                target: "memlane::control::running",
                "cannot link the control socket into the run-time folder, so `memlane list` will not show this network: {error}"
            );
            None
        });
        Self { name: name.into(), file: file.map(PathBuf::from), record }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.record = None;
        match sandbox::helper() {
            Some(helper) => drop(helper.record(false)),
            None => folder::remove_of_network(&crate::config::own_folder(&self.name, self.file.as_deref())),
        }
    }
}
