//! `memlane extcap`: networks and ports as interfaces of Wireshark and tshark (extcap), each captured as `memlane capture` does.
//!
//! Wireshark runs each program of its extcap folder: for its interfaces, for their link types and options, and to capture into a
//! named pipe. The options of this interface are Wireshark's.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use super::capture::{Capture, compiled};
use super::output;
use crate::control::running::{self, Running};
use crate::control::{Client, Report};
use crate::tap::MOST_SNAPLEN;

/// Name under which the program is an extcap program without further arguments.
const PROGRAM: &str = "memlane-extcap";

/// Arguments of `memlane extcap`, as Wireshark gives them.
#[derive(Debug, Args)]
pub(super) struct Extcap {
    /// List the interfaces: each network that runs, and each of its ports.
    #[arg(long = "extcap-interfaces")]
    interfaces: bool,
    /// Version of Wireshark; alone, print the version of this program.
    #[arg(long = "extcap-version", value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    version: Option<String>,
    /// The interface that other options are about.
    #[arg(long = "extcap-interface", value_name = "INTERFACE")]
    interface: Option<String>,
    /// List the link types of the interface.
    #[arg(long = "extcap-dlts", requires = "interface")]
    dlts: bool,
    /// List the options of the interface.
    #[arg(long = "extcap-config", requires = "interface")]
    config: bool,
    /// Capture.
    #[arg(long, requires = "interface", requires = "fifo")]
    capture: bool,
    /// Named pipe of the capture.
    #[arg(long, value_name = "PATH")]
    fifo: Option<PathBuf>,
    /// The filter, in the language of pcap-filter(7); without --capture it is checked.
    #[arg(long = "extcap-capture-filter", value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only frames that are dropped; each has its reason as a comment.
    #[arg(long)]
    drops: bool,
    /// Most bytes of a frame.
    #[arg(long, value_name = "BYTES", default_value_t = MOST_SNAPLEN, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_SNAPLEN)))]
    snaplen: u32,
}

/// An interface: a network, or a port of it.
#[derive(Debug, PartialEq, Eq)]
struct Interface {
    value: String,
    display: String,
    control: PathBuf,
    port: Option<String>,
}

/// The arguments of this process, with the command `extcap` that Wireshark does not write: the program has the name
/// memlane-extcap, or the first argument is one of Wireshark's.
pub(super) fn arguments(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    let first = arguments.get(1).and_then(|first| first.to_str()).unwrap_or_default();
    let is_named = name.is_some_and(|name| name == PROGRAM) && first != "extcap";
    if is_named || first.starts_with("--extcap-") || first == "--capture" {
        arguments.insert(1, "extcap".into());
    }
    arguments
}

impl Extcap {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.interface {
            _ if self.interfaces => output::print(&listed(&interfaces(own_networks()))),
            Some(_) if self.dlts => output::print("dlt {number=1}{name=EN10MB}{display=Ethernet}\n"),
            Some(_) if self.config => output::print(&options()),
            Some(interface) if self.capture => self.capture(interface),
            // Wireshark shows the printed text; no text means that the filter is valid.
            _ if !self.filter.is_empty() => match compiled(&self.filter, self.snaplen) {
                Err(Failure::Configuration(text)) => output::print(&format!("{text}\n")),
                other => other.map(drop),
            },
            _ if self.version.is_some() => output::print(&head()),
            _ => Err(Failure::Configuration(
                "this command is for Wireshark: link memlane into its folder for extcap programs, under the name memlane-extcap"
                    .into(),
            )),
        }
    }

    fn capture(&self, value: &str) -> Result<(), Failure> {
        let found = interfaces(own_networks()).into_iter().find(|interface| interface.value == value);
        let Some(Interface { control, port, .. }) = found else {
            return Err(Failure::Running(format!("no network that runs has the interface '{value}': `memlane list` shows them")));
        };
        let fifo = self.fifo.clone().unwrap_or_default();
        Capture::into_fifo(control, port, self.drops, &self.filter, self.snaplen, fifo).run()
    }
}

/// Networks of this user that run, and the names of their ports.
fn own_networks() -> Vec<(Running, Vec<String>)> {
    let own = nix::unistd::geteuid().as_raw();
    let networks = running::all().into_iter().filter(|running| running.user == own);
    // A network that ends meanwhile has no ports.
    let ports = |running: &Running| {
        let report = Client::new(&running.control).get::<Report>("/v1/network");
        report.map_or_else(|_| Vec::new(), |report| report.ports.into_iter().map(|port| port.name).collect())
    };
    networks.map(|running| (ports(&running), running)).map(|(ports, running)| (running, ports)).collect()
}

/// The interfaces of these networks. Where two would have one name, that of the later one ends with the number of its process.
fn interfaces(networks: Vec<(Running, Vec<String>)>) -> Vec<Interface> {
    let mut taken = HashSet::new();
    let mut found = Vec::new();
    for (Running { identity, control, .. }, ports) in networks {
        let (name, pid) = (&identity.name, identity.pid);
        let mut add = |value: String, display: String, port: Option<String>| {
            let value = if taken.contains(&value) { format!("{value}.{pid}") } else { value };
            taken.insert(value.clone());
            found.push(Interface { value, display, control: control.clone(), port });
        };
        add(format!("memlane-{name}"), format!("memlane network {name}"), None);
        for port in ports {
            add(format!("memlane-{name}-{port}"), format!("memlane port {port} of {name}"), Some(port));
        }
    }
    found
}

/// The line about this program.
fn head() -> String {
    format!("extcap {{version={}}}{{display=memlane}}\n", env!("CARGO_PKG_VERSION"))
}

fn listed(interfaces: &[Interface]) -> String {
    let mut text = head();
    for Interface { value, display, .. } in interfaces {
        let _ = writeln!(text, "interface {{value={value}}}{{display={display}}}");
    }
    text
}

fn options() -> String {
    format!(
        "arg {{number=0}}{{call=--drops}}{{display=Dropped frames only}}{{type=boolflag}}{{default=false}}\
         {{tooltip=Each has its drop reason as a comment}}\n\
         arg {{number=1}}{{call=--snaplen}}{{display=Most bytes of a frame}}{{type=unsigned}}{{range=1,{MOST_SNAPLEN}}}\
         {{default={MOST_SNAPLEN}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::identity::Identity;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_is_known_by_the_name_of_the_program_or_the_first_option() {
        for (given, expected) in [
            ("/x/memlane-extcap --extcap-interfaces", "/x/memlane-extcap extcap --extcap-interfaces"),
            ("/x/memlane-extcap extcap --extcap-interfaces", "/x/memlane-extcap extcap --extcap-interfaces"),
            ("memlane --extcap-interfaces", "memlane extcap --extcap-interfaces"),
            ("memlane --capture --fifo f", "memlane extcap --capture --fifo f"),
            ("memlane capture net", "memlane capture net"),
            ("memlane", "memlane"),
        ] {
            assert_eq!(arguments(words(given)), words(expected));
        }
    }

    #[test]
    fn each_interface_has_a_name_of_its_own() {
        let network = |name: &str, pid: u32, ports: &[&str]| {
            let identity = Identity { name: name.into(), version: "1".into(), pid, uptime: 1, file: None, ports: ports.len() };
            let running = Running { identity, user: 0, control: format!("/{pid}").into() };
            (running, ports.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let found = interfaces(vec![network("net", 7, &["web", "a"]), network("net", 8, &["web"]), network("net-a", 9, &[])]);
        let found: Vec<_> = found.iter().map(|found| (found.value.as_str(), found.control.to_str().unwrap())).collect();
        let expected = [
            ("memlane-net", "/7"),
            ("memlane-net-web", "/7"),
            ("memlane-net-a", "/7"),
            ("memlane-net.8", "/8"),
            ("memlane-net-web.8", "/8"),
            ("memlane-net-a.9", "/9"),
        ];
        assert_eq!(found, expected);
    }
}
