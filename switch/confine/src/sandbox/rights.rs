//! Capabilities that the process keeps (capabilities(7)); without root's rights it has none to begin with.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

use crate::config::kinds::Rights;

/// Drops all capabilities but those for `rights`, and that for reading the network's file, which may lie in a folder of another user.
pub(super) fn drop_others(rights: Rights) -> Result<(), CapsError> {
    // Drivers of Xen ask for others, depending on the kernel.
    if rights.xen {
        return Ok(());
    }
    // Without CAP_SYS_RESOURCE, descriptors that other processes of the user have in flight would count against this one's limit.
    let mut kept = vec![Capability::CAP_DAC_READ_SEARCH, Capability::CAP_SYS_RESOURCE];
    // For the lease that tells whether a program is writing the network's file.
    kept.push(Capability::CAP_LEASE);
    // For a packet socket, its receive buffer needs the right that devices do.
    kept.extend((rights.tap || rights.packet).then_some(Capability::CAP_NET_ADMIN));
    kept.extend(rights.packet.then_some(Capability::CAP_NET_RAW));
    // For setns(2) into a network namespace.
    kept.extend(rights.netns.then_some(Capability::CAP_SYS_ADMIN));
    keep(kept.into_iter().collect())
}

/// Drops all capabilities but those for sockets of NICs: CAP_BPF with Linux 5.8 or newer, in network namespaces CAP_SYS_ADMIN.
pub(super) fn keep_for_nics() -> Result<(), CapsError> {
    let kept = [Capability::CAP_NET_RAW, Capability::CAP_NET_ADMIN, Capability::CAP_BPF, Capability::CAP_SYS_ADMIN];
    // Frames of sockets are locked in memory; the network's file may be another user's.
    keep(kept.into_iter().chain([Capability::CAP_IPC_LOCK, Capability::CAP_DAC_READ_SEARCH]).collect())
}

/// Drops all capabilities.
pub(super) fn drop_all() -> Result<(), CapsError> {
    keep(CapsHashSet::new())
}

fn keep(kept: CapsHashSet) -> Result<(), CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    if permitted.is_empty() {
        return Ok(());
    }
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for other in caps::read(None, CapSet::Bounding)?.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *other)?;
        }
    }
    caps::clear(None, CapSet::Inheritable)?;
    let left: CapsHashSet = permitted.intersection(&kept).copied().collect();
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)
}
