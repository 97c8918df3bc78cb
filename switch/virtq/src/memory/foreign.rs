//! Memory of other domains under Xen: named by grants, never mapped.
//!
//! A guest **grants** pages to memlane's domain and passes their references (`xen/include/public/grant_table.h`). Reading one is a
//! copy by the hypervisor, so bytes are named as long as possible and copied once, at best straight into the receiver's page.

use std::fmt::Debug;

/// An offset in a page that a domain granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Granted {
    /// The grant.
    pub reference: u32,
    /// Byte in the page, below 4096.
    pub offset: u16,
    /// The domain of the page.
    pub domain: u16,
}

impl Granted {
    /// So many bytes further in the page.
    #[must_use]
    pub fn after(self, bytes: u32) -> Self {
        Self { offset: self.offset + bytes as u16, ..self }
    }
}

/// Bytes of one granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The first one.
    pub place: Granted,
    /// How many, 1 to 4096; the page holds them all.
    pub length: u32,
}

/// Copies named memory into the switch's memory.
pub trait Fetch: Debug + Send + Sync {
    /// Copies all bytes of `names`, in order, to `to`, which has as many. False if any could not be read.
    fn fetch(&self, names: &[Foreign], to: &mut [u8]) -> bool;
}
