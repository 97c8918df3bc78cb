//! Unix sockets without unbounded waits: connect(2) and accept(2) block for as long as the other side pleases.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::access::Access;
use super::kept::{self, identity};
use crate::descriptors::is_shortage;
use crate::system;

/// Names that are tried for a socket before its file is moved to its place.
const NAMES: u32 = 16;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The work on sockets' files and on sockets of other programs that the sandbox refuses, by Landlock and seccomp: another process does it.
pub trait Broker: std::fmt::Debug + Send + Sync {
    /// Does the work of [`bind`]; returns the listening socket.
    ///
    /// # Errors
    /// The errors of [`bind`]; the network has no right to a socket there.
    fn bind(&self, path: &Path, mode: u32) -> io::Result<UnixListener>;

    /// Does the work of [`Access::apply_here`].
    ///
    /// # Errors
    /// The errors of [`Access::apply`].
    fn apply(&self, path: &Path, file: Option<(u64, u64)>, before: bool, access: &Access) -> io::Result<()>;

    /// Does the work of [`connect`].
    ///
    /// # Errors
    /// The errors of [`connect`]; the network has no right to connect there.
    fn connect(&self, path: &Path) -> io::Result<UnixStream>;

    /// Removes the socket's file at `path` if it has this device and inode.
    ///
    /// # Errors
    /// Another file is there, or the kernel refuses.
    fn remove(&self, path: &Path, file: (u64, u64)) -> io::Result<()>;
}

/// The broker of this process, if it is in a sandbox.
static BROKER: OnceLock<Box<dyn Broker>> = OnceLock::new();

/// Has `broker` make, change and remove the files of all sockets from now on, and connect to those of others.
pub fn broker_by(broker: Box<dyn Broker>) {
    // The first one counts.
    let _ = BROKER.set(broker);
}

/// The broker of this process, if it has one.
pub(super) fn broker() -> Option<&'static dyn Broker> {
    BROKER.get().map(AsRef::as_ref)
}

/// A listening socket and its file, which is removed with it. If another process has replaced the file at the path, that file
/// stays.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode, which no other file gets while the socket is open.
    file: Option<(u64, u64)>,
    /// The service manager keeps it over a restart.
    is_kept: bool,
    /// The process before a restart has made it.
    is_of_before: bool,
}

impl Listener {
    /// The socket.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// The listening socket `socket` of another process of the network; its file at `path` has this device and inode.
    pub fn taken_over(socket: UnixListener, path: &Path, file: Option<(u64, u64)>) -> Self {
        Self { socket, path: path.into(), file, is_kept: false, is_of_before: true }
    }

    /// The same at `path`, to which its file was moved.
    fn moved_to(self, path: &Path) -> io::Result<Self> {
        let (socket, file) = (self.socket.try_clone()?, self.file);
        Ok(Self { socket, path: path.into(), file, is_kept: false, is_of_before: false })
    }

    /// A port's socket, as [`Self::taken_over`]; the service manager that keeps the other process's sockets, if one does, has it already.
    #[must_use]
    pub fn kept_before(mut self) -> Self {
        self.is_kept = kept::has_another();
        self
    }

    /// Makes this process the one that connecting processes see as the listener (SO_PEERCRED): the one that called listen(2) last.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn claim(&self) -> io::Result<()> {
        SockRef::from(&self.socket).listen(BACKLOG)
    }

    /// Device and inode of its file.
    pub fn file(&self) -> Option<(u64, u64)> {
        self.file
    }

    /// Whether another process has made it, and perhaps given its file to another user.
    pub(super) fn is_of_before(&self) -> bool {
        self.is_of_before
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket alone, for another process; its file stays.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn into_socket(mut self) -> io::Result<UnixListener> {
        self.file = None;
        self.socket.try_clone()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the files of sockets outlast their listeners: during a takeover they belong to the process that serves.
static OUTLAST: AtomicBool = AtomicBool::new(false);

/// Sets whether the files of sockets outlast their listeners, as during a takeover that may fail.
pub fn leave_files(leave: bool) {
    OUTLAST.store(leave, Ordering::Relaxed);
}

impl Drop for Listener {
    fn drop(&mut self) {
        if OUTLAST.load(Ordering::Relaxed) {
            return;
        }
        if self.is_kept && kept::is_ending() {
            // The next process goes on with both.
            return;
        }
        if let Some(file) = self.file {
            let _ = remove(&self.path, file);
        }
        if let Some(file) = self.file.filter(|_| self.is_kept) {
            kept::forget(&self.path, file);
        }
    }
}

/// The listening socket of a port at `path`: the one that the service manager has kept from the process before, or a new one, as
/// [`bind`] makes it, to be kept from now on.
///
/// # Errors
/// The errors of [`bind`].
pub fn bind_kept(path: &Path, mode: u32) -> io::Result<Listener> {
    if let Some((socket, file)) = kept::take(path) {
        // The process before may have had a port of another kind here.
        socket.set_nonblocking(false)?;
        let listener = Listener { socket, path: path.into(), file: Some(file), is_kept: true, is_of_before: true };
        listener.claim()?;
        return Ok(listener);
    }
    let mut listener = bind(path, mode)?;
    listener.is_kept = listener.file.is_some_and(|file| kept::keep(path, &listener.socket, file));
    Ok(listener)
}

/// Binds a listening socket to `path`, replacing a stale one that has no listener any more. Its permissions are `mode`, less the
/// process's umask, from its first moment. The path of a stale socket is never without a socket meanwhile: a front end that connects
/// is refused until it is accepted (ECONNREFUSED), and does not find the path missing.
///
/// # Errors
/// Another process listens there, or the path is another kind of file.
pub fn bind(path: &Path, mode: u32) -> io::Result<Listener> {
    let Some(broker) = broker() else { return bind_here(path, mode) };
    let socket = broker.bind(path, mode)?;
    let file = std::fs::symlink_metadata(path).ok().map(|file| identity(&file));
    let listener = Listener { socket, path: path.into(), file, is_kept: false, is_of_before: false };
    listener.claim()?;
    Ok(listener)
}

/// Like [`bind`], by this process itself.
///
/// # Errors
/// The errors of [`bind`].
pub fn bind_here(path: &Path, mode: u32) -> io::Result<Listener> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() && is_left(path)? => replace_left(path, &file, mode),
        Ok(_) => Err(in_use()),
        Err(_) => bind_new(path, mode),
    }
}

/// Binds a listening socket to `path`, where there is no file. The file appears there once the socket listens: until then it refuses
/// connections, as a stale one does, and another process would replace it.
fn bind_new(path: &Path, mode: u32) -> io::Result<Listener> {
    let Some(new) = bind_beside(path, mode)? else { return bind_at(path, mode) };
    match system::rename_new(new.path(), path) {
        Ok(()) => new.moved_to(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(in_use()),
        Err(error) => Err(error),
    }
}

/// Binds a listening socket beside `path`, by a name of its own; `None` if its path would be too long for a socket's address, though
/// `path` is not.
fn bind_beside(path: &Path, mode: u32) -> io::Result<Option<Listener>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..NAMES {
        let beside = path.with_file_name(format!(".{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        if SockAddr::unix(&beside).is_err() {
            return Ok(None);
        }
        match bind_at(&beside, mode) {
            // A process of another PID namespace, or one that was killed, has the name.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result.map(Some),
        }
    }
    Err(in_use())
}

/// Binds a listening socket to `path`.
fn bind_at(path: &Path, mode: u32) -> io::Result<Listener> {
    let socket = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
    // The kernel makes the file with the mode that the socket has.
    socket.set_permissions(Permissions::from_mode(mode))?;
    let socket = Socket::from(OwnedFd::from(socket));
    socket.bind(&SockAddr::unix(path)?)?;
    let file = std::fs::symlink_metadata(path).ok().map(|file| identity(&file));
    let listener = Listener {
        socket: OwnedFd::from(socket.try_clone()?).into(),
        path: path.into(),
        file,
        is_kept: false,
        is_of_before: false,
    };
    socket.listen(BACKLOG)?;
    Ok(listener)
}

/// Binds a listening socket at `path`, in place of the stale file `left`.
fn replace_left(path: &Path, left: &Metadata, mode: u32) -> io::Result<Listener> {
    // The path beside it may be too long for a socket's address, though its own is not.
    let Some(new) = bind_beside(path, mode)? else {
        remove_left(path, left)?;
        return bind_at(path, mode);
    };
    let beside = new.path();
    // Of two processes that found the stale socket, one gets it in exchange; the other one gets that process's socket, and returns it.
    let exchange = || system::exchange(beside, path);
    if exchange().is_err() {
        remove_left(path, left)?;
        system::rename_new(beside, path)?;
    } else if std::fs::symlink_metadata(beside).is_ok_and(|file| made(&file) == made(left)) {
        std::fs::remove_file(beside)?;
    } else {
        exchange()?;
        return Err(in_use());
    }
    new.moved_to(path)
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "a file or a listening program is there already")
}

/// Identity of a socket's file, and the time at which it was made: it is not modified later, and another path does not change it.
fn made(file: &Metadata) -> ((u64, u64), (i64, i64)) {
    (identity(file), (file.mtime(), file.mtime_nsec()))
}

/// Removes the stale socket `left`, unless another process that found it too has already replaced it. The inode number of a
/// deleted file may be used again; the time of creation is not.
fn remove_left(path: &Path, left: &Metadata) -> io::Result<()> {
    let present = std::fs::symlink_metadata(path)?;
    if made(&present) == made(left) { std::fs::remove_file(path) } else { Err(in_use()) }
}

/// Whether the socket `path` is stale: its listener's process is gone. Only a refused connection shows that: a full queue, a lack
/// of permission and a socket of another type belong to a running process.
///
/// # Errors
/// The process has no descriptor left for the attempt.
pub fn is_left(path: &Path) -> io::Result<bool> {
    match connect_here(path) {
        Err(error) if is_shortage(&error) => Err(error),
        result => Ok(result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)),
    }
}

/// Connects to the listener at `path`.
///
/// # Errors
/// There is no listener, or its queue of pending connections is full.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    broker().map_or_else(|| connect_here(path), |broker| broker.connect(path))
}

/// Like [`connect`], by this process itself.
///
/// # Errors
/// The errors of [`connect`].
pub fn connect_here(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

/// Removes the socket's file at `path` if it has this device and inode.
///
/// # Errors
/// Another file is there, or the kernel refuses.
pub(super) fn remove(path: &Path, file: (u64, u64)) -> io::Result<()> {
    broker().map_or_else(|| remove_here(path, file), |broker| broker.remove(path, file))
}

/// Like [`Broker::remove`], by this process itself.
///
/// # Errors
/// The errors of [`Broker::remove`].
pub fn remove_here(path: &Path, file: (u64, u64)) -> io::Result<()> {
    let present = std::fs::symlink_metadata(path)?;
    if present.file_type().is_socket() && identity(&present) == file { std::fs::remove_file(path) } else { Err(in_use()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_its_permissions_from_its_first_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = bind(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_front_end_that_connects_all_the_time_never_misses_a_socket_that_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let connects = scope.spawn(|| {
                let (mut refused, mut accepted) = (0, 0);
                while !ended.load(Ordering::Relaxed) {
                    match connect(&path) {
                        Ok(_) => accepted += 1,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => accepted += 1,
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
                            refused += 1;
                        }
                    }
                }
                (refused, accepted)
            });
            for _ in 0..300 {
                let mut listener = bind(&path, 0o600).unwrap();
                assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                // The same as when the process is killed: the file stays.
                listener.file = None;
            }
            ended.store(true, Ordering::Relaxed);
            let (refused, accepted) = connects.join().unwrap();
            assert!(refused + accepted > 0);
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is left");
        // A path that is as long as an address may be has no room for another beside it.
        let long = folder.path().join("x".repeat(107 - folder.path().as_os_str().len() - 1));
        drop(std::os::unix::net::UnixListener::bind(&long).unwrap());
        assert!(bind(&long, 0o600).is_ok_and(|listener| connect(listener.path()).is_ok()));
    }

    /// A second process that finds a socket before its owner has called listen(2) would take it for a stale one.
    #[test]
    fn a_socket_listens_from_the_moment_at_which_its_path_exists() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..500).map(|number| folder.path().join(number.to_string())).collect();
        let listeners: Vec<Listener> = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                for path in &paths {
                    while let Err(error) = connect(path) {
                        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}", path.display());
                    }
                }
            });
            let listeners = paths.iter().map(|path| bind(path, 0o600).unwrap()).collect();
            watch.join().unwrap();
            listeners
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), listeners.len(), "no other file is left");
    }

    #[test]
    fn of_two_that_bind_a_new_socket_at_once_one_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for _ in 0..200 {
            let bound = std::thread::scope(|scope| {
                let both = [(); 2].map(|()| scope.spawn(|| bind(&path, 0o600)));
                both.map(|thread| thread.join().unwrap())
            });
            assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1);
            let loser = bound.iter().find_map(|bound| bound.as_ref().err()).unwrap();
            assert_eq!(loser.kind(), io::ErrorKind::AddrInUse);
            assert!(connect(&path).is_ok());
        }
    }

    #[test]
    fn a_full_queue_is_somebody_who_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = bind(&path, 0o600).unwrap();
        let crowd: Vec<UnixStream> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((listener, crowd));
        assert!(bind(&path, 0o600).is_ok());
    }

    #[test]
    fn a_socket_of_another_type_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let _log = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert_eq!(bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn a_socket_that_this_user_may_not_connect_to_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let path = folder.path().join("s");
        let _listener = bind(&path, 0).unwrap();
        let bound = std::thread::spawn({
            let path = path.clone();
            move || {
                // Root may connect to any socket. This is the thread's alone, and ends with it.
                if nix::unistd::geteuid().is_root() {
                    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
                }
                bind(&path, 0o600).map_err(|error| error.kind())
            }
        });
        assert_eq!(bound.join().unwrap().unwrap_err(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn who_ends_removes_its_own_socket_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(bind(&path, 0o600).unwrap());
        assert!(!path.exists());
        let first = bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = bind(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists() && connect(&path).is_ok(), "the second one's is there");
        // A file that is not this listener's stays too.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        drop(second);
        assert!(path.exists());
    }

    #[test]
    fn of_two_who_find_a_socket_that_was_left_the_second_leaves_the_first_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let left = std::fs::symlink_metadata(&path).unwrap();
        let _first = bind(&path, 0o600).unwrap();
        assert_eq!(remove_left(&path, &left).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(connect(&path).is_ok());
    }
}
