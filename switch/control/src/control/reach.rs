//! Why a control socket cannot be reached, and the remedy: the network does not run, or it is another user's.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

use crate::folder;

/// The remedy for a connection to the control socket `path` that failed by `cause`.
pub(super) fn remedy(path: &Path, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => as_its_user(path),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => not_running(path, &folder::of_all_users()),
        _ => "Check that the path is the control socket of a network".into(),
    }
}

/// A hint to the socket's owner: only that user may use it, or enter its folder.
fn as_its_user(path: &Path) -> String {
    let seen = path.ancestors().find_map(|part| Some((part, std::fs::metadata(part).ok()?)));
    let Some((part, metadata)) = seen else { return "Run this command as the user that runs the network".into() };
    let user = name(metadata.uid());
    format!(
        "{} belongs to user {user}, and so does its network: run this command as that user, as by `sudo -u {user}`",
        part.display()
    )
}

fn not_running(path: &Path, folders: &[PathBuf]) -> String {
    let own = path.parent().unwrap_or(Path::new(""));
    let start = "Start the network with `memlane up`";
    for folder in folders.iter().filter(|folder| *folder != own) {
        let there = path.file_name().map(|name| folder.join(name)).unwrap_or_default();
        match std::fs::symlink_metadata(&there) {
            Ok(metadata) => {
                let (user, there) = (name(metadata.uid()), there.display());
                return format!("User {user} has a network of this name: name it by --control {there}, or {}", lower(start));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let user = std::fs::metadata(folder).map_or_else(|_| "root".into(), |metadata| name(metadata.uid()));
                return format!("{start}; if user {user} runs it, ask as that user, as by `sudo -u {user}`");
            }
            Err(_) => {}
        }
    }
    start.into()
}

fn lower(text: &str) -> String {
    text.replacen('S', "s", 1)
}

fn name(uid: u32) -> String {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_another_users_is_no_network_that_does_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, user) = (folder.path().join("net.control"), name(nix::unistd::geteuid().as_raw()));
        let told = crate::control::ControlError::Unreachable {
            path: socket,
            cause: io::ErrorKind::PermissionDenied.into(),
            hint: String::new(),
        }
        .to_string();
        let wanted =
            format!("belongs to user {user}, and so does its network: run this command as that user, as by `sudo -u {user}`");
        assert!(told.ends_with(&wanted) && told.contains(folder.path().to_str().unwrap()), "{told}");
        assert!(!told.contains("memlane up"), "{told}");
    }

    #[test]
    fn a_network_of_another_user_is_told_with_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        let folders = [ours.clone(), theirs.clone()];
        let told = || not_running(&ours.join("net.control"), &folders);
        assert_eq!(told(), "Start the network with `memlane up`");
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("net.control"), "").unwrap();
        let user = name(nix::unistd::geteuid().as_raw());
        let wanted = format!(
            "User {user} has a network of this name: name it by --control {}, or start the network with `memlane up`",
            theirs.join("net.control").display()
        );
        assert_eq!(told(), wanted);
    }
}
