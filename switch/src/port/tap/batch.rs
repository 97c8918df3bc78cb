//! Many reads or writes of one file in one system call, by io_uring where the kernel allows it; else one call each.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

/// Operations of one batch.
pub(super) const MOST: usize = 64;

/// Buffers of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub first: *const libc::iovec,
    pub count: u32,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Read,
    Write,
}

/// See the module.
pub(super) struct Batch {
    uring: Option<IoUring>,
    results: Vec<i32>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("uring", &self.uring.is_some()).finish_non_exhaustive()
    }
}

impl Batch {
    /// Where io_uring is forbidden or unknown, batches are slower and otherwise the same.
    pub(super) fn new() -> Self {
        Self { uring: IoUring::new(MOST as u32).ok(), results: Vec::with_capacity(MOST) }
    }

    /// Carries out `operations`, at most [`MOST`], on `file`, which never blocks, one after the other. Returns what each did: bytes, or a negated
    /// error number.
    ///
    /// # Safety
    /// What the vectors point to must be valid for the call: to be read by others for writes, to be written for reads.
    pub(super) unsafe fn run(&mut self, file: &File, way: Way, operations: &[Vectors]) -> &[i32] {
        self.results.clear();
        // A lone operation is cheaper as a call of its own.
        if operations.len() > 1
            && let Some(uring) = &mut self.uring
        {
            // SAFETY: the caller's promise.
            if !unsafe { together(uring, &mut self.results, file, way, operations) } {
                self.uring = None;
            }
            if self.results[0] != -libc::EOPNOTSUPP {
                return &self.results;
            }
            self.results.clear();
        }
        // SAFETY: the caller's promise.
        self.results.extend(operations.iter().map(|operation| unsafe { single(file, way, operation) }));
        &self.results
    }
}

/// All operations by one call; false if the kernel does not do it, in which case the results say so.
///
/// Each says itself that it must not wait: for a file that is merely open as non-blocking, io_uring would wait until it is ready, and the
/// worker with it.
///
/// # Safety
/// As for [`Batch::run`].
unsafe fn together(uring: &mut IoUring, results: &mut Vec<i32>, file: &File, way: Way, operations: &[Vectors]) -> bool {
    let descriptor = types::Fd(file.as_raw_fd());
    results.resize(operations.len(), -libc::EIO);
    let mut queue = uring.submission();
    for (index, operation) in operations.iter().enumerate() {
        let entry = match way {
            Way::Read => opcode::Readv::new(descriptor, operation.first, operation.count).rw_flags(libc::RWF_NOWAIT).build(),
            Way::Write => opcode::Writev::new(descriptor, operation.first, operation.count).rw_flags(libc::RWF_NOWAIT).build(),
        };
        // SAFETY: the caller's promise. All operations have completed when this function returns: those that may not wait do so while they are
        // submitted, and if submitting fails, none was begun.
        if unsafe { queue.push(&entry.user_data(index as u64)) }.is_err() {
            break;
        }
    }
    let queued = queue.len();
    drop(queue);
    let mut done = 0;
    while done < queued {
        match uring.submit_and_wait(queued - done) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => return false,
            Ok(_) => {}
        }
        for completion in uring.completion() {
            results[completion.user_data() as usize] = completion.result();
            done += 1;
        }
    }
    !results.contains(&-libc::EOPNOTSUPP)
}

/// One operation by a call of its own.
///
/// # Safety
/// As for [`Batch::run`].
unsafe fn single(file: &File, way: Way, operation: &Vectors) -> i32 {
    let (descriptor, count) = (file.as_raw_fd(), operation.count as libc::c_int);
    // SAFETY: the caller's promise.
    let done = unsafe {
        match way {
            Way::Read => libc::readv(descriptor, operation.first, count),
            Way::Write => libc::writev(descriptor, operation.first, count),
        }
    };
    if done < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { done as i32 }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn reads_end_where_frames_end() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        for frame in [&b"one"[..], b"three"] {
            theirs.send(frame).unwrap();
        }
        let mut memory = [[0_u8; 16]; 4];
        let buffers = memory.each_mut().map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
        let operations = buffers.each_ref().map(|buffer| Vectors { first: buffer, count: 1 });
        // SAFETY: buffers and vectors outlive the call.
        let results = unsafe { Batch::new().run(&File::from(OwnedFd::from(ours)), Way::Read, &operations).to_vec() };
        assert_eq!(results, [3, 5, -libc::EAGAIN, -libc::EAGAIN]);
        assert_eq!((&memory[0][..3], &memory[1][..5]), (&b"one"[..], &b"three"[..]));
    }
}
