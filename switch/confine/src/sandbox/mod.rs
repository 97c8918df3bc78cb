//! The sandbox of the process that runs a network: a guest or front end that took over a thread of it gets no further.
//!
//! 1. [`Needs`]: files, folders and kinds of ports, from the network's file, with the key `sandbox` for ports that are attached later; not
//!    from its state, which the confined process writes.
//! 2. [`Sandbox::enter`], before the first thread: no new privileges, capabilities dropped ([`rights`]), files by Landlock
//!    ([`files`]). Threads inherit these.
//! 3. [`Sandbox::seal`], when all sockets listen: system calls by seccomp ([`calls`]).
//! 4. [`refusal`]: why a port cannot be attached later; told before the kernel refuses something.
//! 5. [`forwarder`]: the sandbox of another process, which asks resolvers.
//!
//! The [`Helper`], a process outside, makes and removes sockets and the next version of the state file: the confined process changes no file
//! of the host. passt makes its own namespaces and mounts, which Landlock forbids to child processes: the helper starts that of the file's
//! ports. A network with other passt ports in its file has no sandbox, for the helper starts none of these. A successor, on SIGUSR2, is started by a process outside of the sandbox, and confines itself before it reads the
//! description by this one.

mod calls;
mod files;
pub mod forwarder;
mod rights;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memlane_backends::vhost_user::socket;

use crate::config::kinds::{PortKind, Rights, Socket};
use crate::config::later::LaterKind;
use crate::config::metrics::MetricsListener;
use crate::config::web::WebListener;
use crate::config::{Config, UplinkConfig, VxlanConfig};
use crate::folder;
use crate::helper::Helper;
use crate::helper::border::Border;

/// Target of lines of the log, by which operators choose them.
const LOG: &str = "memlane::sandbox";

/// Files and kinds of ports of a network.
#[derive(Debug, Default)]
struct Needs {
    rights: Rights,
    /// Files and folders to read.
    read: Vec<PathBuf>,
    /// TCP ports of metrics and web page.
    listens: Vec<u16>,
    /// Whether the service manager has a socket in the abstract namespace.
    abstract_sockets: bool,
}

impl Needs {
    fn of(config: &Config, file: Option<&Path>, web: Option<&WebListener>) -> Self {
        let mut needs = Self::default();
        for port in &config.ports {
            if Helper::starting_passt(&port.name).is_none() {
                needs.rights = needs.rights.with(port.kind.rights());
            }
        }
        // Without a file, the ports of a network come later.
        let later = file.is_none() || config.later.kinds.contains(&LaterKind::Tap);
        let vxlan = || config.uplinks.iter().filter(|uplink| matches!(uplink, UplinkConfig::Vxlan(_)));
        needs.rights.tap |= later || vxlan().next().is_some();
        needs.rights.nic |= Helper::is_needed_for_nics(config);
        let packet = file.is_none() || config.later.kinds.contains(&LaterKind::AfPacket);
        needs.rights.packet |= packet;
        needs.rights.netns |= later || packet || vxlan().any(|uplink| uplink.netns().is_some());
        needs.rights.xen |= config.xen_vifs || config.later.kinds.contains(&LaterKind::Xen);
        if let Some(MetricsListener::Tcp(address)) = &config.metrics {
            needs.listens.push(address.port());
        }
        if let Some(web) = web {
            needs.listens.push(web.address.port());
            needs.read.extend(web.token.clone());
        }
        // An editor replaces the file, so its folder is readable.
        let read = |file: &Path| if is_shared(file.parent()?) { Some(file.into()) } else { file.parent().map(PathBuf::from) };
        needs.read.extend(file.and_then(read));
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
    rights: Rights,
    /// Sockets that the helper outside of the sandbox makes, and to which it connects.
    border: Border,
    /// The process with the rights that this one lacks.
    helper: &'static Helper,
}

/// The helper by which this process, which is in a sandbox, makes and removes files.
pub fn helper() -> Option<&'static Helper> {
    ALLOWED.get().map(|allowed| allowed.helper)
}

/// The sandbox of this process, entered; system calls are not filtered yet.
#[derive(Debug)]
pub struct Sandbox(Rights);

impl Sandbox {
    /// Whether the network of `config` has one: not if its file announces passt ports that it does not have.
    pub fn fits(config: &Config) -> bool {
        let fits = !config.later.kinds.contains(&LaterKind::Passt);
        if !fits {
            tracing::warn!(
                target: LOG,
                "no sandbox, because the network's file announces passt ports by its key sandbox: passt makes a sandbox of its own, and could not \
                 in this one. Name these ports in the file"
            );
        }
        fits
    }

    /// Confines the process of the network of `config`, and each thread that it starts. `helper` does the rest.
    pub fn enter(config: &Config, file: Option<&Path>, web: Option<&WebListener>, helper: &'static Helper) -> Self {
        let (needs, border) = (Needs::of(config, file, web), Border::of(config, file));
        if let Err(cause) = rights::drop_others(needs.rights) {
            tracing::warn!(target: LOG, %cause, "cannot drop capabilities");
        }
        if let Err(cause) = files::confine(&needs, border.folders()) {
            tracing::warn!(target: LOG, %cause, "cannot confine file access by Landlock");
        }
        let _ = ALLOWED.set(Allowed { rights: needs.rights, border, helper });
        socket::broker_by(Box::new(helper));
        folder::provide_by(Box::new(|path, shared| helper.provide_folder(path, shared)));
        Self(needs.rights)
    }

    /// Filters the system calls of all threads, from now on.
    pub fn seal(self) {
        if let Err(cause) = calls::seal(self.0) {
            tracing::warn!(target: LOG, %cause, "cannot filter system calls by seccomp");
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
    let Allowed { rights, .. } = ALLOWED.get()?;
    match uplink {
        UplinkConfig::Nic(_) => (!rights.nic).then(|| no_rights("NICs as uplinks", "nic")),
        UplinkConfig::Vxlan(VxlanConfig { netns, .. }) => {
            (!rights.tap || netns.is_some() && !rights.netns).then(|| no_rights("uplinks", "tap"))
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
    if let (Some(_), Some(known)) = (kind.passt(), Helper::passt_port(name)) {
        let text = "the helper outside of the sandbox read the arguments of passt at the start: restart the network, or take it over \
                    (`memlane up --takeover`)";
        return (kind != known).then(|| text.into());
    }
    let rights = allowed.rights.with(kind.rights());
    if rights != allowed.rights {
        let place = if rights.netns == allowed.rights.netns { "" } else { " in network namespaces" };
        return Some(no_rights(&format!("{} ports{place}", kind.name()), kind.name()));
    }
    let Socket { path, connect } = kind.socket()?;
    let border = &allowed.border;
    let is_within = if connect { border.may_connect(path) } else { border.may_make(path) };
    let folder = path.parent().filter(|_| !is_within)?.display();
    Some(format!(
        "the sandbox allows no sockets in {folder}, because the network had none there at its start. Choose a path beside another \
         port's socket, or restart it, or take it over (`memlane up --takeover`), with sandbox = {{ folders = [\"{folder}\"] }} in \
         its file or with --sandbox none"
    ))
}

/// Drops all capabilities but those that opening NICs needs.
pub fn keep_rights_for_nics() {
    if let Err(cause) = rights::keep_for_nics() {
        tracing::warn!(target: LOG, %cause, "cannot drop capabilities");
    }
}
