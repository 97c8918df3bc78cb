//! What a back end asks of Xen, as a trait: the kernel's devices answer it ([`super::device`]), and for tests and fuzzers a hypervisor in memory
//! (`super::in_memory`).

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::memory::{Granted, SharedPage};
pub use crate::system::xen::GrantCopy;

/// Number of a domain.
pub type Domain = u16;

/// Bytes of a page, and so of a grant.
pub const PAGE: u32 = SharedPage::SIZE;

/// Grants and event channels.
pub trait Layer: Debug + Send + Sync {
    /// Maps the page that `domain` granted as `reference`, writable.
    ///
    /// # Errors
    /// There is no such grant, or the kernel refuses.
    fn map(&self, domain: Domain, reference: u32) -> io::Result<Box<dyn Mapped>>;

    /// So many pages of ours, zeroed, that copies reach by grants of their own.
    ///
    /// # Errors
    /// What the kernel says.
    fn own_pages(&self, count: u16) -> io::Result<Vec<OwnPage>>;

    /// Binds to the event channel `port` of `domain`.
    ///
    /// # Errors
    /// What the kernel says.
    fn bind(&self, domain: Domain, port: u32) -> io::Result<Box<dyn Channel>>;

    /// Makes the `copies` in one request; each notes whether it was done. Who asks has seen to it that they stay within their pages.
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
    /// Where copies find its first byte.
    pub place: Granted,
    /// What keeps the grant.
    pub(super) _keeper: Option<Arc<File>>,
}

/// Our end of an event channel.
pub trait Channel: Debug + Send + Sync {
    /// Becomes readable with each event that comes after [`Self::clear`].
    ///
    /// # Errors
    /// The kernel refuses another descriptor.
    fn readable(&self) -> io::Result<File>;

    /// Forgets the events that came, so that the next one tells again.
    fn clear(&self);

    /// Sends an event.
    fn notify(&self);
}
