//! A network's file as text, read when no program is in the middle of writing it.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::statfs::{FsType, NFS_SUPER_MAGIC, fstatfs};

use memlane_virtq::system::is_open_for_writing;

/// Timeout for a program that is writing the file.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the end of writing is polled.
const STEP: Duration = Duration::from_millis(5);

/// Super blocks of SMB (`include/uapi/linux/magic.h` of Linux): of version 1, and of later ones.
const SMB: [FsType; 2] = [FsType(0xff53_4d42), FsType(0xfe53_4d42)];

/// A file's text, and whether it may be incomplete.
#[derive(Debug, PartialEq, Eq)]
pub struct Settled {
    /// All of it.
    pub text: String,
    /// A program has the file open for writing and may not have finished, though it wrote nothing for two seconds.
    pub is_open: bool,
}

/// Reads the file at `path` once no program is writing it: none has it open for writing, or it stayed unchanged for two seconds.
/// On network file systems, the kernel may report a writer that does not exist, unless the server has delegated the file.
///
/// # Errors
/// The kernel refuses, or a program is still writing it after two seconds.
pub fn read_settled(path: &Path) -> io::Result<Settled> {
    // Opened anew each time: it may have been replaced.
    settle(|| Look::at(&mut File::open(path)?), TIMEOUT)
}

fn settle(mut look: impl FnMut() -> io::Result<Look>, timeout: Duration) -> io::Result<Settled> {
    let deadline = Instant::now() + timeout;
    let first = look()?;
    let (version, mut last) = (first.version, first);
    loop {
        if last.is_whole && !last.is_written {
            return Ok(Settled { text: last.text, is_open: false });
        }
        if Instant::now() > deadline {
            break;
        }
        sleep(STEP);
        last = look()?;
    }
    if last.is_whole && last.version == version {
        return Ok(Settled { text: last.text, is_open: !last.is_remote });
    }
    let text = "another program is writing the file: try again later, or use `memlane reload --force`";
    Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
}

/// State of a file at one moment.
#[derive(Clone, Debug)]
struct Look {
    text: String,
    /// Device, inode, length, and seconds and nanoseconds of the last change.
    version: [u64; 5],
    /// The file did not change while it was read.
    is_whole: bool,
    /// The kernel says that a program has it open for writing.
    is_written: bool,
    /// The file is on a server.
    is_remote: bool,
}

impl Look {
    fn at(file: &mut File) -> io::Result<Self> {
        let before = file.metadata()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let is_written = before.is_file() && is_open_for_writing(file) == Some(true);
        let after = file.metadata()?;
        let is_whole = !before.is_file() || (version(&before) == version(&after) && text.len() as u64 == after.len());
        let remote = [NFS_SUPER_MAGIC, SMB[0], SMB[1]];
        let is_remote = fstatfs(&*file).is_ok_and(|system| remote.contains(&system.filesystem_type()));
        Ok(Self { text, version: version(&after), is_whole, is_written, is_remote })
    }
}

fn version(metadata: &Metadata) -> [u64; 5] {
    [metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime() as u64, metadata.mtime_nsec() as u64]
}

/// True for a text without a newline at its end, as most truncated files are.
pub fn has_open_line(text: &str) -> bool {
    !text.is_empty() && !text.ends_with('\n')
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_read_when_its_writer_has_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.toml");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"a\n").unwrap();
        assert!(Look::at(&mut File::open(&path).unwrap()).unwrap().is_written);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || read_settled(&path).unwrap()
        });
        writer.write_all(b"b\n").unwrap();
        drop(writer);
        assert_eq!(reader.join().unwrap(), Settled { text: "a\nb\n".into(), is_open: false });
    }

    fn written(version: u64, is_remote: bool) -> Look {
        Look { text: "a\n".into(), version: [version; 5], is_whole: true, is_written: true, is_remote }
    }

    /// On a server the kernel may report a writer that does not exist, so nothing can be concluded from it.
    #[test]
    fn a_file_that_stays_as_it_is_is_read_and_whether_a_program_has_it_open_is_told() {
        for (is_remote, is_open) in [(true, false), (false, true)] {
            let settled = settle(|| Ok(written(1, is_remote)), Duration::ZERO).unwrap();
            assert_eq!(settled, Settled { text: "a\n".into(), is_open });
        }
    }

    #[test]
    fn a_writer_that_does_not_finish_is_told() {
        let mut versions = 1..;
        let writing = || Ok(written(versions.next().unwrap(), true));
        assert_eq!(settle(writing, STEP).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn a_file_that_was_replaced_meanwhile_is_read_at_the_next_look() {
        let mut looks = [written(1, false), Look { is_written: false, ..written(2, false) }].into_iter();
        assert!(!settle(|| Ok(looks.next().unwrap()), TIMEOUT).unwrap().is_open);
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a\n").unwrap();
        drop(writer);
        let mut reader = File::from(std::os::fd::OwnedFd::from(reader));
        let look = Look::at(&mut reader).unwrap();
        assert!(look.text == "a\n" && look.is_whole && !look.is_written);
    }

    #[test]
    fn a_text_that_was_cut_off_has_open_line() {
        assert!(has_open_line("a\nb") && !has_open_line("a\n") && !has_open_line(""));
    }
}
