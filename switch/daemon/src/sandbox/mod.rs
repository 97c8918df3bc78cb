//! The sandbox of the process that runs a network: a guest or front end that took over a thread of it gets no further.
//!
//! 1. [`Needs`]: files, folders and kinds of ports, from the network's file and its state at the start, and from the key `sandbox`
//!    for ports that are attached later.
//! 2. [`Sandbox::enter`], before the first thread: no new privileges, capabilities dropped ([`rights`]), files by Landlock
//!    ([`files`]). Threads inherit these.
//! 3. [`Sandbox::seal`], when all sockets listen: system calls by seccomp ([`calls`]).
//! 4. [`refusal`]: why a port cannot be attached later; told before the kernel refuses something.
//!
//! passt makes its own namespaces and mounts, which Landlock forbids to child processes: the [`Helper`] starts it. A network has no sandbox with
//! passt ports that its file does not have, for the helper starts none of these. A successor, on SIGUSR2, is started by a process outside of the sandbox, and confines itself before it reads the
//! description by this one.

mod calls;
mod files;
mod rights;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::RulesetStatus;

use crate::config::later::LaterKind;
use crate::config::metrics::MetricsListener;
use crate::config::web::WebListener;
use crate::config::{Config, PortKind, UplinkConfig, VxlanConfig};
use crate::folder;
use crate::helper::Helper;

/// Kinds of ports that need more than sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kinds {
    /// TAP ports and uplinks.
    tap: bool,
    /// `af-packet` ports.
    packet: bool,
    /// NICs as uplinks, which another process opens.
    nic: bool,
    /// Those of a named network namespace.
    netns: bool,
    passt: bool,
    xen: bool,
}

impl Kinds {
    fn add(&mut self, kind: &PortKind) {
        match kind {
            PortKind::Tap { netns, .. } => (self.tap, self.netns) = (true, self.netns || netns.is_some()),
            PortKind::AfPacket { netns, .. } => (self.packet, self.netns) = (true, self.netns || netns.is_some()),
            PortKind::Passt(_) => self.passt = true,
            PortKind::Xen { .. } => self.xen = true,
            PortKind::VhostUser { .. } | PortKind::Stream { .. } | PortKind::Null | PortKind::Loopback => {}
        }
    }
}

/// Files of a network beside its sockets.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// The network's file, if it has one.
    pub network: Option<&'a Path>,
    /// The state file, if there is to be one.
    pub state: Option<&'a Path>,
}

/// Files and kinds of ports of a network.
#[derive(Debug, Default)]
struct Needs {
    kinds: Kinds,
    /// Files and folders to read.
    read: Vec<PathBuf>,
    /// Folders of sockets.
    sockets: Vec<PathBuf>,
    /// Folder of the state file.
    state: Option<PathBuf>,
    /// TCP ports of metrics and web page.
    listens: Vec<u16>,
    /// Whether the service manager has a socket in the abstract namespace.
    abstract_sockets: bool,
}

impl Needs {
    fn of(config: &Config, files: Files<'_>, web: Option<&WebListener>) -> Self {
        let parent = |path: &Path| path.parent().map(PathBuf::from);
        let mut needs = Self::default();
        for port in &config.ports {
            if Helper::starting_passt(&port.name).is_none() {
                needs.kinds.add(&port.kind);
            }
            if let PortKind::VhostUser { path, connect: false } | PortKind::Stream { path, connect: false, .. } = &port.kind {
                needs.sockets.extend(parent(path));
            }
        }
        // Without a file, the ports of a network come later.
        let later = files.network.is_none() || config.later.kinds.contains(&LaterKind::Tap);
        let vxlan = || config.uplinks.iter().filter(|uplink| matches!(uplink, UplinkConfig::Vxlan(_)));
        needs.kinds.tap |= later || vxlan().next().is_some();
        needs.kinds.nic |= Helper::is_needed_for_nics(config);
        let packet = files.network.is_none() || config.later.kinds.contains(&LaterKind::AfPacket);
        needs.kinds.packet |= packet;
        needs.kinds.netns |= later || packet || vxlan().any(|uplink| uplink.netns().is_some());
        needs.kinds.passt |= config.later.kinds.contains(&LaterKind::Passt);
        needs.kinds.xen |= config.xen_vifs || config.later.kinds.contains(&LaterKind::Xen);
        needs.sockets.extend(config.later.folders.iter().cloned());
        if files.network.is_none() {
            // Paths of its ports are given relative to it; not if it is the whole tree.
            needs.sockets.extend(std::env::current_dir().ok().filter(|folder| folder.parent().is_some()));
        }
        needs.sockets.extend(parent(&config.control_socket(files.network)));
        match &config.metrics {
            Some(MetricsListener::Unix(path, _)) => needs.sockets.extend(parent(path)),
            Some(MetricsListener::Tcp(address)) => needs.listens.push(address.port()),
            None => {}
        }
        if let Some(web) = web {
            needs.listens.push(web.address.port());
            needs.read.extend(web.token.clone());
        }
        // An editor replaces the file, so its folder is readable.
        let read = |file: &Path| if is_shared(file.parent()?) { Some(file.into()) } else { parent(file) };
        needs.read.extend(files.network.and_then(read));
        let state = files.state.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into()));
        needs.state = state.as_deref().and_then(parent);
        needs.abstract_sockets = std::env::var_os("NOTIFY_SOCKET").is_some_and(|name| name.as_bytes().starts_with(b"@"));
        needs
    }
}

/// Whether `folder` has many files beside a network's. Only the network's own file is readable there.
fn is_shared(folder: &Path) -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let shared = ["/", "/etc", "/root", "/tmp"].map(PathBuf::from);
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.into());
    shared.into_iter().chain(home).any(|shared| shared == folder)
}

/// Rights that the sandbox of this process allows; none without one.
static ALLOWED: OnceLock<Allowed> = OnceLock::new();

#[derive(Debug)]
struct Allowed {
    kinds: Kinds,
    /// Whether Landlock confines sockets to these folders.
    folders: Option<Vec<PathBuf>>,
}

/// The sandbox of this process, entered; system calls are not filtered yet.
#[derive(Debug)]
pub struct Sandbox(Kinds);

impl Sandbox {
    /// Confines the process of the network of `config`, which has the ports of its state too, and each thread that it starts; `None`
    /// if a port needs passt.
    pub fn enter(config: &Config, files: Files<'_>, web: Option<&WebListener>) -> Option<Self> {
        let needs = Needs::of(config, files, web);
        if needs.kinds.passt {
            tracing::warn!(
                "no sandbox, because of passt ports that the network's file does not have: passt makes a sandbox of its own, and could not in this one"
            );
            return None;
        }
        // It has to exist for a rule on it; a folder that cannot be made is reported by its first use.
        let _ = folder::make(&folder::runtime());
        if let Err(cause) = rights::drop_others(needs.kinds) {
            tracing::warn!(%cause, "cannot drop capabilities");
        }
        let confined = match files::confine(&needs) {
            Ok(status) => status != RulesetStatus::NotEnforced,
            Err(cause) => {
                tracing::warn!(%cause, "cannot confine file access by Landlock");
                false
            }
        };
        let mut folders = needs.sockets;
        folders.push(folder::runtime());
        let _ = ALLOWED.set(Allowed { kinds: needs.kinds, folders: confined.then_some(folders) });
        Some(Self(needs.kinds))
    }

    /// Filters the system calls of all threads, from now on.
    pub fn seal(self) {
        if let Err(cause) = calls::seal(self.0) {
            tracing::warn!(%cause, "cannot filter system calls by seccomp");
        }
    }
}

/// The remedy if the sandbox keeps the network's `file` from being read.
pub fn hidden(file: &Path) -> Option<String> {
    ALLOWED.get()?;
    let error = std::fs::File::open(file).err().filter(|error| error.kind() == io::ErrorKind::PermissionDenied);
    error.map(|_| {
        ". In a folder of many other files the sandbox reads only the file that was there at the start: keep the network's file in a folder \
         of its own, or restart the network"
            .into()
    })
}

/// Why the sandbox refuses `uplink`, if it does, with the remedy.
pub fn uplink_refusal(uplink: &UplinkConfig) -> Option<String> {
    let Allowed { kinds, .. } = ALLOWED.get()?;
    match uplink {
        UplinkConfig::Nic(_) => (!kinds.nic).then(|| no_rights("NICs as uplinks", "nic")),
        UplinkConfig::Vxlan(VxlanConfig { netns, .. }) => {
            (!kinds.tap || netns.is_some() && !kinds.netns).then(|| no_rights("uplinks", "tap"))
        }
    }
}

fn no_rights(what: &str, kind: &str) -> String {
    format!(
        "the sandbox has no rights for {what}, because the network had none at its start. Restart it, or take it over \
         (`memlane up --takeover`), with one in its file, with sandbox = {{ kinds = [\"{kind}\"] }} in its file, or with --sandbox none"
    )
}

/// Why the sandbox refuses a port of this kind, if it does, with the remedy.
pub fn refusal(name: &str, kind: &PortKind) -> Option<String> {
    let allowed = ALLOWED.get()?;
    if matches!(kind, PortKind::Passt(_)) && Helper::starting_passt(name).is_some() {
        return None;
    }
    let mut kinds = allowed.kinds;
    kinds.add(kind);
    if kinds != allowed.kinds {
        let place = if kinds.netns == allowed.kinds.netns { "" } else { " in network namespaces" };
        return Some(no_rights(&format!("{} ports{place}", kind.name()), kind.name()));
    }
    let (PortKind::VhostUser { path, connect: false } | PortKind::Stream { path, connect: false, .. }) = kind else { return None };
    let folder = path.parent()?;
    let known = allowed.folders.as_ref()?;
    let canonical = |folder: &Path| folder.canonicalize().unwrap_or_else(|_| folder.into());
    let own = canonical(folder);
    let is_known = known.iter().any(|known| own.starts_with(canonical(known)));
    (!is_known).then(|| {
        let folder = folder.display();
        format!(
            "the sandbox allows no sockets in {folder}, because the network had none there at its start. Choose a path beside another \
             port's socket, or restart it, or take it over (`memlane up --takeover`), with sandbox = {{ folders = [\"{folder}\"] }} in \
             its file or with --sandbox none"
        )
    })
}

/// Drops all capabilities but those that opening NICs needs.
pub(crate) fn keep_rights_for_nics() {
    if let Err(cause) = rights::keep_for_nics() {
        tracing::warn!(%cause, "cannot drop capabilities");
    }
}

/// Has the kernel answer as one without Landlock.
///
/// # Errors
/// The kernel refuses the filter.
#[cfg(test)]
pub(crate) fn hide_landlock() -> io::Result<()> {
    calls::hide(&[libc::SYS_landlock_create_ruleset])
}
