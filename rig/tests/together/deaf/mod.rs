//! A back end that answers every message politely and never looks at a ring: no misbehaviour has any effect on it.

#![allow(unreachable_pub)]

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memlane_rig::deadline::Deadline;
use memlane_rig::frontend::features::{LINUX, usual_protocol};
use memlane_rig::frontend::wire;

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(600);

/// A socket at which every front end is heard out.
pub struct Deaf {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Deaf {
    /// Begins to listen; it ends with the process.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deaf.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || hear(&stream));
            }
        });
        Self { path, _folder: folder }
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Answers until the guest hangs up or talks nonsense.
fn hear(stream: &UnixStream) {
    while let Ok(message) = wire::receive(stream, Deadline::after(FOR_EVER)) {
        let number = message.number().unwrap_or(0);
        let answer: Vec<u8> = match message.code {
            1 => LINUX.to_le_bytes().to_vec(),
            15 => usual_protocol().bits().to_le_bytes().to_vec(),
            17 => 1u64.to_le_bytes().to_vec(),
            36 => 509u64.to_le_bytes().to_vec(),
            40 => 0u64.to_le_bytes().to_vec(),
            11 => (number & 0xffff_ffff).to_le_bytes().to_vec(),
            _ if message.flags & wire::NEED_REPLY != 0 => 0u64.to_le_bytes().to_vec(),
            _ => continue,
        };
        if wire::send(stream, message.code, wire::VERSION | wire::REPLY, &answer, &[]).is_err() {
            return;
        }
    }
}
