//! Folders of sockets. memlane creates its run-time folder and no other: a missing folder in a configured path is reported as an
//! error.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Mode of the run-time folder: others may enter it, and the mode of each socket says which users may connect.
const MODE: u32 = 0o711;

/// The user's run-time folder, for sockets without a configured path.
pub fn runtime() -> PathBuf {
    let user = nix::unistd::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("memlane"),
        _ if user.is_root() => of_the_system(),
        // One for each user: in a folder of the first user, others could not create files.
        _ => std::env::temp_dir().join(format!("memlane-{user}")),
    }
}

/// The run-time folder of root and of the packaged units.
pub fn of_the_system() -> PathBuf {
    PathBuf::from("/run/memlane")
}

/// The user's folder for state that outlasts a restart of the host; `None` without a home.
pub fn state() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    match of("XDG_STATE_HOME") {
        Some(folder) => Some(folder.join("memlane")),
        None if nix::unistd::geteuid().is_root() => Some(PathBuf::from("/var/lib/memlane")),
        None => of("HOME").map(|home| home.join(".local/state/memlane")),
    }
}

/// Name of the file in a network's own folder with the key of its takeover.
pub const KEY: &str = "takeover";
/// Name of the file in a network's own folder with the notes of its helper.
pub const NOTES: &str = "sockets";

/// Does the work of [`provide`] for a process in a sandbox.
pub type Provider = Box<dyn Fn(&Path, bool) -> io::Result<()> + Send + Sync>;
static PROVIDER: OnceLock<Provider> = OnceLock::new();

/// Has `provider` make the run-time folder from now on.
pub fn provide_by(provider: Provider) {
    // The first one counts.
    let _ = PROVIDER.set(provider);
}

/// Removes the own folder of a network that has ended, with the key of its takeover and the notes of its helper.
pub fn remove_of_network(folder: &Path) {
    [KEY, NOTES].iter().for_each(|name| drop(std::fs::remove_file(folder.join(name))));
    // One that is not empty stays.
    let _ = std::fs::remove_dir(folder);
}

/// Run-time folders of all users, as far as this user can see them.
pub fn of_all_users() -> Vec<PathBuf> {
    let below = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // The folder below a login's /run/user is readable by this user only, or by root. For others, its mere existence says
    // nothing.
    let logins = below(Path::new("/run/user")).map(|user| user.join("memlane")).filter(|folder| folder.symlink_metadata().is_ok());
    let is_ours = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("memlane-"));
    let temporary = below(&std::env::temp_dir()).filter(is_ours);
    std::iter::once(of_the_system()).chain(logins).chain(temporary).collect()
}

/// Ensures that the folder of the socket `path` exists: the run-time folder is created, and opened to others if `shared` is true.
///
/// # Errors
/// The folder does not exist, or the run-time folder belongs to another user.
pub fn provide(path: &Path, shared: bool) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if is_same(folder, &runtime())
        && let Some(provide) = PROVIDER.get()
    {
        return provide(path, shared);
    }
    provide_here(path, shared)
}

/// Like [`provide`], by this process itself.
///
/// # Errors
/// The errors of [`provide`].
pub fn provide_here(path: &Path, shared: bool) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !is_same(folder, &runtime()) {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no folder {}", folder.display()));
        return if folder.is_dir() { Ok(()) } else { Err(missing()) };
    }
    make(folder)?;
    let folder = open(folder)?;
    let metadata = folder.metadata()?;
    let mode = metadata.mode() & 0o7777;
    if shared && mode & 0o011 != 0o011 && metadata.uid() == nix::unistd::geteuid().as_raw() {
        folder.set_permissions(Permissions::from_mode(mode | 0o011))?;
    }
    Ok(())
}

/// Creates the folder if it is missing.
///
/// # Errors
/// The kernel refuses, or another user has made it.
pub fn make(folder: &Path) -> io::Result<()> {
    if folder.symlink_metadata().is_err() {
        if let Some(around) = folder.parent() {
            DirBuilder::new().recursive(true).mode(MODE).create(around)?;
        }
        match DirBuilder::new().mode(MODE).create(folder) {
            // The umask may have cleared bits of the mode.
            Ok(()) => open(folder)?.set_permissions(Permissions::from_mode(MODE))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    if is_ours(folder) { Ok(()) } else { Err(others()) }
}

/// The error for a folder in which another user could replace sockets.
pub fn others() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the folder belongs to another user, or is a link that another user may have made",
    )
}

/// Whether `folder` is this user's, or root's: no other user can replace files in it. In a world-writable folder, it must be a
/// folder of this user, and no symbolic link.
pub fn is_ours(folder: &Path) -> bool {
    let us = nix::unistd::geteuid().as_raw();
    let Ok(entry) = std::fs::symlink_metadata(folder) else { return false };
    if is_around_open(folder) {
        return entry.is_dir() && entry.uid() == us;
    }
    let is_trusted = |metadata: &Metadata| metadata.uid() == us || metadata.uid() == 0;
    is_trusted(&entry) && std::fs::metadata(folder).is_ok_and(|folder| is_trusted(&folder))
}

/// Whether all users may create files beside `folder`, as in the folder for temporary files.
fn is_around_open(folder: &Path) -> bool {
    let around = folder.parent().map(|around| if around.as_os_str().is_empty() { Path::new(".") } else { around });
    around.is_some_and(|around| std::fs::metadata(around).is_ok_and(|metadata| metadata.mode() & 0o002 != 0))
}

/// Opens the folder itself, not a link that another user may have put in its place.
fn open(folder: &Path) -> io::Result<File> {
    let no_link = if is_around_open(folder) { libc::O_NOFOLLOW } else { 0 };
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | no_link).open(folder)
}

/// Whether both paths are of one folder, which may be missing.
pub fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_in_a_path_makes_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["no/a.sock", "no/such/a.sock"] {
            let told = provide(&folder.path().join(path), true).unwrap_err();
            assert!(told.kind() == io::ErrorKind::NotFound && told.to_string().contains("no folder /"), "{told}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        provide(&folder.path().join("a.sock"), true).unwrap();
        assert_ne!(std::fs::metadata(folder.path()).unwrap().mode() & 0o777, MODE, "no other folder is opened");
    }

    #[test]
    fn others_pass_through_a_folder_that_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("run/memlane");
        make(&made).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().mode() & 0o777, 0o711);
    }

    #[test]
    fn a_link_in_a_folder_of_all_users_is_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temporary.path(), Permissions::from_mode(0o1777)).unwrap();
        let victim = temporary.path().join("private");
        DirBuilder::new().mode(0o700).create(&victim).unwrap();
        let link = temporary.path().join("memlane-1000");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert!(is_ours(&victim) && !is_ours(&link));
        assert_eq!(make(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(open(&link).is_err() && open(&victim).is_ok());
        // Nor one that leads nowhere yet.
        std::fs::remove_dir(&victim).unwrap();
        assert!(make(&link).is_err() && !victim.exists());
    }

    #[test]
    fn a_link_of_ones_own_leads_to_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("memlane");
        make(&folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        assert!(is_ours(&link) && make(&link).is_ok() && open(&link).is_ok());
    }
}
