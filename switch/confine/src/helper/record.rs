//! The link in the run-time folder to a control socket elsewhere, by which commands find the network.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memlane_backends::vhost_user::socket;

use crate::config::claim::place;
use crate::config::default_control;
use crate::folder;

/// A link in the run-time folder to a control socket elsewhere, removed when dropped.
#[derive(Debug)]
pub struct Record {
    link: PathBuf,
    control: PathBuf,
}

impl Record {
    /// Makes the network `name` of `file`, which listens at `control`, discoverable.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn make_here(control: &Path, name: &str, file: Option<&Path>) -> io::Result<Option<Self>> {
        let (link, control) = (default_control(name, file), place(control));
        if control == place(&link) {
            return Ok(None);
        }
        if let Some(folder) = link.parent() {
            folder::make(folder)?;
            clean(folder);
        }
        // A link from an earlier start of the same network leads to the present socket already.
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
        // Another network may have replaced the link since.
        if std::fs::read_link(&self.link).is_ok_and(|control| control == self.control) {
            let _ = std::fs::remove_file(&self.link);
        }
    }
}

/// Removes dangling links: their networks were killed, and the folders of their sockets are gone.
fn clean(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let is_ours = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "control");
    for link in entries.filter(is_ours).filter(|path| path.is_symlink() && matches!(path.try_exists(), Ok(false))) {
        folder::remove_of_network(&link.with_extension("d"));
        let _ = std::fs::remove_file(link);
    }
}
