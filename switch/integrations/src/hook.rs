//! `memlane hook`: attaches a guest's ports before it starts, and detaches them when it has ended: the hook of libvirt, and the hook script
//! of Proxmox VE.
//!
//! A vhost-user socket `/run/memlane/NETWORK.PORT.sock` asks for port PORT of the network `/etc/memlane/NETWORK.toml`. A port that the
//! network has at this socket stays as it is. The guest's name is the label of the ports' origin, by which they are found at its end,
//! also those of a hook that was killed. The hook of a guest without such a socket always succeeds: a hook that fails keeps a domain of
//! libvirt from its start.

mod guests;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::StatusCode;
use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::keys::Keys;
use super::{Failure, output};
use crate::config::claim::place;
use crate::config::{Attacher, Config, PortEntry, PortOrigin};
use crate::control::running::{self, Running};
use crate::control::{Client, ControlError, PortReport, PortView};
use guests::Wanted;

const TIMEOUT: Duration = Duration::from_secs(30);
const MOST_BYTES: u64 = 16 << 20;

/// Arguments of `memlane hook`.
#[derive(Debug, Args)]
pub struct Hook {
    #[command(subcommand)]
    of: Of,
}

#[derive(Debug, Subcommand)]
enum Of {
    /// The hook of libvirt for QEMU: the domain's XML is standard input.
    Libvirt(Call),
    /// The hook script of Proxmox VE: the machine's sockets are found by `qm config`.
    Proxmox(Call),
}

/// A call by the guest's manager.
#[derive(Debug, Args)]
struct Call {
    /// Folder of networks' files.
    #[arg(long, value_name = "FOLDER", default_value = "/etc/memlane")]
    networks: PathBuf,
    /// Folder of the sockets.
    #[arg(long, value_name = "FOLDER", default_value = "/run/memlane")]
    sockets: PathBuf,
    /// Group that may connect to the sockets, unless the network's file has `access`.
    #[arg(long, value_name = "GROUP", default_value = "memlane")]
    group: String,
    /// The guest and the phase, as its manager states them.
    #[arg(required = true, num_args = 2.., trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<std::ffi::OsString>,
}

impl Hook {
    /// Attaches or detaches the guest's ports, as the phase says.
    ///
    /// # Errors
    /// A guest with ports of networks that do not take them.
    pub fn run(&self) -> Result<(), Failure> {
        let (call, attacher) = match &self.of {
            Of::Libvirt(call) => (call, Attacher::Libvirt),
            Of::Proxmox(call) => (call, Attacher::Proxmox),
        };
        let [guest, phase] = [0, 1].map(|index| call.arguments.get(index).map(|word| word.to_string_lossy().into_owned()));
        let (guest, phase) = (guest.unwrap_or_default(), phase.unwrap_or_default());
        let origin = PortOrigin::labelled(attacher, &guest);
        let done = match (&phase[..], attacher) {
            ("prepare", Attacher::Libvirt) => {
                guests::of_domain(&standard_input(), &call.sockets).and_then(|ports| call.attach(&origin, &ports))
            }
            ("pre-start", Attacher::Proxmox) => {
                guests::of_proxmox(&guest, &call.sockets).and_then(|ports| call.attach(&origin, &ports))
            }
            ("release", Attacher::Libvirt) | ("post-stop", Attacher::Proxmox) => call.detach(&origin),
            _ => Ok(()),
        };
        done.map_err(|cause| Failure::Running(format!("guest {guest:?}: {}", cause.replace('\n', " "))))
    }
}

fn standard_input() -> String {
    let mut bytes = Vec::new();
    // Of a description that is cut off, the rest is no XML.
    let _ = std::io::stdin().take(MOST_BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Call {
    /// Attaches those of the ports that are not there yet.
    fn attach(&self, origin: &PortOrigin, ports: &[Wanted]) -> Result<(), String> {
        for (index, port) in ports.iter().enumerate() {
            if ports[..index].iter().any(|before| before.socket == port.socket) {
                let socket = port.socket.display();
                return Err(format!("two interfaces have the socket {socket}, which is for one: give each its own port"));
            }
        }
        ports.iter().try_for_each(|port| self.attach_one(origin, port))
    }

    fn attach_one(&self, origin: &PortOrigin, port: &Wanted) -> Result<(), String> {
        let Wanted { network, name, socket, .. } = port;
        let file = self.networks.join(format!("{network}.toml"));
        let control = running::of_file(&file).ok_or_else(|| {
            format!(
                "network {network} of {} does not run, and the guest needs its port {name}: systemctl start memlane@{network}",
                file.display()
            )
        })?;
        let client = Client::new(&control).within(TIMEOUT);
        match client.get::<PortView>(&port.uri()) {
            Ok(view) if Path::new(&view.report.place) == socket => return Ok(()),
            Ok(view) => {
                let (place, socket) = (view.report.place, socket.display());
                return Err(format!(
                    "port {name} of network {network} is at {place} and not at {socket}: give the guest another port"
                ));
            }
            Err(ControlError::Refused(refusal)) if refusal.status == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(format!("network {network}: {error}")),
        }
        let entry = self.keys(port, &file).checked().map_err(|failure| match failure {
            Failure::Running(text) | Failure::Configuration(text) => text,
            Failure::Lacking => String::new(),
        })?;
        client.attach(entry, origin).map(drop).map_err(|error| format!("network {network}: port {name}: {error}"))
    }

    fn keys(&self, port: &Wanted, file: &Path) -> Keys {
        let mut keys = Keys::default();
        keys.state("name", json!(port.name));
        keys.state("vhost-user", json!(port.socket));
        // Otherwise it has the file's.
        let has_access = Config::load(file).is_ok_and(|config| config.access != Default::default());
        keys.state("access", if has_access { Value::Null } else { json!({ "group": self.group }) });
        port.keys.iter().for_each(|(key, text)| keys.written(key, Some(text)));
        keys
    }

    /// Detaches all ports of this origin from the networks that run. Only a port that cannot be detached is an error.
    fn detach(&self, origin: &PortOrigin) -> Result<(), String> {
        let networks = place(&self.networks);
        let is_ours = |running: &Running| running.identity.file.as_ref().is_some_and(|file| file.path.parent() == Some(&networks));
        let mut outcome = Ok(());
        for running in running::all().iter().filter(|running| is_ours(running)) {
            let (name, client) = (&running.identity.name, Client::new(&running.control).within(TIMEOUT));
            let ports: Vec<PortReport> = match client.get("/v1/ports") {
                Ok(ports) => ports,
                Err(error) => {
                    output::note(&format!("network {name}: {error}"));
                    continue;
                }
            };
            for port in ports.iter().filter(|port| port.origin.as_ref() == Some(origin)) {
                let uri = guests::uri(&port.name);
                let detached = match client.ask::<PortEntry>(Method::DELETE, &uri, None::<&()>) {
                    Err(ControlError::Refused(refusal)) if refusal.status == StatusCode::NOT_FOUND => Ok(()),
                    detached => detached.map(drop).map_err(|error| format!("network {name}: port {}: {error}", port.name)),
                };
                outcome = outcome.and(detached);
            }
        }
        outcome
    }
}
