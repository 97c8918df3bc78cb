//! The Xen operations that a back end needs, as a trait: the kernel's devices implement it ([`super::device`]), and for tests and
//! fuzzers a hypervisor in memory (`super::in_memory`).

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::memory::{Granted, SharedPage};
pub use crate::system::xen::GrantCopy;

/// Number of a domain.
pub type Domain = u16;

/// Bytes of a page, the unit of a grant.
pub const PAGE: u32 = SharedPage::SIZE;

/// Grants and event channels.
pub trait Layer: Debug + Send + Sync {
    /// Maps the page that `domain` granted as `reference`, writable.
    ///
    /// # Errors
    /// There is no such grant, or the kernel refuses.
    fn map(&self, domain: Domain, reference: u32) -> io::Result<Box<dyn Mapped>>;

    /// Allocates `count` zeroed pages, with grants by which grant copies reach them.
    ///
    /// # Errors
    /// The error of the kernel.
    fn own_pages(&self, count: u16) -> io::Result<Vec<OwnPage>>;

    /// Binds to the event channel `port` of `domain`.
    ///
    /// # Errors
    /// The error of the kernel.
    fn bind(&self, domain: Domain, port: u32) -> io::Result<Box<dyn Channel>>;

    /// Makes the `copies` by one request (grant copy) and sets the status of each. The caller has checked that they stay within
    /// their pages.
    fn copy(&self, copies: &mut [GrantCopy]);
}

/// A mapped page of another domain; unmapped when dropped.
pub trait Mapped: Debug + Send + Sync {
    /// The page.
    fn page(&self) -> &SharedPage;
}

/// A page of ours with its grant.
#[derive(Debug)]
pub struct OwnPage {
    /// The page.
    pub page: SharedPage,
    /// The page's first byte, as grant copies name it.
    pub place: Granted,
    /// The open file that keeps the grant.
    pub(super) _keeper: Option<Arc<File>>,
}

/// Our end of an event channel.
pub trait Channel: Debug + Send + Sync {
    /// Becomes readable by each event after [`Self::clear`].
    ///
    /// # Errors
    /// The kernel refuses another descriptor.
    fn readable(&self) -> io::Result<File>;

    /// Clears pending events, so that the next one makes the descriptor readable again.
    fn clear(&self);

    /// Sends an event to the other end.
    fn notify(&self);
}
