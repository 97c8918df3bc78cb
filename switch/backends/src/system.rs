//! System calls and ioctls that the back ends need and no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Reads up to `bytes.len()` bytes from `stream`; returns how many. File descriptors that came with them (SCM_RIGHTS), at most
/// `MOST`, are appended to `files`.
///
/// # Errors
/// The error of recvmsg(2); ENOBUFS if there were more descriptors.
pub(crate) fn receive<const MOST: usize>(stream: &UnixStream, bytes: &mut [u8], files: &mut Vec<File>) -> io::Result<usize> {
    let mut vector = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let mut descriptors = [-1; MOST];
    // SAFETY: the vector points to `bytes`, which are ours and may hold anything.
    let received = unsafe { stream.recv_with_fds(&mut vector, &mut descriptors) };
    let (count, descriptor_count) = received.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
    // SAFETY: the kernel has just made these descriptors ours.
    files.extend(descriptors[..descriptor_count].iter().map(|&fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) })));
    Ok(count)
}

/// Exchanges the files at two paths in one step (renameat2(2)), for which musl has no function.
///
/// # Errors
/// The error of the kernel.
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    rename_with(one, other, libc::RENAME_EXCHANGE)
}

fn rename_with(one: &Path, other: &Path, flags: libc::c_uint) -> io::Result<()> {
    let (one, other) = (CString::new(one.as_os_str().as_bytes())?, CString::new(other.as_os_str().as_bytes())?);
    let here = libc::AT_FDCWD;
    // SAFETY: both paths end with a zero byte and outlive the call.
    match unsafe { libc::syscall(libc::SYS_renameat2, here, one.as_ptr(), here, other.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves the file at `path` to `place`, where no file is (renameat2(2)). On a file system that does not know how, a file that another
/// process puts there at the same moment is replaced.
///
/// # Errors
/// The error of the kernel; EEXIST if there is a file.
pub(crate) fn rename_new(path: &Path, place: &Path) -> io::Result<()> {
    match rename_with(path, place, libc::RENAME_NOREPLACE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match std::fs::symlink_metadata(place) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => std::fs::rename(path, place),
        },
        result => result,
    }
}

/// Requests to `/dev/xen/gntdev`, `gntalloc` and `evtchn` (`include/uapi/xen/` of Linux), with the structures that they take.
pub(crate) mod xen {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    use crate::memory::Granted;

    /// A copy between two granted pages (`struct gntdev_grant_copy_segment`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[repr(C)]
    pub struct GrantCopy {
        /// The first byte to read.
        pub from: Granted,
        /// Destination of the copy.
        pub to: Granted,
        /// Bytes, within both pages.
        pub length: u16,
        flags: u16,
        status: i16,
    }

    const _: () = assert!(size_of::<GrantCopy>() == 24);

    impl GrantCopy {
        /// GNTCOPY_source_gref and GNTCOPY_dest_gref: both sides are named by grants.
        const BOTH_GRANTED: u16 = 3;
        /// A status that the hypervisor never returns: the copy was not made.
        const NOT_DONE: i16 = i16::MIN;

        /// A copy of `length` bytes.
        pub fn new(from: Granted, to: Granted, length: u32) -> Self {
            Self { from, to, length: length as u16, flags: Self::BOTH_GRANTED, status: Self::NOT_DONE }
        }

        /// Whether the copy succeeded (GNTST_okay).
        pub(crate) fn is_done(&self) -> bool {
            self.status == 0
        }

        /// Sets whether the copy succeeded.
        #[cfg(any(test, feature = "testing"))]
        pub(crate) fn set_done(&mut self, done: bool) {
            self.status = if done { 0 } else { Self::NOT_DONE };
        }
    }

    /// `_IOC(_IOC_NONE, kind, number, size)`.
    const fn code<T>(kind: u8, number: u32) -> libc::Ioctl {
        ((size_of::<T>() as libc::Ioctl) << 16) | ((kind as libc::Ioctl) << 8) | number as libc::Ioctl
    }

    #[repr(C)]
    struct Map {
        count: u32,
        pad: u32,
        index: u64,
        domain: u32,
        reference: u32,
    }

    #[repr(C)]
    struct Unmap {
        index: u64,
        count: u32,
        pad: u32,
    }

    #[repr(C)]
    struct Copies {
        count: u32,
        segments: *mut GrantCopy,
    }

    #[repr(C)]
    struct Allocate {
        domain: u16,
        flags: u16,
        count: u32,
        index: u64,
        reference: u32,
    }

    #[repr(C)]
    struct Bind {
        domain: u32,
        port: u32,
    }

    /// Makes an ioctl with a pointer as its argument; returns its result.
    ///
    /// # Safety
    /// `code` must take a pointer to a `T`, and memory that a `T` points to must be valid for the call.
    unsafe fn request<T>(file: &File, code: libc::Ioctl, argument: &mut T) -> io::Result<u32> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(file.as_raw_fd(), code, std::ptr::from_mut(argument)) } {
            -1 => Err(io::Error::last_os_error()),
            answer => Ok(answer as u32),
        }
    }

    /// Prepares the page that `domain` granted as `reference` to be mapped from `gntdev`; returns the offset to map it at.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub(crate) fn prepare_grant(gntdev: &File, domain: u16, reference: u32) -> io::Result<u64> {
        let mut map = Map { count: 1, pad: 0, index: 0, domain: domain.into(), reference };
        // SAFETY: IOCTL_GNTDEV_MAP_GRANT_REF takes this structure.
        unsafe { request(gntdev, code::<Map>(b'G', 0), &mut map) }?;
        Ok(map.index)
    }

    /// Releases the grant that [`prepare_grant`] prepared, once its page is unmapped.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub(crate) fn end_grant(gntdev: &File, index: u64) -> io::Result<()> {
        // SAFETY: IOCTL_GNTDEV_UNMAP_GRANT_REF takes this structure.
        unsafe { request(gntdev, code::<Unmap>(b'G', 1), &mut Unmap { index, count: 1, pad: 0 }) }.map(drop)
    }

    /// Has the hypervisor make the `copies` (grant copy), and sets the status of each.
    ///
    /// # Errors
    /// The error of the ioctl; some copies may have been made.
    pub(crate) fn copy_grants(gntdev: &File, copies: &mut [GrantCopy]) -> io::Result<()> {
        let mut argument = Copies { count: copies.len() as u32, segments: copies.as_mut_ptr() };
        // SAFETY: IOCTL_GNTDEV_GRANT_COPY takes this structure; the kernel reads and writes so many segments, which are borrowed
        // for the call and name no memory of ours.
        unsafe { request(gntdev, code::<Copies>(b'G', 8), &mut argument) }.map(drop)
    }

    /// Makes a page of `gntalloc` and grants it, writable, to `domain`; returns the offset to map it at, and the grant.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub(crate) fn grant_page(gntalloc: &File, domain: u16) -> io::Result<(u64, u32)> {
        let mut allocate = Allocate { domain, flags: 1, count: 1, index: 0, reference: 0 };
        // SAFETY: IOCTL_GNTALLOC_ALLOC_GREF takes this structure, for one page.
        unsafe { request(gntalloc, code::<Allocate>(b'G', 5), &mut allocate) }?;
        Ok((allocate.index, allocate.reference))
    }

    /// Binds `evtchn` to the event channel `port` of `domain`; returns our port.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub(crate) fn bind_channel(evtchn: &File, domain: u16, port: u32) -> io::Result<u32> {
        // SAFETY: IOCTL_EVTCHN_BIND_INTERDOMAIN takes this structure.
        unsafe { request(evtchn, code::<Bind>(b'E', 1), &mut Bind { domain: domain.into(), port }) }
    }

    /// Sends an event (notification) through our `port`.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub(crate) fn notify_channel(evtchn: &File, port: u32) -> io::Result<()> {
        let mut port = port;
        // SAFETY: IOCTL_EVTCHN_NOTIFY takes a port number.
        unsafe { request(evtchn, code::<u32>(b'E', 4), &mut port) }.map(drop)
    }
}
