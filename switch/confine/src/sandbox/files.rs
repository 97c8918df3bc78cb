//! Files that the process can open (Landlock), and TCP ports at which it can listen. It makes and removes none.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Needs;

/// The newest version of Landlock with rights that are used; of an older kernel's, as many as it has.
pub(super) const NEWEST: ABI = ABI::V6;

/// Files that the C library and memlane read: users and groups, libraries, the counters of kernel and cgroup.
const READ: [&str; 12] = [
    "/proc",
    "/sys",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/ld.so.cache",
    "/lib",
    "/lib64",
    "/usr/lib",
    // Libraries of NixOS, and networks' files, to which links in /etc lead.
    "/nix/store",
    "/dev/urandom",
    "/dev/null",
];

/// Confines this thread, and each that it starts, to the files that `needs` names, and to names of files in the folders `listed`; the kernel's support.
pub(super) fn confine(needs: &Needs, listed: &[PathBuf]) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(if needs.abstract_sockets { Scope::Signal.into() } else { Scope::from_all(NEWEST) })?
        .create()?;
    for path in READ.iter().map(Path::new).chain(needs.read.iter().map(AsRef::as_ref)) {
        rules = beneath(rules, path, read)?;
    }
    for path in listed {
        rules = beneath(rules, path, AccessFs::ReadDir.into())?;
    }
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    if needs.rights.tap {
        rules = beneath(rules, Path::new("/dev/net/tun"), device)?;
    }
    if needs.rights.tap || needs.rights.packet {
        rules = beneath(rules, Path::new("/run/netns"), read)?;
    }
    if needs.rights.xen {
        rules = beneath(rules, Path::new("/dev/xen"), device | AccessFs::ReadDir)?;
        rules = beneath(rules, Path::new("/sys/module/xen_gntalloc/parameters"), read | AccessFs::WriteFile)?;
    }
    for port in &needs.listens {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Adds `rights` below `path`, or on the file there; nothing if there is none.
fn beneath(rules: RulesetCreated, path: &Path, rights: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(opened, rights))
}
