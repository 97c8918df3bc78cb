//! The key of a takeover: random bytes in a file of the network's own folder, made before the network's process enters its sandbox.
//!
//! A user id does not suffice to take a network over: other networks of the same user are confined to files that do not include the key, and
//! so a guest that took one of them over cannot show it. The starter's child and the operator's shell can read it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::folder;

/// Name of the HTTP header with the key.
pub const HEADER: &str = "memlane-takeover-key";
/// Name of the file.
const NAME: &str = folder::KEY;
/// Random bytes of a key.
const BYTES: usize = 32;

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    text: String,
    path: PathBuf,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("path", &self.path).finish_non_exhaustive()
    }
}

/// So many random bytes, in hexadecimal.
fn random(count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Key {
    /// The key of a takeover of the network with the own folder `folder`: the one that is there, or a new one.
    ///
    /// # Errors
    /// The kernel refuses the folder or the file, or another user has made it.
    pub fn of(folder: &Path) -> io::Result<Self> {
        folder::make(folder)?;
        let path = folder.join(NAME);
        match Self::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(&path),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                std::fs::remove_file(&path)?;
                Self::make(&path)
            }
            read => read,
        }
    }

    fn read(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user has made the file"));
        }
        let mut text = String::new();
        file.take(2 * BYTES as u64 + 1).read_to_string(&mut text)?;
        let is_key = text.len() == 2 * BYTES && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_key.then(|| Self { text, path: path.into() }).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Makes the file under another name first: a second process that starts now reads all of it.
    fn make(path: &Path) -> io::Result<Self> {
        let text = random(BYTES)?;
        // A random name, which is no part of the key: process numbers repeat in other PID namespaces.
        let beside = path.with_extension(random(8)?);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?.write_all(text.as_bytes())?;
        let made = std::fs::hard_link(&beside, path);
        std::fs::remove_file(&beside)?;
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Self::read(path),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key in a header of a request.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether `shown` is this key; the time that the comparison takes does not depend on it.
    pub fn is(&self, shown: &[u8]) -> bool {
        let differing = self.text.bytes().zip(shown).fold(0, |known, (own, other)| known | (own ^ other));
        self.text.len() == shown.len() && differing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_for_its_owner_and_no_other_text_passes_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("net.d");
        let first = Key::of(&own).unwrap();
        assert_eq!(std::fs::metadata(own.join(NAME)).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&own).unwrap().count(), 1);
        assert!(Key::of(&own).unwrap() == first && first.is(first.text().as_bytes()));
        folder::remove_of_network(&own);
        assert!(!own.exists());
        let next = Key::of(&own).unwrap();
        assert!(next != first && !next.is(first.text().as_bytes()));
        assert!(!next.is(b"") && !next.is(&next.text().as_bytes()[1..]) && !next.is(format!("{}0", next.text()).as_bytes()));
        // Half a key is replaced; a link is not followed.
        std::fs::write(own.join(NAME), "abc").unwrap();
        assert!(Key::of(&own).unwrap().text().len() == 2 * BYTES);
        std::fs::rename(own.join(NAME), own.join("other")).unwrap();
        std::os::unix::fs::symlink("other", own.join(NAME)).unwrap();
        assert!(Key::of(&own).is_err());
    }

    #[test]
    fn processes_that_start_at_once_have_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("net.d");
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Key::of(&own))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
        });
        assert!(!keys.is_empty() && keys.iter().all(|key| *key == Key::of(&own).unwrap()));
    }
}
