//! Network namespaces by their names under `/run/netns`, as `ip netns` makes them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, fstatfs};

/// Where they are.
const FOLDER: &str = "/run/netns";
/// Filesystem of namespaces (`include/uapi/linux/magic.h`).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
/// Longest name of a file.
const NAME: usize = 255;

/// Whether `name` is one that a file in a folder may have, and a terminal may show.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME && ![".", ".."].contains(&name) && !name.contains(|c: char| c == '/' || c.is_control())
}

/// Runs `action` in a thread that is in the namespace called `name`.
///
/// # Errors
/// There is no such namespace, or it may not be entered; the action was not run then.
pub fn inside<T: Send>(name: &str, action: impl FnOnce() -> T + Send) -> io::Result<T> {
    if !is_name(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no namespace can be called {name:?}")));
    }
    inside_path(&Path::new(FOLDER).join(name), action)
}

/// Like [`inside`], in the namespace at `path`.
///
/// # Errors
/// The errors of [`inside`].
pub fn inside_path<T: Send>(path: &Path, action: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = open(path)?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // Changes this thread only, which ends with the action.
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(action())
        });
        inside.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}

/// The namespace at `path`, or at the target of a link there (as containers have): a file of nsfs and nothing else. Opening a
/// FIFO does not block.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match fstatfs(&file)?.filesystem_type() {
        NSFS_MAGIC => Ok(file),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a network namespace", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    #[test]
    fn nothing_but_a_namespace_is_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, file, link] = ["fifo", "file", "link"].map(|name| folder.path().join(name));
        mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("/proc/self/ns/net", &link).unwrap();
        for path in [&fifo, &file, folder.path()] {
            assert!(open(path).is_err(), "{}", path.display());
        }
        assert!(open(&link).is_ok());
    }

    #[test]
    fn names_stay_in_their_folder() {
        assert!(["a", "left.1", "..."].into_iter().all(is_name));
        for bad in ["", ".", "..", "../../proc/self/ns/net", "a/b", "\u{1b}[2J", &"x".repeat(256)] {
            assert!(!is_name(bad) && inside(bad, || {}).is_err(), "{bad:?}");
        }
    }
}
