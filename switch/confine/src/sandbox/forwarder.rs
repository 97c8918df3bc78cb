//! The sandbox of a [forwarder](crate::forwarder): sockets of UDP and TCP, and no file. An answer of a resolver that took it over would get the
//! network of this user, and a question's port, and nothing else of the host.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use landlock::{Access as _, AccessFs, AccessNet, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope};
use nix::sys::resource::{Resource, setrlimit};

use super::files::NEWEST;
use super::{calls, rights};
use crate::forwarder::MOST;

/// Descriptors beside those of questions.
const OTHERS: u64 = 32;

/// Target of lines of the log, by which operators choose them.
const LOG: &str = "memlane::sandbox::forwarder";

/// Confines this process, which has one thread, to sockets by which it asks `resolvers`.
pub fn confine(resolvers: &[SocketAddr]) {
    let descriptors = MOST as u64 + OTHERS;
    if let Err(cause) = setrlimit(Resource::RLIMIT_NOFILE, descriptors, descriptors) {
        tracing::warn!(target: LOG, %cause, "cannot limit the open files of the forwarder");
    }
    if let Err(cause) = rights::drop_all() {
        tracing::warn!(target: LOG, %cause, "cannot drop capabilities");
    }
    if let Err(cause) = files(resolvers) {
        tracing::warn!(target: LOG, %cause, "cannot confine the forwarder by Landlock");
    }
    if let Err(cause) = calls::seal_forwarder() {
        tracing::warn!(target: LOG, %cause, "cannot filter the system calls of the forwarder by seccomp");
    }
}

/// No file, no listening TCP socket, and connections by TCP to the ports of resolvers only.
fn files(resolvers: &[SocketAddr]) -> Result<(), RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let ports: BTreeMap<u16, ()> = resolvers.iter().map(|address| (address.port(), ())).collect();
    for port in ports.into_keys() {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    rules.restrict_self().map(drop)
}
