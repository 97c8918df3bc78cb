//! A network's file as text, read whole: not while a program is in the middle of writing it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::system::is_open_for_writing;

/// Longest wait for a program that is writing the file.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks whether it has finished.
const STEP: Duration = Duration::from_millis(5);

/// Reads the file at `path` once no program is writing it.
///
/// # Errors
/// The kernel refuses, or a program is still writing it after two seconds.
pub fn read_settled(path: &Path) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Opened anew each time: it may have been replaced.
        if let Some(text) = read_at_rest(&mut File::open(path)?)? {
            return Ok(text);
        }
        if Instant::now() > deadline {
            let text = "another program is writing it: try again when that has finished, or use --force";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        sleep(STEP);
    }
}

/// The text of `file`, unless it is being written.
fn read_at_rest(file: &mut File) -> io::Result<Option<String>> {
    let before = file.metadata()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if !before.is_file() {
        return Ok(Some(text));
    }
    let is_written = is_open_for_writing(file) == Some(true);
    let after = file.metadata()?;
    let same = |metadata: &std::fs::Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    let at_rest = !is_written && same(&before) == same(&after) && text.len() as u64 == after.len();
    Ok(at_rest.then_some(text))
}

/// True for a text whose last line has no end: that of a file which was cut off is mostly such a one.
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
        assert_eq!(read_at_rest(&mut File::open(&path).unwrap()).unwrap(), None);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || read_settled(&path).unwrap()
        });
        writer.write_all(b"b\n").unwrap();
        drop(writer);
        assert_eq!(reader.join().unwrap(), "a\nb\n");
    }

    #[test]
    fn a_writer_that_does_not_finish_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.toml");
        let _writer = File::create(&path).unwrap();
        assert_eq!(read_settled(&path).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a\n").unwrap();
        drop(writer);
        let mut reader = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(read_at_rest(&mut reader).unwrap().as_deref(), Some("a\n"));
    }

    #[test]
    fn a_text_that_was_cut_off_has_open_line() {
        assert!(has_open_line("a\nb") && !has_open_line("a\n") && !has_open_line(""));
    }
}
