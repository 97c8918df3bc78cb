//! Ports to be detached from a network that does not run: notes beside its control socket, which its next start carries out.
//!
//! The CNI plugin leaves one when a container ends meanwhile: the state file, which would restore the port, is the network's own.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::state_file::{StateFile, is_at};
use crate::folder;

/// Most bytes of the notes of a network.
const MOST_BYTES: u64 = 4 << 20;
/// Mode of their file.
const MODE: u32 = 0o644;

/// The notes for the network with the control socket `control`.
fn place(control: &Path) -> PathBuf {
    let mut name = control.file_name().unwrap_or_default().to_owned();
    name.push(".detach");
    control.with_file_name(name)
}

/// The purpose of opening the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To add one.
    Add,
    /// To take one back.
    Forget,
    /// To carry them out: the network's user may only read the notes of root, and removes them by its right to the folder.
    CarryOut,
}

/// The locked file at `path`; `None` if it is missing and no note is to be added.
fn locked(path: &Path, purpose: Purpose) -> io::Result<Option<File>> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(purpose != Purpose::CarryOut).create(purpose == Purpose::Add);
        // A link of the folder's owner leads this process to no other file.
        options.mode(MODE).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && purpose != Purpose::Add => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        let is_ours = [0, nix::unistd::geteuid().as_raw()].contains(&metadata.uid());
        if !metadata.is_file() || metadata.nlink() > 1 || !is_ours {
            return Err(io::Error::other(format!("{} is no file of this user or of root", path.display())));
        }
        file.lock()?;
        // Another process may have removed it meanwhile.
        if is_at(&file, path) {
            return Ok(Some(file));
        }
    }
}

fn read(file: &File) -> io::Result<BTreeSet<String>> {
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Notes that the network with the control socket `control` is to detach `port` at its next start.
///
/// # Errors
/// The note cannot be written.
pub fn add(control: &Path, port: &str) -> io::Result<()> {
    folder::provide(control, false)?;
    let Some(mut file) = locked(&place(control), Purpose::Add)? else { return Err(io::ErrorKind::NotFound.into()) };
    // The network's user reads the notes of root under any umask of a container runtime.
    file.set_permissions(Permissions::from_mode(MODE))?;
    if !read(&file)?.contains(port) {
        file.write_all(format!("{port}\n").as_bytes())?;
    }
    file.sync_all()
}

/// Takes back a note about `port`, which is attached again.
///
/// # Errors
/// The note is there, and cannot be removed.
pub fn forget(control: &Path, port: &str) -> io::Result<()> {
    let path = place(control);
    let Some(mut file) = locked(&path, Purpose::Forget)? else { return Ok(()) };
    let mut ports = read(&file)?;
    if !ports.remove(port) {
        return Ok(());
    }
    if ports.is_empty() {
        return std::fs::remove_file(path);
    }
    file.set_len(0)?;
    file.rewind()?;
    ports.iter().try_for_each(|port| file.write_all(format!("{port}\n").as_bytes()))
}

/// Removes the ports of the notes from the state file of a network that is to start with the control socket `control`, before its process
/// enters the sandbox.
///
/// # Errors
/// The notes cannot be read, or the state file not be written.
pub fn carry_out(control: &Path, state: Option<&Path>) -> io::Result<()> {
    let path = place(control);
    let Some(file) = locked(&path, Purpose::CarryOut)? else { return Ok(()) };
    let ports = read(&file)?;
    if let Some(state) = state.filter(|state| state.exists()) {
        let (file, before) = StateFile::open(state).map_err(io::Error::other)?;
        file.begin(&before, &before.clone().without(&ports)).map_err(io::Error::other)?;
    }
    for port in &ports {
        tracing::info!(
            target: "memlane::control::detach_notes",
            port, "detached, as was asked for while the network did not run"
        );
    }
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::state::SavedNetwork;

    #[test]
    fn a_noted_port_is_in_no_state_any_more_and_the_note_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (control, state) = (folder.path().join("control"), folder.path().join("state"));
        let config = |text: &str| Config::parse(text, "net").unwrap();
        let port = |name: &str| format!("[[port]]\nname = \"{name}\"\nnull = true\n");
        let saved =
            |ports: &[&str]| SavedNetwork::between(&config(""), &config(&ports.iter().map(|one| port(one)).collect::<String>()));
        let (file, before) = StateFile::open(&state).unwrap();
        file.begin(&before, &saved(&["a", "b", "c"])).unwrap();
        drop(file);
        for name in ["a", "c", "other", "a"] {
            add(&control, name).unwrap();
        }
        forget(&control, "c").unwrap();
        forget(&control, "never").unwrap();
        carry_out(&control, Some(&state)).unwrap();
        assert_eq!(StateFile::open(&state).unwrap().1, saved(&["b", "c"]));
        assert!(!place(&control).exists());
        // Without notes and without a state there is nothing to do.
        carry_out(&control, None).unwrap();
        add(&control, "a").unwrap();
        forget(&control, "a").unwrap();
        assert!(!place(&control).exists());
    }

    #[test]
    fn a_link_or_a_file_of_another_name_is_no_note() {
        let folder = tempfile::tempdir().unwrap();
        let (control, victim) = (folder.path().join("control"), folder.path().join("victim"));
        std::fs::write(&victim, "whole").unwrap();
        std::os::unix::fs::symlink(&victim, place(&control)).unwrap();
        assert!(add(&control, "a").is_err());
        std::fs::remove_file(place(&control)).unwrap();
        std::fs::hard_link(&victim, place(&control)).unwrap();
        assert!(add(&control, "a").is_err());
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "whole");
    }
}
