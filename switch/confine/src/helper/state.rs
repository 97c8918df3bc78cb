//! The state file on disk: opened, and replaced atomically. The helper does so for a process in a sandbox; `control::state_file` of the
//! daemon does the rest.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most symbolic links from the path to the file, the kernel's limit.
const MOST_LINKS: usize = 40;

/// The target of `path`: links are followed also to a file that does not exist yet.
pub fn target(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let Ok(next) = std::fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("/")).join(next);
    }
    path
}

/// Opens the file at `path` for reading and writing, since NFS grants an exclusive lock only on a file that is open for writing;
/// where that is refused, for reading, which is enough for the lock elsewhere. A missing file is created, and its folder too.
///
/// # Errors
/// The kernel refuses.
pub fn open_here(path: &Path) -> io::Result<File> {
    make_folder(path)?;
    // Opening a pipe without a writer would block.
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let opened = options.open(path).or_else(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => options.write(false).open(path),
        _ => Err(error),
    });
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => options.write(true).create(true).mode(0o600).open(path),
        opened => opened,
    }
}

/// Creates the folder of `path` if only that is missing; a path of several missing folders is more likely a mistake.
fn make_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            DirBuilder::new().mode(0o700).create(folder).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => io::Error::new(error.kind(), "neither its folder nor the parent of that exists"),
                _ => error,
            })
        }
        _ => Ok(()),
    }
}

/// The file beside `path` that is to take its place.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("this is no file's name"))?;
    Ok(folder_of(path).join(format!(".{}.new", name.to_string_lossy())))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// An empty file beside `path`, for its owner alone.
///
/// # Errors
/// The kernel refuses.
pub fn fresh_here(path: &Path) -> io::Result<File> {
    // Remains of a crash are removed; a link is neither followed nor written through.
    match drop_here(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside(path)?)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Puts the file beside `path` in its place.
///
/// # Errors
/// The kernel refuses.
pub fn keep_here(path: &Path) -> io::Result<()> {
    std::fs::rename(beside(path)?, path)?;
    File::open(folder_of(path))?.sync_all()
}

/// Removes the file beside `path`.
///
/// # Errors
/// The kernel refuses.
pub fn drop_here(path: &Path) -> io::Result<()> {
    std::fs::remove_file(beside(path)?)
}
