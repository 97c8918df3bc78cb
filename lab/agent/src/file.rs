//! Files: read whole, written in pieces, without a process of their own.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::frame::{Kind, Sender};

/// Sends the file at `path` as data frames and a final word.
pub(crate) fn read(sender: &Sender, handle: u32, path: &[u8]) -> Result<(), String> {
    let path = Path::new(OsStr::from_bytes(path));
    let relayed = File::open(path).and_then(|mut file| sender.relay(Kind::Data, handle, &mut file));
    relayed.map_err(|error| format!("{}: {error}", path.display()))?;
    sender.send(Kind::Done, handle, b"");
    Ok(())
}

/// Writes one chunk: offset (u64; 0 creates or truncates), path, NUL, bytes.
pub(crate) fn write(sender: &Sender, handle: u32, payload: &[u8]) -> Result<(), String> {
    let malformed = "a write holds an offset, a path, NUL and bytes";
    let (offset, rest) = payload.split_first_chunk().ok_or(malformed)?;
    let offset = u64::from_le_bytes(*offset);
    let end = rest.iter().position(|byte| *byte == 0).ok_or(malformed)?;
    let path = Path::new(OsStr::from_bytes(&rest[..end]));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(offset == 0)
        .open(path)
        .and_then(|file| file.write_all_at(&rest[end + 1..], offset));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    sender.send(Kind::Done, handle, b"");
    Ok(())
}
