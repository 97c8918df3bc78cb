//! Batches of reads or writes of one interface. A TAP: one io_uring system call for all where the kernel allows it, else a readv(2)
//! or writev(2) each. A packet socket: one recvmmsg(2) or sendmmsg(2), see [`messages`](super::messages).

#![expect(unsafe_code, reason = "the kernel is told where bytes lie")]
#![expect(
    clippy::indexing_slicing,
    reason = "it is asked right before whether it is full; heads have room for three headers; completions bear what was submitted"
)]

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::ptr;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, types};

use super::handle::Kind;
use super::messages::Messages;
use crate::frame::{LONGEST_HEADERS, NetHeader, START};
use crate::memory::Iovec;
use crate::port::end::NOTHING_LOST;
use crate::stats::DropReason;

/// Operations of one batch.
pub(super) const MOST: usize = 64;

/// Buffer segments that one operation takes (`IOV_MAX`).
const PARTS_OF_ONE: usize = 1024;
/// Buffer segments of all frames of a batch: enough for any one frame, and for a batch of usual ones.
const PARTS: usize = 4 * PARTS_OF_ONE;
/// Most bytes copied of a usual frame: headers, and as much payload as the packet structure holds.
const HEAD: usize = NetHeader::SIZE + 2 * START;
/// Most bytes copied of any frame.
const LONGEST_HEAD: usize = NetHeader::SIZE + LONGEST_HEADERS + START;
/// Bytes copied of all frames of a batch.
const HEADS: usize = MOST * HEAD + LONGEST_HEAD;

/// The iovec array of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub first: *const libc::iovec,
    pub count: u32,
}

/// Direction of an operation.
#[derive(Clone, Copy, Debug)]
enum Way {
    Read,
    Write,
}

/// See the module.
pub(super) struct Batch {
    uring: Option<IoUring>,
    /// Of a packet socket.
    messages: Option<Box<Messages>>,
    results: Vec<i32>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("uring", &self.uring.is_some()).field("messages", &self.messages).finish_non_exhaustive()
    }
}

/// Frames to be written together: copies of their headers, and the iovecs of their payload.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Never grows beyond its capacity, so iovecs into it stay valid.
    heads: Vec<u8>,
    /// Likewise.
    parts: Vec<libc::iovec>,
    frames: Vec<Vectors>,
}

// SAFETY: the iovecs point into memory of ours, or to buffer segments of guests, and only the kernel dereferences them.
unsafe impl Send for Gathered {}

impl Gathered {
    pub(super) fn new() -> Self {
        Self { heads: Vec::with_capacity(HEADS), parts: Vec::with_capacity(PARTS), frames: Vec::with_capacity(MOST) }
    }

    /// True if there may be no room for another frame.
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() == MOST || self.parts.len() + PARTS_OF_ONE > PARTS || self.heads.len() + LONGEST_HEAD > HEADS
    }

    /// Adds a frame: a head of these bytes, at most [`LONGEST_HEAD`], then the `iovecs`. False, and nothing is added, if it has
    /// too many buffer segments.
    ///
    /// # Panics
    /// [`Self::is_full`].
    pub(super) fn add(&mut self, head: [&[u8]; 3], iovecs: impl Iterator<Item = Iovec>) -> bool {
        assert!(!self.is_full(), "room for a frame");
        let (begin, heads) = (self.parts.len(), self.heads.len());
        let head = self.push_head(head);
        self.parts.push(head);
        for iovec in iovecs {
            if self.parts.len() == begin + PARTS_OF_ONE {
                self.parts.truncate(begin);
                self.heads.truncate(heads);
                return false;
            }
            self.parts.push(libc::iovec { iov_base: iovec.as_ptr().cast(), iov_len: iovec.length() as usize });
        }
        self.frames.push(Vectors { first: &raw const self.parts[begin], count: (self.parts.len() - begin) as u32 });
        true
    }

    /// Copies these bytes and returns them as one iovec.
    fn push_head(&mut self, bytes: [&[u8]; 3]) -> libc::iovec {
        let begin = self.heads.len();
        assert!(begin + bytes.iter().map(|bytes| bytes.len()).sum::<usize>() <= HEADS, "heads that stay where they are");
        for bytes in bytes {
            self.heads.extend_from_slice(bytes);
        }
        let head = &self.heads[begin..];
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() }
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.parts.clear();
        self.heads.clear();
    }
}

impl Batch {
    /// For a descriptor of this kind. Where io_uring is forbidden or unknown, batches of a TAP are slower and otherwise the same.
    pub(super) fn new(kind: Kind) -> Self {
        let results = Vec::with_capacity(MOST);
        match kind {
            Kind::Tap => Self { uring: restricted().ok(), messages: None, results },
            Kind::Packet { header } => Self { uring: None, messages: Some(Box::new(Messages::new(header))), results },
        }
    }

    /// True if the last read ended at a frame that the kernel cannot hand over, and not where there are no more.
    pub(super) fn passed_over(&self) -> bool {
        self.messages.as_ref().is_some_and(|messages| messages.passed_over())
    }

    /// Frames of the other side that were lost before they could be read, since this was last asked, and the reasons.
    pub(super) fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        self.messages.as_mut().map_or(NOTHING_LOST, |messages| messages.take_lost())
    }

    /// Reads a frame into each of `rooms`, at most [`MOST`], from the non-blocking `file`. Returns the result of each read: its
    /// length in bytes, or a negated error number.
    pub(super) fn read(&mut self, file: &File, rooms: &mut [IoSliceMut<'_>]) -> &[i32] {
        if let Some(messages) = &mut self.messages {
            messages.receive(file, rooms, &mut self.results);
            return &self.results;
        }
        let count = rooms.len().min(MOST);
        let mut operations = [Vectors { first: ptr::null(), count: 1 }; MOST];
        for (operation, room) in operations[..count].iter_mut().zip(rooms) {
            // An IoSliceMut has the layout of an iovec, as its documentation guarantees.
            operation.first = ptr::from_mut(room).cast_const().cast();
        }
        // SAFETY: the rooms are borrowed for the call.
        unsafe { self.run(file, Way::Read, &operations[..count]) }
    }

    /// Writes the gathered frames to the non-blocking `file` and clears them. Returns the result of each write: its length in
    /// bytes, or a negated error number.
    pub(super) fn write(&mut self, file: &File, gathered: &mut Gathered) -> &[i32] {
        // SAFETY: heads and iovecs have not moved since they were pushed, for the vectors never grow; the owner of buffer
        // segments releases them only after the poll iteration (see `Iovec`). A guest that writes there meanwhile changes only
        // its own frame.
        unsafe {
            match &mut self.messages {
                Some(messages) => messages.send(file, &gathered.frames, &mut self.results),
                None => drop(self.run(file, Way::Write, &gathered.frames)),
            }
        }
        gathered.clear();
        &self.results
    }

    /// Carries out `operations`, at most [`MOST`], on the non-blocking `file`, one after the other. Returns the result of each:
    /// its length in bytes, or a negated error number.
    ///
    /// # Safety
    /// The memory that the iovecs point to must be valid for the call: readable for writes, writable for reads.
    unsafe fn run(&mut self, file: &File, way: Way, operations: &[Vectors]) -> &[i32] {
        self.results.clear();
        // A single operation is cheaper as a plain system call.
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

/// A ring that takes reads and writes alone, for as long as it lives: a thread that a guest has taken over makes no socket, opens no file and
/// changes no ring by it, past the filter of system calls.
fn restricted() -> std::io::Result<IoUring> {
    let uring = IoUring::builder().setup_r_disabled().build(MOST as u32)?;
    let operations = [opcode::Readv::CODE, opcode::Writev::CODE];
    uring.submitter().register_restrictions(&mut operations.map(Restriction::sqe_op))?;
    uring.submitter().register_enable_rings()?;
    Ok(uring)
}

/// Carries out all operations by one io_uring call; false if the kernel refuses it, in which case the results say so.
///
/// Each operation carries RWF_NOWAIT: for a file that is merely opened with O_NONBLOCK, io_uring would wait until it is ready,
/// and block the worker.
///
/// # Safety
/// The conditions of [`Batch::run`].
unsafe fn together(uring: &mut IoUring, results: &mut Vec<i32>, file: &File, way: Way, operations: &[Vectors]) -> bool {
    let descriptor = types::Fd(file.as_raw_fd());
    results.resize(operations.len(), -libc::EIO);
    let mut queue = uring.submission();
    for (index, operation) in operations.iter().enumerate() {
        let entry = match way {
            Way::Read => opcode::Readv::new(descriptor, operation.first, operation.count).rw_flags(libc::RWF_NOWAIT).build(),
            Way::Write => opcode::Writev::new(descriptor, operation.first, operation.count).rw_flags(libc::RWF_NOWAIT).build(),
        };
        // SAFETY: the caller's promise. All operations have completed when this function returns: with RWF_NOWAIT they complete
        // while they are submitted, and if submitting fails, none was begun.
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
/// The conditions of [`Batch::run`].
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

    /// A datagram socket takes as many as fit its buffer; that of the other side has room for all.
    #[test]
    fn heads_of_any_length_stay_where_they_are_until_they_are_written() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (file, mut batch, mut gathered) = (File::from(OwnedFd::from(ours)), Batch::new(Kind::Tap), Gathered::new());
        for lengths in [&[60; MOST][..], &[HEAD; MOST], &[LONGEST_HEAD; 4], &[60, LONGEST_HEAD, 1, 300, LONGEST_HEAD]] {
            let mut heads = lengths.iter().enumerate().map(|(number, &length)| vec![number as u8; length]).peekable();
            while heads.peek().is_some() {
                let mut written = Vec::new();
                while let Some(head) = heads.next_if(|_| !gathered.is_full() && written.len() < 8) {
                    assert!(gathered.add([&head[..1], &head[1..], &[]], std::iter::empty()));
                    written.push(head);
                }
                assert!(!written.is_empty());
                batch.write(&file, &mut gathered);
                for head in written {
                    let mut got = [0; LONGEST_HEAD + 1];
                    let length = theirs.recv(&mut got).unwrap();
                    assert!(got[..length] == head, "{length} of {} bytes", head.len());
                }
            }
        }
        let room = std::iter::from_fn(|| (!gathered.is_full()).then(|| gathered.add([&[1; HEAD], &[], &[]], std::iter::empty())));
        assert_eq!(room.count(), MOST, "usual frames fill a batch");
    }

    #[test]
    fn a_ring_takes_reads_and_writes_alone() {
        // A kernel or container that forbids io_uring has no ring to misuse.
        let Ok(mut uring) = restricted() else { return };
        let result = |uring: &mut IoUring, entry: io_uring::squeue::Entry| {
            // SAFETY: none of the entries refers to memory.
            unsafe { uring.submission().push(&entry).unwrap() };
            uring.submit_and_wait(1).unwrap();
            uring.completion().next().unwrap().result()
        };
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        assert_eq!(result(&mut uring, socket), -libc::EACCES);
        let null = File::options().write(true).open("/dev/null").unwrap();
        let write = opcode::Writev::new(types::Fd(null.as_raw_fd()), ptr::null(), 0).build();
        assert_eq!(result(&mut uring, write), 0);
        assert!(uring.submitter().register_probe(&mut io_uring::Probe::new()).is_err(), "nothing else is registered");
    }

    #[test]
    fn reads_end_where_frames_end() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        for frame in [&b"one"[..], b"three"] {
            theirs.send(frame).unwrap();
        }
        let mut memory = [[0_u8; 16]; 4];
        let mut rooms = memory.each_mut().map(|room| IoSliceMut::new(room));
        let results = Batch::new(Kind::Tap).read(&File::from(OwnedFd::from(ours)), &mut rooms).to_vec();
        assert_eq!(results, [3, 5, -libc::EAGAIN, -libc::EAGAIN]);
        assert_eq!((&memory[0][..3], &memory[1][..5]), (&b"one"[..], &b"three"[..]));
    }
}
