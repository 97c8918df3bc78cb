//! Descriptors that go from one process of a network to the next (takeover): a description refers to them by number.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::system;

/// Most descriptors that go with one byte: the kernel takes 253 (unix(7), SCM_MAX_FD).
pub const MOST_AT_ONCE: usize = 128;

/// Sends `files`, at most [`MOST_AT_ONCE`], with one byte.
///
/// # Errors
/// The error of sendmsg(2).
pub fn send(stream: &UnixStream, files: &[OwnedFd]) -> io::Result<()> {
    let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let sent = stream.send_with_fds(&[&[0_u8][..]], &files);
    sent.map(drop).map_err(|error| io::Error::from_raw_os_error(error.errno()))
}

/// Receives the descriptors of one call of [`send`], and appends them to `files`.
///
/// # Errors
/// The error of recvmsg(2); the stream has ended.
pub fn receive(stream: &UnixStream, files: &mut Vec<File>) -> io::Result<()> {
    match system::receive::<MOST_AT_ONCE>(stream, &mut [0], files)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Descriptors to be sent.
#[derive(Debug, Default)]
pub struct FilesToSend(Vec<OwnedFd>);

impl FilesToSend {
    /// These descriptors, numbered in their order.
    pub fn new(files: Vec<OwnedFd>) -> Self {
        Self(files)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Adds a descriptor; returns its number.
    pub fn add(&mut self, file: impl Into<OwnedFd>) -> u32 {
        self.0.push(file.into());
        self.0.len() as u32 - 1
    }

    /// All of them, by number.
    pub fn into_files(self) -> Vec<OwnedFd> {
        self.0
    }
}

/// Descriptors that were received. Each can be taken once.
#[derive(Debug, Default)]
pub struct ReceivedFiles(VecDeque<Option<File>>);

impl ReceivedFiles {
    /// These descriptors, numbered in their order.
    pub fn new(files: impl IntoIterator<Item = File>) -> Self {
        Self(files.into_iter().map(Some).collect())
    }

    /// Takes the descriptor `number`; `None` if there is none, or it was taken before.
    pub fn take(&mut self, number: u32) -> Option<File> {
        self.0.get_mut(number as usize)?.take()
    }

    /// Takes the first `count` of those that are left, as a list of its own; `None` if there are not so many.
    pub fn split_off_first(&mut self, count: u32) -> Option<Self> {
        let first: VecDeque<_> = self.0.drain(..(count as usize).min(self.0.len())).collect();
        (first.len() == count as usize).then_some(Self(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_is_taken_once() {
        let null = || File::open("/dev/null").unwrap();
        let mut files = ReceivedFiles::new([null(), null(), null()]);
        let mut first = files.split_off_first(2).unwrap();
        assert!(first.take(1).is_some() && first.take(1).is_none() && first.take(2).is_none() && first.take(u32::MAX).is_none());
        assert!(files.take(0).is_some() && files.take(0).is_none());
        assert!(files.split_off_first(2).is_none());
    }
}
