//! The state file of a running network: locked against other networks, replaced atomically, and written again after a failure.
//!
//! The lock (flock) is on the file itself, so that a start without differences writes nothing, and a full disk does not prevent
//! it. Each new version is locked before it replaces the old one. A state that cannot be written stays pending: a thread retries
//! until it is written or the network ends.
//!
//! A change of one port is appended as a [`Step`], so that an attach writes as much in a large network as in a small one. Once as much was
//! appended as the rest takes, the next change writes the whole.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::state::{SavedNetwork, StateError, Step};
use crate::helper::StateStep;
use crate::helper::state::{drop_here, fresh_here, keep_here, open_here, target};
use crate::sandbox;

/// Interval of attempts to write the pending state.
const RETRY: Duration = Duration::from_secs(1);
/// Timeout for a network that is ending, or a program that it has just started and that has not closed inherited files yet.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that may be appended to the smallest state before it is written whole again.
const LEAST_ROOM: u64 = 64 << 10;
/// Interval of attempts to lock the file.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug)]
pub struct StateFile {
    shared: Arc<Shared>,
    retries: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Path of the file, with all symbolic links resolved.
    path: PathBuf,
    file: Mutex<Kept>,
    /// Why the state is pending; a lock of its own, since that of the file may be held for as long as the disk takes.
    cause: Mutex<Option<String>>,
    /// Notified when the network ends.
    end: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    /// The file, locked; none if it could not be created yet.
    locked: Option<File>,
    /// The state to be written.
    pending: Option<SavedNetwork>,
    ended: bool,
    /// Length of the file in bytes, as this process wrote it.
    length: u64,
    /// Bytes that may be appended; none before it was written whole.
    room: u64,
    has_steps: bool,
    /// Bytes written so far.
    written: u64,
}

impl StateFile {
    /// Locks the state file at `path`, and reads it. A missing file is created, and its folder too; if the disk is full, later.
    ///
    /// # Errors
    /// A [`StateError`]: another network has locked it, it cannot be read or cannot be created.
    pub fn open(path: &Path) -> Result<(Self, SavedNetwork), StateError> {
        let path = target(path);
        let mut kept = Kept::default();
        let state = match kept.lock(&path) {
            Ok(file) => SavedNetwork::parse(&text(file, &path)?, &path)?,
            Err(StateError::Write { cause, .. }) if is_full(&cause) => SavedNetwork::default(),
            Err(error) => return Err(error),
        };
        let shared = Arc::new(Shared { path, file: Mutex::new(kept), cause: Mutex::default(), end: Condvar::new() });
        Ok((Self { shared, retries: Mutex::default() }, state))
    }

    /// The state file at `path`, which another process of the network has locked by `locked`.
    pub fn taken_over(path: &Path, locked: Option<File>) -> Self {
        let kept = Kept { locked, ..Kept::default() };
        let shared = Shared { path: target(path), file: Mutex::new(kept), cause: Mutex::default(), end: Condvar::new() };
        Self { shared: Arc::new(shared), retries: Mutex::default() }
    }

    /// A copy of the descriptor that holds the lock, for another process of the network.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy_lock(&self) -> io::Result<Option<OwnedFd>> {
        self.shared.lock().locked.as_ref().map(|file| file.as_fd().try_clone_to_owned()).transpose()
    }

    /// Writes the first state of a network that has read `before`.
    ///
    /// # Errors
    /// [`StateError::Write`], except for a full disk: the state stays pending then.
    pub fn begin(&self, before: &SavedNetwork, state: &SavedNetwork) -> Result<(), StateError> {
        if before == state && self.shared.lock().locked.is_some() {
            return Ok(());
        }
        match self.shared.write(state) {
            Err(StateError::Write { cause, .. }) if is_full(&cause) => {
                self.retry(state, &cause.to_string());
                Ok(())
            }
            result => result,
        }
    }

    /// Writes `state`, now or later; when this returns and nothing is pending, it survives a power failure.
    pub fn save(&self, state: &SavedNetwork) {
        if let Err(error) = self.shared.write(state) {
            let cause = match error {
                StateError::Write { cause, .. } => cause.to_string(),
                other => other.to_string(),
            };
            self.retry(state, &cause);
        }
    }

    /// Writes `steps`: appends them, or writes the `whole` state.
    ///
    /// # Errors
    /// `whole` fails; the steps are not written then.
    pub fn append<E>(&self, steps: &[Step], whole: impl FnOnce() -> Result<SavedNetwork, E>) -> Result<(), E> {
        if !self.shared.append(steps) {
            self.save(&whole()?);
        }
        Ok(())
    }

    /// Whether steps were appended since the whole state was written.
    pub fn has_steps(&self) -> bool {
        self.shared.lock().has_steps
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.shared.lock().written
    }

    /// Why the state is not in its file, if so.
    pub fn unsaved(&self) -> Option<String> {
        let cause = self.shared.cause();
        let cause = cause.as_ref()?;
        let path = self.shared.path.display();
        Some(format!(
            "the state file {path} cannot be written: {cause}. Until it is, the changes are lost at a restart; memlane tries again every second"
        ))
    }

    /// Makes a last attempt if the state is pending, and unlocks the file; or removes it if it `is_empty`.
    pub fn end(&self, is_empty: bool) {
        self.shared.lock().ended = true;
        self.shared.end.notify_all();
        let thread = self.retries.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that panicked has logged it on standard error.
        thread.map(JoinHandle::join);
        self.shared.try_again();
        let locked = self.shared.lock().locked.take();
        if is_empty && locked.is_some_and(|file| is_at(&file, &self.shared.path)) {
            // If this fails, an empty file is left.
            let _ = match sandbox::helper() {
                Some(helper) => helper.state(StateStep::Remove).map(drop),
                None => std::fs::remove_file(&self.shared.path),
            };
        }
    }

    fn retry(&self, state: &SavedNetwork, cause: &str) {
        tracing::error!(
            target: "memlane::control::state_file",
            state = %self.shared.path.display(), "changes are applied but not saved: {cause}"
        );
        let mut retries = self.retries.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.lock().pending = Some(state.clone());
        *self.shared.cause() = Some(cause.into());
        if retries.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("state".into()).stack_size(256 * 1024);
        // Without a thread, the next change retries.
        *retries = thread.spawn(move || shared.retry()).ok();
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cause(&self) -> MutexGuard<'_, Option<String>> {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &SavedNetwork) -> Result<(), StateError> {
        let mut kept = self.lock();
        if kept.ended {
            return Ok(());
        }
        kept.write(&self.path, state)?;
        kept.pending = None;
        *self.cause() = None;
        Ok(())
    }

    /// Appends `steps`; false if the whole state is to be written instead.
    fn append(&self, steps: &[Step]) -> bool {
        let mut kept = self.lock();
        if kept.ended {
            return true;
        }
        kept.pending.is_none() && kept.append(&self.path, steps)
    }

    /// Retries until the pending state is written or the network ends.
    fn retry(&self) {
        loop {
            let kept = self.lock();
            let waited = self.end.wait_timeout_while(kept, RETRY, |kept| !kept.ended);
            let (kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if kept.ended {
                return;
            }
            drop(kept);
            if self.try_again() {
                return;
            }
        }
    }

    /// True if nothing is pending any more.
    fn try_again(&self) -> bool {
        let mut kept = self.lock();
        let Some(state) = kept.pending.take() else { return true };
        match kept.write(&self.path, &state) {
            Ok(()) => {
                *self.cause() = None;
                tracing::info!(target: "memlane::control::state_file", state = %self.path.display(), "changes are saved again");
                true
            }
            Err(_) => {
                kept.pending = Some(state);
                false
            }
        }
    }
}

impl Kept {
    /// The locked file at `path`, which is created if it is missing.
    fn lock(&mut self, path: &Path) -> Result<&File, StateError> {
        let unwritable = |cause| StateError::Write { path: path.into(), cause };
        if !self.locked.as_ref().is_some_and(|file| is_at(file, path)) {
            self.locked = None;
            let deadline = Instant::now() + TIMEOUT;
            while self.locked.is_none() {
                let file = open(path)?;
                match file.try_lock() {
                    Ok(()) if is_at(&file, path) => self.locked = Some(file),
                    Err(TryLockError::Error(cause)) => return Err(unwritable(cause)),
                    _ if Instant::now() >= deadline => return Err(StateError::InUse { path: path.into(), holder: holder(&file) }),
                    // Locked by another process, or just replaced.
                    _ => std::thread::sleep(POLL_INTERVAL),
                }
            }
        }
        self.locked.as_ref().ok_or_else(|| unwritable(io::Error::other("it is not locked")))
    }

    /// Replaces the file at `path` by `state`, atomically.
    fn write(&mut self, path: &Path, state: &SavedNetwork) -> Result<(), StateError> {
        self.lock(path)?;
        self.room = 0;
        let text = state.text();
        let length = text.as_ref().map_or(0, String::len) as u64;
        let written = text.and_then(|text| replace(path, &text));
        self.locked = Some(written.map_err(|cause| StateError::Write { path: path.into(), cause })?);
        (self.length, self.room, self.has_steps) = (length, length.max(LEAST_ROOM), false);
        self.written += length;
        Ok(())
    }

    /// Appends `steps` to the file at `path`; when this returns true, they survive a power failure.
    fn append(&mut self, path: &Path, steps: &[Step]) -> bool {
        let texts = steps.iter().map(|step| step.text().ok().flatten());
        let Some(text) = texts.collect::<Option<String>>() else { return false };
        let length = text.len() as u64;
        let fits = |file: &&mut File| {
            // A file that another program has changed is written whole.
            length <= self.room && is_at(file, path) && file.metadata().is_ok_and(|file| file.len() == self.length)
        };
        let Some(file) = self.locked.as_mut().filter(fits) else { return false };
        self.has_steps = true;
        let is_appended = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).is_ok();
        // What may be half a step is followed by no other.
        self.room = if is_appended { self.room - length } else { 0 };
        self.length += length;
        self.written += length;
        is_appended
    }
}

/// True for a full disk or an exhausted quota of the user: the error may pass by itself.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Opens the file at `path`: by the helper if this process is in a sandbox, where Landlock refuses it.
fn open(path: &Path) -> Result<File, StateError> {
    let opened = match sandbox::helper() {
        Some(helper) => helper.state(StateStep::Open).and_then(|file| file.ok_or_else(|| io::Error::other("it was not opened"))),
        None => open_here(path),
    };
    let file = opened.map_err(|cause| match path.symlink_metadata() {
        Ok(_) => StateError::Read { path: path.into(), cause: cause.to_string() },
        Err(_) => StateError::Write { path: path.into(), cause },
    })?;
    let unreadable = |cause: &dyn std::fmt::Display| StateError::Read { path: path.into(), cause: cause.to_string() };
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err(unreadable(&"it is no regular file")),
        Err(error) => Err(unreadable(&error)),
    }
}

fn text(mut file: &File, path: &Path) -> Result<String, StateError> {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|error| StateError::Read { path: path.into(), cause: error.to_string() })?;
    Ok(text)
}

/// Whether `file` is the one at `path`.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let same = |there: std::fs::Metadata, here: std::fs::Metadata| (there.dev(), there.ino()) == (here.dev(), here.ino());
    std::fs::symlink_metadata(path).and_then(|there| Ok(same(there, file.metadata()?))).unwrap_or(false)
}

/// The process that has locked the state file at `path`, for a message; `None` if none has, or this user may not know.
pub(super) fn holder_of(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
        .then(|| locker_of(&file).unwrap_or_else(|| "another process".into()))
}

/// The process that has locked `file`, as far as this user may know it.
fn locker_of(file: &File) -> Option<String> {
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| locker(line, &inode))?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ").replace(char::is_control, "?");
    Some(if line.is_empty() { format!("process {pid}") } else { format!("process {pid}: {line}") })
}

/// The network that has locked `file`, for a message.
fn holder(file: &File) -> String {
    locker_of(file).map_or_else(|| "another network".into(), |process| format!("another network ({process})"))
}

/// The process in a line of /proc/locks (proc_locks(5)), if it is a lock on the whole of the file `inode`.
fn locker<'l>(line: &'l str, inode: &str) -> Option<&'l str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, "FLOCK", _, _, pid, file, ..] => (file.rsplit(':').next() == Some(inode)).then_some(pid),
        _ => None,
    }
}

/// Replaces the file at `path` by `text`, atomically; the new file is locked.
fn replace(path: &Path, text: &str) -> io::Result<File> {
    let mut file = match sandbox::helper() {
        Some(helper) => helper.state(StateStep::Fresh)?.ok_or_else(|| io::Error::other("it was not made"))?,
        None => fresh_here(path)?,
    };
    let step = |step: StateStep, here: fn(&Path) -> io::Result<()>| match sandbox::helper() {
        Some(helper) => helper.state(step).map(drop),
        None => here(path),
    };
    let locked = file.try_lock().map_err(io::Error::from);
    let written = locked.and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| step(StateStep::Keep, keep_here)) {
        // If this fails, the next write removes the file.
        let _ = step(StateStep::Drop, drop_here);
        return Err(error);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::Config;

    fn state(ports: &str) -> SavedNetwork {
        SavedNetwork::between(&Config::parse("", "net").unwrap(), &Config::parse(ports, "net").unwrap())
    }

    const A: &str = "[[port]]\nname = \"a\"\nnull = true\n";

    fn read(path: &Path) -> SavedNetwork {
        SavedNetwork::parse(&std::fs::read_to_string(path).unwrap(), path).unwrap()
    }

    #[test]
    fn a_state_is_for_its_owner_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (file, before) = StateFile::open(&path).unwrap();
        assert_eq!(before, SavedNetwork::default());
        file.save(&state(A));
        assert_eq!((file.unsaved(), read(&path)), (None, state(A)));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_second_network_is_refused_until_the_first_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (first, _) = StateFile::open(&path).unwrap();
        for round in 0..2 {
            let told = StateFile::open(&path).unwrap_err().to_string();
            let process = format!("process {}", std::process::id());
            assert!(told.contains(&process) && told.contains("of its own"), "{round}: {told}");
            // The file that replaces it is locked, too.
            first.save(&state(A));
        }
        first.end(false);
        assert_eq!(StateFile::open(&path).unwrap().1, state(A));
    }

    /// NFS refuses an exclusive flock(2) on a file that is not open for writing (EBADF).
    #[test]
    fn what_is_locked_is_open_for_writing_where_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, SavedNetwork::default().text().unwrap()).unwrap();
        let mode = |file: &File| nix::fcntl::fcntl(file, nix::fcntl::F_GETFL).unwrap() & libc::O_ACCMODE;
        let locked = |path: &Path| Kept::default().lock(path).map(mode).unwrap();
        assert_eq!(locked(&path), libc::O_RDWR);
        std::fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        // A thread without the rights of root.
        let refused = || {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
            locked(&path)
        };
        assert_eq!(std::thread::scope(|scope| scope.spawn(refused).join().unwrap()), libc::O_RDONLY);
    }

    #[test]
    fn a_link_stays_and_its_target_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link"), folder.path().join("elsewhere"));
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        StateFile::open(&link).unwrap().0.save(&state(A));
        assert!(link.is_symlink() && !file.is_symlink());
        assert_eq!(read(&file), state(A));
    }

    #[test]
    fn the_folder_is_made_if_only_that_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(StateFile::open(&folder.path().join("lib/state")).is_ok());
        let told = StateFile::open(&folder.path().join("no/such/state")).unwrap_err().to_string();
        assert!(told.contains("no/such/state"), "{told}");
        assert!(!folder.path().join("no").exists());
    }

    #[test]
    fn what_is_no_file_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [folder.path(), &pipe, Path::new("/proc/no/state")] {
            let told = StateFile::open(path).unwrap_err().to_string();
            assert!(told.contains(&path.display().to_string()), "{told}");
        }
        std::fs::write(folder.path().join("bytes"), [0xff, 0xfe]).unwrap();
        assert!(StateFile::open(&folder.path().join("bytes")).is_err());
    }

    #[test]
    fn what_cannot_be_written_is_pending_until_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (file, _) = StateFile::open(&path).unwrap();
        let obstacle = folder.path().join(".state.new/in the way");
        std::fs::create_dir_all(&obstacle).unwrap();
        file.save(&state(A));
        assert!(file.unsaved().unwrap().contains("cannot be written"));
        assert_eq!(read(&path), SavedNetwork::default());
        std::fs::remove_dir_all(obstacle.parent().unwrap()).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while file.unsaved().is_some() {
            assert!(std::time::Instant::now() < deadline, "nothing tries again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(read(&path), state(A));
    }
}
