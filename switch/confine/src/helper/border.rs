//! Sockets to which a network in its sandbox has a right: those that its file names, and those in folders of its own.
//!
//! The network's process may be a guest's by now, so the rules come from the file, which was read before, and from the helper's own notes.
//! No live socket is replaced and no other kind of file touched ([`socket::bind_here`](memlane_backends::vhost_user::socket::bind_here)).

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use memlane_backends::vhost_user::socket;

use crate::config::claim::place;
use crate::config::metrics::MetricsListener;
use crate::config::{Config, own_folder, runtime_folder};
use crate::folder;

/// Endings of sockets that are no ports': of control, and of the service that opens NICs.
const OTHERS: [&str; 2] = [".control", ".nic"];

/// See the module.
#[derive(Debug)]
pub(crate) struct Border {
    /// Sockets that the file names.
    named: HashSet<PathBuf>,
    /// Sockets of others that the file names.
    connected: HashSet<PathBuf>,
    /// Folders of sockets.
    folders: Vec<PathBuf>,
    /// Folders in which the network connects to sockets of others.
    connects: Vec<PathBuf>,
    /// Beginning of the names of ports' sockets in the run-time folder: the network's name.
    prefix: String,
    /// File with a line for each socket that the helper made beyond those that the file names; Landlock keeps it from the network's process.
    notes: PathBuf,
    made: HashSet<Made>,
}

/// Device, inode and time of creation of a socket's file: no other file has all of them.
type Made = (u64, u64, i64, i64);

fn made(file: &Metadata) -> Made {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())
}

/// Folders of the sockets of `config`, the network of `file`: the file's, those that the key `sandbox` names, and the run-time folder.
fn folders(config: &Config, file: Option<&Path>) -> Vec<PathBuf> {
    let named = named(config, file).into_iter().filter_map(|path| path.parent().map(PathBuf::from));
    let later =
        config.later.folders.iter().map(|folder| place(&folder.join("x")).parent().map_or_else(PathBuf::new, PathBuf::from));
    // Without a file, paths of ports are given relative to it; not if it is the whole tree.
    let present = || std::env::current_dir().ok().filter(|folder| folder.parent().is_some());
    let present = if file.is_none() { present() } else { None };
    named.chain(later).chain(present).chain([runtime_folder()]).collect()
}

/// Listening sockets that the file names.
fn named(config: &Config, file: Option<&Path>) -> HashSet<PathBuf> {
    let ports = config.ports.iter().filter_map(|port| port.kind.listens_at().map(place));
    let metrics = config.metrics.iter().filter_map(|metrics| match metrics {
        MetricsListener::Unix(path, _) => Some(place(path)),
        MetricsListener::Tcp(_) => None,
    });
    ports.chain(metrics).chain([place(&config.control_socket(file))]).collect()
}

impl Border {
    /// The border of the network of `config` and `file`.
    pub(crate) fn of(config: &Config, file: Option<&Path>) -> Self {
        let connected = config.ports.iter().filter_map(|port| port.kind.connects_to().map(place));
        let notes = own_folder(&config.name, file).join(folder::NOTES);
        let mut connects = config.later.folders.clone();
        connects.extend(std::env::current_dir().ok().filter(|folder| file.is_none() && folder.parent().is_some()));
        Self {
            named: named(config, file),
            connected: connected.collect(),
            folders: folders(config, file),
            connects,
            prefix: format!("{}.", config.name),
            made: read(&notes),
            notes,
        }
    }

    /// Folders of its sockets: it may list their entries.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Whether the sandbox allows a listening socket at `path`.
    pub(crate) fn may_make(&self, path: &Path) -> bool {
        let place = place(path);
        self.named.contains(&place) || is_below(&place, &self.folders)
    }

    /// Whether the sandbox allows a connection to the socket of another program at `path`.
    pub(crate) fn may_connect(&self, path: &Path) -> bool {
        let place = place(path);
        self.connected.contains(&place) || is_below(&place, &self.connects)
    }

    /// Makes a listening socket at `path`.
    pub(super) fn bind(&mut self, path: &Path, mode: u32) -> io::Result<UnixListener> {
        if !self.may_make(path) {
            return Err(outside(path));
        }
        let is_named = self.named.contains(&place(path));
        let socket = socket::bind_here(path, mode)?.into_socket()?;
        if !is_named && let Ok(file) = path.symlink_metadata() {
            self.made.insert(made(&file));
            self.write();
        }
        Ok(socket)
    }

    /// Whether the socket at `path` is the network's, to be changed or removed.
    pub(super) fn may_change(&self, path: &Path) -> io::Result<()> {
        let place = place(path);
        let is_made = || path.symlink_metadata().is_ok_and(|file| self.made.contains(&made(&file)));
        // The hook of libvirt gives such names, also with earlier versions, which kept no notes.
        let name = place.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let is_called_so = || {
            let runtime = runtime_folder().canonicalize().ok();
            name.starts_with(&self.prefix) && name.ends_with(".sock") && place.parent() == runtime.as_deref()
        };
        (self.named.contains(&place) || is_made() || is_called_so()).then_some(()).ok_or_else(|| outside(path))
    }

    /// Removes the socket at `path`, if its file has this device and inode.
    pub(super) fn remove(&mut self, path: &Path, file: (u64, u64)) -> io::Result<()> {
        self.may_change(path)?;
        let noted = path.symlink_metadata().map(|file| made(&file));
        socket::remove_here(path, file)?;
        if noted.is_ok_and(|noted| self.made.remove(&noted)) {
            self.write();
        }
        Ok(())
    }

    /// Connects to the socket of another program at `path`.
    pub(super) fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        if self.may_connect(path) { socket::connect_here(path) } else { Err(outside(path)) }
    }

    /// Without notes, a socket that is left in a folder of many networks stays there at the end.
    fn write(&self) {
        let lines = self.made.iter().map(|(device, inode, seconds, nanos)| format!("{device} {inode} {seconds} {nanos}\n"));
        let folder = self.notes.parent().map_or(Ok(()), folder::make);
        let _ = folder.and_then(|()| std::fs::write(&self.notes, lines.collect::<String>()));
    }
}

fn read(notes: &Path) -> HashSet<Made> {
    let line = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse::<i64>());
        let mut next = || numbers.next()?.ok();
        Some((next()? as u64, next()? as u64, next()?, next()?))
    };
    std::fs::read_to_string(notes).unwrap_or_default().lines().filter_map(line).collect()
}

/// Whether the socket at `path` lies in one of `folders`, and is neither a control socket nor that of the service that opens NICs.
fn is_below(path: &Path, folders: &[PathBuf]) -> bool {
    let canonical = |folder: &Path| folder.canonicalize().unwrap_or_else(|_| folder.into());
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    !OTHERS.iter().any(|end| name.ends_with(end))
        && path.parent().is_some_and(|parent| folders.iter().any(|folder| parent.starts_with(canonical(folder))))
}

fn outside(path: &Path) -> io::Error {
    let text = format!(
        "the sandbox has no right to the socket {}: name it in the network's file, or its folder by the key sandbox",
        path.display()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
