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
        match &mut self.uring {
            Some(uring) if operations.len() > 1 => {
                // SAFETY: the caller's promise.
                if !unsafe { together(uring, &mut self.results, file, way, operations) } {
                    self.uring = None;
                }
            }
            _ => self.results.extend(operations.iter().map(|operation| {
                // SAFETY: the caller's promise.
                unsafe { single(file, way, operation) }
            })),
        }
        &self.results
    }
}

/// All operations by one call; false if the kernel does not do it, in which case the results say so.
///
/// # Safety
/// As for [`Batch::run`].
unsafe fn together(uring: &mut IoUring, results: &mut Vec<i32>, file: &File, way: Way, operations: &[Vectors]) -> bool {
    let descriptor = types::Fd(file.as_raw_fd());
    results.resize(operations.len(), -libc::EIO);
    let mut queue = uring.submission();
    for (index, operation) in operations.iter().enumerate() {
        let entry = match way {
            Way::Read => opcode::Readv::new(descriptor, operation.first, operation.count).build(),
            Way::Write => opcode::Writev::new(descriptor, operation.first, operation.count).build(),
        };
        // SAFETY: the caller's promise; all operations have completed when this function returns.
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
    true
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
