//! Notifications to the service manager (sd_notify(3)): readiness, reloads and the end, for units with `Type=notify` or `Type=notify-reload`;
//! keep-alive messages, for units with `WatchdogSec=`; sockets to be kept over a restart, for units with `FileDescriptorStoreMax=`.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use memlane_backends::vhost_user::kept;
use memlane_observe::events;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, getsockopt, sendmsg, sockopt};
use nix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;

use crate::control::Managed;
use crate::control::health::stuck;
use crate::description::SavedService;
use crate::quantity::counted;
use crate::system;

/// The service manager that has started this process, or the one from which it took the network over, if any has.
#[derive(Clone, Debug)]
pub(super) struct ServiceManager {
    environment: SavedService,
    address: Option<UnixAddr>,
    /// The interval of its watchdog.
    interval: Option<Duration>,
}

impl ServiceManager {
    /// The one of this process (`NOTIFY_SOCKET`).
    pub(super) fn of_this_process() -> Self {
        let of = |name: &str| std::env::var(name).ok();
        let interval = interval(of);
        let watchdog = of("WATCHDOG_USEC").filter(|_| interval.is_some());
        Self { interval, ..Self::of(SavedService { socket: of("NOTIFY_SOCKET"), watchdog }) }
    }

    /// The one of the process that served the network before.
    pub(super) fn of(environment: SavedService) -> Self {
        let address = environment.socket.as_ref().and_then(|name| address(name).ok());
        let interval = interval(|name| environment.watchdog.clone().filter(|_| name == "WATCHDOG_USEC"));
        Self { environment, address, interval }
    }

    /// How a process that takes the network over finds it.
    pub(super) fn environment(&self) -> &SavedService {
        &self.environment
    }

    /// Another process has taken the network over.
    pub(super) fn main_process(&self, pid: i32) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// The network is up, or a reload of its file has ended. Returns the status line that was told.
    pub(super) fn ready(&self, managed: &Managed) -> Option<String> {
        self.address.as_ref()?;
        let line = status(managed);
        self.tell(&format!("READY=1\nSTATUS={line}"));
        Some(line)
    }

    /// The network is up. Keeps the status line (`STATUS`) current from now on: by a notification after events, and one notification in
    /// [`STATUS_INTERVAL`] at most. A network without events sends no notification, and wakes nothing. Ends with `managed`.
    pub(super) fn begin(&self, managed: &Arc<Managed>) {
        // Before the first line is told: no event falls between both.
        let reader = self.address.as_ref().and_then(|_| managed.events(events::From::Now).ok());
        let (Some(mut told), Some(mut reader)) = (self.ready(managed), reader) else { return };
        let (manager, managed) = (self.clone(), Arc::downgrade(managed));
        tokio::spawn(async move {
            loop {
                reader.added().await;
                tokio::time::sleep(STATUS_INTERVAL).await;
                while !reader.take(EVENTS).records.is_empty() {}
                let Some(managed) = managed.upgrade() else { return };
                let Ok(now) = tokio::task::spawn_blocking(move || status(&managed)).await else { return };
                if now != told {
                    manager.tell(&format!("STATUS={now}"));
                    told = now;
                }
            }
        });
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

    /// Sends keep-alive messages from now on, if the service manager expects them (`WATCHDOG_USEC`): every six tenths of its interval, and only
    /// if each worker and the control thread, which runs `control`, have answered within three tenths of it. So a message that is due is never
    /// late, and idle workers wake at most twice in an interval. Ends with `managed`.
    pub(super) fn keep_alive(&self, managed: Weak<Managed>, control: Handle) -> io::Result<()> {
        let (Some(interval), Some(_)) = (self.interval, &self.address) else { return Ok(()) };
        let (manager, tenth) = (self.clone(), interval / 10);
        let watch = move || {
            let mut due = Instant::now();
            while let Some(managed) = managed.upgrade() {
                manager.check(&managed, &control, 3 * tenth);
                drop(managed);
                // After a check that took longer, its time is not made up for.
                due = (due + 6 * tenth).max(Instant::now());
                std::thread::sleep(due - Instant::now());
            }
        };
        std::thread::Builder::new().name("health".into()).stack_size(256 * 1024).spawn(watch).map(drop)
    }

    fn check(&self, managed: &Managed, control: &Handle, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (tell, answer) = mpsc::channel();
        control.spawn(async move { tell.send(()) });
        // A network that ends sends no keep-alive messages; the manager expects none then.
        let Ok(silent) = managed.silent_workers(timeout) else { return };
        if !silent.is_empty() {
            tracing::error!("no keep-alive message to the service manager: {}", stuck(&silent, timeout));
        } else if answer.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {
            self.tell("WATCHDOG=1");
        }
    }

    /// Has it keep the sockets of ports over a restart, if its descriptor store has room (`FDSTORE`), and takes those that it has kept.
    pub(super) fn keep_sockets(&self) {
        let room = std::env::var("FDSTORE").ok().and_then(|room| room.parse().ok()).unwrap_or(0);
        if self.address.is_some() && room > 0 {
            let manager = self.clone();
            kept::begin(kept_sockets(), room, Box::new(move |text, socket| manager.tell_with(text, socket)));
        }
    }

    fn tell(&self, text: &str) {
        self.tell_with(text, None);
    }

    /// Sends `text`, with a descriptor; false if it cannot be sent.
    fn tell_with(&self, text: &str, file: Option<BorrowedFd>) -> bool {
        let Some(address) = &self.address else { return false };
        let send = || {
            let socket = UnixDatagram::unbound()?;
            match file {
                // Many at the start: the manager reads them one by one.
                Some(_) => socket.set_write_timeout(Some(STORED))?,
                None => socket.set_nonblocking(true)?,
            }
            // Not connected first: in the sandbox, seccomp refuses this system call.
            let files: Vec<_> = file.iter().map(AsRawFd::as_raw_fd).collect();
            let rights = [ControlMessage::ScmRights(&files)];
            let rights = if files.is_empty() { &[][..] } else { &rights };
            let sent = sendmsg(socket.as_raw_fd(), &[IoSlice::new(text.as_bytes())], rights, MsgFlags::empty(), Some(address));
            sent.map_err(io::Error::from)
        };
        let sent = send();
        if let Err(cause) = &sent {
            tracing::warn!(%cause, "cannot notify the service manager of {}", text.lines().next().unwrap_or_default());
        }
        sent.is_ok()
    }
}

/// Shortest interval between two notifications of the status line.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Events that are passed over at a time.
const EVENTS: usize = 256;

/// Timeout of the service manager to take a socket into its store.
const STORED: Duration = Duration::from_secs(1);

/// Number of the first descriptor that the service manager passes (sd_listen_fds(3)).
const FIRST: i32 = 3;

/// The socket called `name` that the service manager has passed to this process, by a socket unit with `FileDescriptorName=`.
pub(super) fn passed_socket(name: &str) -> Option<OwnedFd> {
    let of = |name: &str| std::env::var(name).ok();
    system::passed(number(name, of)?)
}

fn number(name: &str, of: impl Fn(&str) -> Option<String>) -> Option<i32> {
    Some(passed(of)?.into_iter().find(|(known, _)| known == name)?.1)
}

/// Names and numbers of the descriptors that the service manager has passed to this process.
fn passed(of: impl Fn(&str) -> Option<String>) -> Option<Vec<(String, i32)>> {
    let own = of("LISTEN_PID")? == std::process::id().to_string();
    let count: usize = of("LISTEN_FDS")?.parse().ok()?;
    let names = of("LISTEN_FDNAMES").filter(|_| own)?;
    Some(names.split(':').take(count).map(str::to_owned).zip(FIRST..).collect())
}

/// Listening sockets of ports, with their names, from the descriptor store of the service manager.
fn kept_sockets() -> Vec<(String, UnixListener)> {
    let passed = passed(|name| std::env::var(name).ok()).unwrap_or_default();
    let kept = passed.into_iter().filter(|(name, _)| name.starts_with(kept::PREFIX));
    let sockets = kept.filter_map(|(name, number)| Some((name, system::passed(number)?)));
    let listening = sockets.filter(|(_, socket)| getsockopt(socket, sockopt::AcceptConn).is_ok_and(|listens| listens));
    listening.map(|(name, socket)| (name, socket.into())).collect()
}

/// The address in `NOTIFY_SOCKET`: a path, or a name in the abstract namespace after an @.
fn address(name: &str) -> nix::Result<UnixAddr> {
    match name.strip_prefix('@') {
        Some(name) => UnixAddr::new_abstract(name.as_bytes()),
        None => UnixAddr::new(name),
    }
}

/// The interval of the service manager's watchdog, from the environment `of` this process (sd_watchdog_enabled(3)).
fn interval(of: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    if of("WATCHDOG_PID").is_some_and(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    let microseconds: u64 = of("WATCHDOG_USEC")?.parse().ok()?;
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

/// The status line of a notification: the ports by their states, and whether changes are not saved.
fn status(managed: &Managed) -> String {
    let ports = managed.ports().unwrap_or_default();
    let count = |state: &str| ports.iter().filter(|port| port.state == state).count();
    let unsaved = if managed.unsaved().is_some() { "; changes are not saved" } else { "" };
    format!("{}, {} running, {} quarantined{unsaved}", counted(ports.len(), "port"), count("running"), count("quarantined"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let own = std::process::id().to_string();
        let asked = |pid: Option<&str>, usec: Option<&str>| {
            interval(|name| if name == "WATCHDOG_PID" { pid } else { usec }.map(str::to_owned))
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!([asked(None, Some("1000000")), asked(Some(&own), Some("1000000"))], [second, second]);
        assert_eq!(
            [asked(Some("1"), Some("1000000")), asked(None, None), asked(None, Some("0")), asked(None, Some("x"))],
            [None; 4]
        );
    }

    #[test]
    fn a_passed_socket_is_found_by_its_name() {
        let own = std::process::id().to_string();
        let found = |name: &str, pid: &str, count: &str, names: &str| {
            number(name, |key| {
                Some(match key {
                    "LISTEN_PID" => pid.to_owned(),
                    "LISTEN_FDS" => count.into(),
                    _ => names.into(),
                })
            })
        };
        assert_eq!([found("metrics", &own, "2", "x:metrics"), found("x", &own, "2", "x:metrics")], [Some(4), Some(3)]);
        let none = [
            found("metrics", "1", "1", "metrics"),
            found("metrics", &own, "1", "x:metrics"),
            found("metrics", &own, "many", "metrics"),
            found("metrics", &own, "1", ""),
        ];
        assert_eq!(none, [None; 4]);
        assert_eq!(number("metrics", |_| None), None);
    }
}
