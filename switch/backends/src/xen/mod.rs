//! Xen ports: guests with a Xen network interface, unmodified, served from here instead of by the kernel's xen-netback.
//!
//! - A **domain** is a virtual machine under Xen, dom0 among them; a **vif** is a network interface of one, with a **front end**
//!   in the guest and a **back end**, which is ours. They meet in **xenstore**, a tree of short texts that both can read and
//!   watch.
//! - A **grant** lets one domain reach a page of another, by its reference; an **event channel** carries notifications between
//!   two.
//!
//! In the order in which they act:
//!
//! 1. [`layer`]: the Xen operations, as a trait; [`device`] implements it on the kernel's devices, `in_memory` for tests.
//! 2. [`store`]: the xenstore protocol, and a trait for it; `watcher`: the xenstore watcher, one thread for all vifs.
//! 3. [`vif`]: the states of one back end and its front end, and their negotiation.
//! 4. [`netif`] and [`ring`]: the contents of the shared rings. [`link`]: state that the ends of a queue share.
//! 5. [`XenTransmit`](transmit) (TX) and [`XenReceive`](receive) (RX). Between two Xen guests the hypervisor copies the payload
//!    from page to page (grant copy); short frames are copied to pages of ours on the way.

pub mod device;
#[cfg(any(test, feature = "testing"))]
pub mod in_memory;
pub mod layer;
mod link;
pub mod netif;
mod receive;
mod ring;
pub mod store;
mod transmit;
mod vif;
pub mod xenstore_watcher;

pub use device::XenError;
pub use xenstore_watcher::{Newcomer, News, Wanted, XenstoreWatcher};
