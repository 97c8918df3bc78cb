//! The device state that a front end carries along a migration or in a snapshot (vhost-user, "Migrating back-end state"). memlane's
//! is empty: used indices lie in the guest's memory, features and addresses are the front end's own.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Checks that the front end has sent an empty state through `channel`, a pipe or socket, and closed it.
///
/// # Errors
/// The peer sent something, or can still do so.
pub(super) fn check_empty(channel: &File) -> io::Result<()> {
    let kind = channel.metadata()?.file_type();
    if !kind.is_fifo() && !kind.is_socket() {
        return Err(io::Error::other("a device state in a file that is no pipe or socket"));
    }
    // A read without data would wait for as long as the front end pleases.
    let mut ready = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ready, PollTimeout::ZERO)? == 0 {
        return Err(io::Error::other("the front end has not closed the channel of the device state"));
    }
    match (&mut &*channel).read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("the device state is another back end's: memlane's is empty")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn only_the_end_of_the_channel_is_an_empty_state() {
        let (reader, writer) = io::pipe().unwrap();
        let channel = File::from(OwnedFd::from(reader));
        assert!(check_empty(&channel).unwrap_err().to_string().contains("not closed"));
        (&writer).write_all(b"state").unwrap();
        assert!(check_empty(&channel).unwrap_err().to_string().contains("another back end"));
        drop(writer);
        let (reader, _) = io::pipe().unwrap();
        assert!(check_empty(&File::from(OwnedFd::from(reader))).is_ok());
        assert!(check_empty(&File::open("/dev/zero").unwrap()).is_err());
    }
}
