//! The network that a command is for.

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use crate::config::{Config, PortConfig, default_control};
use crate::control::blocked::BlockedQueues;
use crate::control::causes::PortCauses;
use crate::control::client::name_in_path;
use crate::control::identity::NetFile;
use crate::control::running;
use crate::control::{Client, ControlError, PortReport, PortView, Report};

/// Name of a network without a file.
pub const DEFAULT_NAME: &str = "memlane";

/// Names a network, for commands about all of it.
#[derive(Clone, Debug, Default, Args)]
pub struct Net {
    /// The network: its file, or its name while it runs; by default the network "memlane", which `memlane up` runs without a file, or else the
    /// only one that runs.
    pub net: Option<PathBuf>,
    /// The control socket to ask.
    #[command(flatten)]
    pub socket: Socket,
}

/// Names a port of a network.
#[derive(Clone, Debug, Default, Args)]
pub struct PortOfNet {
    /// The network: its file, or its name while it runs; by default the network "memlane", which `memlane up` runs without a file, or else the
    /// only one that runs.
    pub net: Option<PathBuf>,
    /// Name of the port.
    pub port: String,
    /// The control socket to ask.
    #[command(flatten)]
    pub socket: Socket,
}

/// The control socket to ask.
#[derive(Clone, Debug, Default, Args)]
pub struct Socket {
    /// Control socket of the network, where it is not at its usual place.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Meaning of the argument that names a network.
#[derive(Debug, PartialEq, Eq)]
enum Named<'p> {
    File(&'p Path),
    Socket(&'p Path),
    Name(&'p str),
}

fn named(net: Option<&Path>) -> Named<'_> {
    let Some(path) = net else { return Named::Name(DEFAULT_NAME) };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => Named::Socket(path),
        Ok(metadata) if !metadata.is_dir() => Named::File(path),
        // Neither an existing file nor the path of one: a name.
        _ => match path.to_str() {
            Some(name) if !looks_like_a_file(name) => Named::Name(name),
            _ => Named::File(path),
        },
    }
}

fn looks_like_a_file(word: &str) -> bool {
    word.contains('/') || word.ends_with(".toml")
}

/// Prints a note to standard error.
fn tell(text: &str) {
    // If standard error is closed, the command has succeeded all the same.
    let _ = writeln!(std::io::stderr(), "memlane: {text}");
}

impl Net {
    /// The client of the network's control socket.
    ///
    /// # Errors
    /// The file is no network's, or several networks have the name.
    pub fn client(&self) -> Result<Client, Failure> {
        let named = named(self.net.as_deref());
        let socket = match (&self.socket.control, &named) {
            (Some(control), _) => control.clone(),
            (None, Named::File(path)) => socket_of(path)?,
            (None, Named::Socket(path)) => path.to_path_buf(),
            (None, Named::Name(name)) => socket_called(name, self.net.is_none())?,
        };
        let file = match named {
            // Without a file, the network's own file is not compared.
            Named::File(path) => NetFile::at(path).ok(),
            Named::Socket(_) | Named::Name(_) => None,
        };
        Ok(Client::new(&socket).telling(tell).about(file).hinting(running::hint))
    }

    /// File of the network, if the argument names one.
    pub fn file(&self) -> Option<&Path> {
        match named(self.net.as_deref()) {
            Named::File(path) => Some(path),
            Named::Socket(_) | Named::Name(_) => None,
        }
    }

    /// Whether its argument is a file, a socket, or the name of a network that runs; else it may be the name of a port.
    pub fn is_one(&self) -> bool {
        match named(self.net.as_deref()) {
            Named::File(_) | Named::Socket(_) => true,
            Named::Name(name) => self.socket.control.is_none() && !running::called(name).is_empty(),
        }
    }

    /// The network's report.
    ///
    /// # Errors
    /// The network does not run, or does not answer.
    pub fn report(&self) -> Result<Report, Failure> {
        Ok(self.client()?.get("/v1/network")?)
    }

    /// The network's report, with the transmit queues that are blocked at this moment and the causes that keep ports from their work.
    ///
    /// # Errors
    /// The network does not run, or does not answer.
    pub fn report_of_this_moment(&self) -> Result<Report, Failure> {
        let client = self.client()?;
        let mut report: Report = client.get("/v1/network")?;
        mark_causes(&client, &mut report.ports);
        // A network of an earlier version does not tell them.
        let mut blocked: BlockedQueues = client.get("/v1/blocked").unwrap_or_default();
        report.ports.iter_mut().for_each(|port| port.blocked = blocked.remove(&port.name).unwrap_or_default());
        Ok(report)
    }
}

/// Adds the worst present cause of each port, as the workers tell it.
pub fn mark_causes(client: &Client, ports: &mut [PortReport]) {
    // A network of an earlier version does not tell them.
    let causes: Vec<PortCauses> = client.get("/v1/why").unwrap_or_default();
    for port in ports {
        let found = causes.iter().find(|causes| causes.port == port.name);
        port.present_cause = found.and_then(PortCauses::worst).or(port.present_cause);
    }
}

/// The control socket of the network of `file`: if it runs, that of the process, even if the file has changed.
fn socket_of(file: &Path) -> Result<PathBuf, Failure> {
    match running::of_file(file) {
        Some(socket) => Ok(socket),
        None => Ok(Config::load(file)?.control_socket(Some(file))),
    }
}

/// The control socket of the network called `name`; without one of the usual name, `by_default`, that of the only network that runs.
fn socket_called(name: &str, by_default: bool) -> Result<PathBuf, Failure> {
    let usual = default_control(name, None);
    let mut sockets = running::called(name);
    if let (true, Some(only)) = (by_default && sockets.is_empty(), running::only_one()) {
        return Ok(only);
    }
    if sockets.len() > 1 && name == DEFAULT_NAME {
        sockets.retain(|socket| *socket == usual);
    }
    match &mut sockets[..] {
        [] => Ok(usual),
        [socket] => Ok(std::mem::take(socket)),
        _ => {
            let told: Vec<String> = running::identify(sockets).iter().map(|running| running.identity.told()).collect();
            let text = format!("more than one network is called {name}: {}", told.join(", "));
            Err(Failure::Running(format!("{text}. Name one by its file, or its control socket by --control")))
        }
    }
}

impl PortOfNet {
    /// The port that the arguments NET and PORT name; `None` if they name a network alone, or nothing. A single one names a port if it
    /// `must`, or else if no network is called so: of the network without a file, which is the usual one, or of one that is given by its
    /// socket.
    pub fn of_arguments((first, second): (Option<&String>, Option<&String>), socket: &Socket, must: bool) -> Option<Self> {
        let net = |net: Option<&String>| net.map(PathBuf::from);
        let of = |first, port: &String| Some(Self { net: net(first), port: port.clone(), socket: socket.clone() });
        match (first, second) {
            (first, Some(port)) => of(first, port),
            (Some(word), None) if must || !(Net { net: net(first), socket: socket.clone() }).is_one() => of(None, word),
            _ => None,
        }
    }

    /// The network; an argument that looks like a file is refused here, since it would be taken for the name of a port.
    ///
    /// # Errors
    /// The name of the port is missing.
    pub fn net(&self) -> Result<Net, Failure> {
        if self.net.is_none() && looks_like_a_file(&self.port) {
            let text =
                format!("'{0}' is the file of a network, and the name of the port is missing: add it, as in `{0} web`", self.port);
            return Err(Failure::Configuration(text));
        }
        Ok(Net { net: self.net.clone(), socket: self.socket.clone() })
    }

    /// The port's path at the control socket, with `rest` appended.
    pub fn uri(&self, rest: &str) -> String {
        format!("/v1/ports/{}{rest}", name_in_path(&self.port))
    }

    /// The port's report.
    ///
    /// # Errors
    /// The network does not run, or has no such port.
    pub fn view(&self) -> Result<PortView, Failure> {
        Ok(self.net()?.client()?.get(&self.uri(""))?)
    }

    /// The port and the name of its network: from the network if it runs, else from its file.
    ///
    /// # Errors
    /// Neither has the port.
    pub fn find(&self) -> Result<(PortConfig, String), Failure> {
        let net = self.net()?;
        let found = net.client()?.get::<PortView>(&self.uri(""));
        match (found, net.file()) {
            (Ok(view), _) => {
                let entry = serde_json::to_value(&view.entry).map_err(Failure::running)?;
                Ok((PortConfig::from_json(&entry, Path::new(""))?, net.report()?.name))
            }
            (Err(ControlError::Unreachable { .. }), Some(file)) => {
                let config = Config::load(file)?;
                let Some(port) = config.port(&self.port) else {
                    return Err(Failure::Configuration(unknown(
                        &file.display(),
                        &self.port,
                        config.ports.iter().map(|port| &port.name),
                    )));
                };
                Ok((port.clone(), config.name))
            }
            (Err(ControlError::Refused(refusal)), _) if refusal.status == axum::http::StatusCode::NOT_FOUND => {
                let report = net.report()?;
                let names = report.ports.iter().map(|port| &port.name);
                Err(Failure::Configuration(unknown(&format_args!("the network {}", report.name), &self.port, names)))
            }
            (Err(error), _) => Err(error.into()),
        }
    }
}

fn unknown<'n>(what: &dyn std::fmt::Display, port: &str, names: impl Iterator<Item = &'n String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let names = if names.is_empty() { "it has none".into() } else { format!("its ports are {}", names.join(", ")) };
    format!("{what} has no port '{port}'; {names}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_named_by_a_file_a_socket_or_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("net.toml"), folder.path().join("x"));
        std::fs::write(&file, "").unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(named(Some(&file)), Named::File(&file));
        assert_eq!(named(Some(&socket)), Named::Socket(&socket));
        assert_eq!(named(Some(Path::new("no-such-net"))), Named::Name("no-such-net"));
        for missing in ["missing.toml", "no/such"] {
            assert_eq!(named(Some(Path::new(missing))), Named::File(Path::new(missing)));
        }
        assert_eq!(named(None), Named::Name("memlane"));
    }
}
