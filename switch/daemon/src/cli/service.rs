//! Notifications to the service manager (sd_notify(3)): readiness, reloads and the end, for units with `Type=notify` or `Type=notify-reload`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::time::{ClockId, clock_gettime};

use crate::control::Managed;

/// The service manager that has started this process, if any has.
#[derive(Clone, Debug)]
pub(super) struct ServiceManager(Option<SocketAddr>);

impl ServiceManager {
    /// The one of this process (`NOTIFY_SOCKET`).
    pub(super) fn of_this_process() -> Self {
        Self(std::env::var_os("NOTIFY_SOCKET").and_then(|name| address(&name).ok()))
    }

    /// The network is up, or a reload of its file has ended.
    pub(super) fn ready(&self, managed: &Managed) {
        if self.0.is_some() {
            self.tell(&format!("READY=1\nSTATUS={}", status(managed)));
        }
    }

    /// A reload of the file begins.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
    }

    /// The network ends.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, text: &str) {
        let Some(address) = &self.0 else { return };
        let send = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to_addr(text.as_bytes(), address)
        };
        if let Err(cause) = send() {
            tracing::warn!(%cause, "cannot notify the service manager of {}", text.lines().next().unwrap_or_default());
        }
    }
}

/// The address in `NOTIFY_SOCKET`: a path, or a name in the abstract namespace after an @.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(name),
    }
}

/// The ports by their states, in one line.
fn status(managed: &Managed) -> String {
    let ports = managed.ports().unwrap_or_default();
    let count = |state: &str| ports.iter().filter(|port| port.state == state).count();
    format!("{} ports, {} running, {} quarantined", ports.len(), count("running"), count("quarantined"))
}
