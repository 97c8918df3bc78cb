//! Listening sockets of ports that a service manager keeps over a restart (systemd's descriptor store, sd_pid_notify_with_fds(3)): a front
//! end that connects meanwhile waits in the queue of the socket, and neither misses the path nor is refused.
//!
//! A socket's name in the store has a hash of its path, and of device and inode of its file: no other file has these while the socket
//! is open, so a socket with a replaced file is not mistaken for that at the path.

use std::collections::HashMap;
use std::fmt;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::port::short_hash;

/// First part of the names of sockets in the store.
pub const PREFIX: &str = "memlane-";

/// Sends a message to the service manager, with a descriptor; false if it cannot be sent.
pub type Tell = Box<dyn Fn(&str, Option<BorrowedFd>) -> bool + Send + Sync>;

/// The store of this process's service manager, if it has one.
static STORE: OnceLock<Store> = OnceLock::new();

struct Store {
    tell: Tell,
    state: Mutex<State>,
}

struct State {
    /// Sockets of the process that served the network before, by their names.
    left: HashMap<String, UnixListener>,
    /// Sockets that still fit.
    room: usize,
    /// The process ends, and its sockets stay for the next one.
    ends: bool,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, name: &str) {
        (self.tell)(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None);
    }
}

/// The name in the store of the socket at `path`: its file has this device and inode.
fn name(path: &Path, (device, inode): (u64, u64)) -> String {
    let numbers = [device, inode].into_iter().flat_map(u64::to_le_bytes);
    let hash = short_hash(path.as_os_str().as_encoded_bytes().iter().copied().chain([0]).chain(numbers));
    format!("{PREFIX}{hash:016x}")
}

/// Device and inode of `file`.
pub(super) fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn file_at(path: &Path) -> Option<Metadata> {
    std::fs::symlink_metadata(path).ok().filter(|file| file.file_type().is_socket())
}

/// Has the service manager behind `tell` keep the sockets of ports from now on, at most `room` of them. The store has those of the
/// process before, `left`, with their names.
pub fn begin(left: Vec<(String, UnixListener)>, room: usize, tell: Tell) {
    let state = State { room: room.saturating_sub(left.len()), left: left.into_iter().collect(), ends: false };
    // The first one counts.
    let _ = STORE.set(Store { tell, state: Mutex::new(state) });
}

/// All ports have their sockets: removes those of the process before that no port has any more, with their files.
pub fn remove_rest() {
    let Some(store) = STORE.get() else { return };
    let left = std::mem::take(&mut store.state().left);
    for (known, socket) in left {
        store.remove(&known);
        store.state().room += 1;
        let address = socket.local_addr();
        let bound = address.as_ref().ok().and_then(|address| address.as_pathname());
        let path = bound.and_then(|bound| file_of(&known, bound));
        if let Some((path, file)) = path.and_then(|path| file_at(&path).map(|file| (path, file))) {
            let _ = super::socket::remove(&path, identity(&file));
        }
    }
}

/// The file of the socket called `known` in the store, which was `bound` in the same folder, perhaps by another name.
fn file_of(known: &str, bound: &Path) -> Option<PathBuf> {
    let folder = bound.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let paths = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(bound.with_file_name(entry.ok()?.file_name())));
    let is_its = |path: &PathBuf| file_at(path).is_some_and(|file| name(path, identity(&file)) == known);
    paths.into_iter().find(is_its)
}

/// The process ends, and its sockets stay for the next one.
pub fn end() {
    if let Some(store) = STORE.get() {
        store.state().ends = true;
    }
}

/// Whether a kept socket and its file stay when its listener is dropped.
pub(super) fn is_ending() -> bool {
    STORE.get().is_some_and(|store| store.state().ends)
}

/// The socket of the process before at `path`, with device and inode of its file.
pub(super) fn take(path: &Path) -> Option<(UnixListener, (u64, u64))> {
    let store = STORE.get()?;
    let file = identity(&file_at(path)?);
    let socket = store.state().left.remove(&name(path, file))?;
    Some((socket, file))
}

/// Counts a socket that the store has from the process that was taken over; false without a store.
pub(super) fn has_another() -> bool {
    let Some(store) = STORE.get() else { return false };
    let mut state = store.state();
    state.room = state.room.saturating_sub(1);
    true
}

/// Has `socket` at `path` kept, with device and inode of its file; false if it is not: there is no store, or no room in it.
pub(super) fn keep(path: &Path, socket: &UnixListener, file: (u64, u64)) -> bool {
    let Some(store) = STORE.get() else { return false };
    let mut state = store.state();
    let Some(room) = state.room.checked_sub(1) else { return false };
    // FDPOLL=0: a listening socket never hangs up, so the manager has no reason to watch it.
    let kept = (store.tell)(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}", name(path, file)), Some(socket.as_fd()));
    // A manager that does not read is not tried for each port again.
    state.room = if kept { room } else { 0 };
    kept
}

/// Has the socket at `path`, with a file of this device and inode, kept no longer.
pub(super) fn forget(path: &Path, file: (u64, u64)) {
    if let Some(store) = STORE.get() {
        store.remove(&name(path, file));
        store.state().room += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_kept_socket_is_found_though_it_was_bound_by_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.sock");
        let listener = crate::vhost_user::socket::bind(&path, 0o600).unwrap();
        let _other = crate::vhost_user::socket::bind(&folder.path().join("db.sock"), 0o600).unwrap();
        let bound = listener.socket().local_addr().unwrap().as_pathname().unwrap().to_owned();
        let known = name(&path, listener.file().unwrap());
        assert_eq!(file_of(&known, &bound), Some(path.clone()));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(file_of(&known, &bound), None);
    }
}
