//! The state file: the differences to the network's file that came from ports attached, detached or changed at run time, and the leased
//! addresses.
//!
//! It holds differences only, so that the network's file can change too: `removed` ports are left out, a `[[change]]` holds keys
//! that differ from the file's (and, in `unset`, keys to remove), a `[[port]]` is added to the file's or replaces the one of its
//! name, and has its origin. [`super::state_file`] locks and writes it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::config::difference::Difference;
use crate::config::{Config, Mistakes, PortConfig, PortOrigin};
use crate::names::SavedLease;

const HEADING: &str = "# What was attached, detached and changed while the network ran, by memlane; see `memlane up --state`.\n";

/// Why the state file cannot be read or written.
#[derive(Debug, Error)]
pub enum StateError {
    /// It cannot be read.
    #[error("the state file {path} cannot be read: {cause}. Repair it, or move it away to start from the network's file alone")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// It can be read, but together with the network's file the result is invalid.
    #[error(
        "the state file {path} does not fit the network's file:\n{mistakes}\nRepair it, or move it away to start from the network's file alone"
    )]
    Unfit {
        /// The file.
        path: PathBuf,
        /// All of them, by their keys.
        mistakes: String,
    },
    /// Another network has locked it.
    #[error(
        "the state file {path} is in use by {holder}. End that network with `memlane down`, or give each network a state file of its own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The other network, as far as it is known.
        holder: String,
    },
    /// It cannot be written.
    #[error("the state file {path} cannot be written: {cause}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SavedNetwork {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    change: Vec<SavedChange>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    port: Vec<SavedPort>,
    /// Leases of the segments' responders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lease: Vec<SavedLease>,
}

/// A port that the file does not have, or that replaces the file's port of its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct SavedPort {
    // Of files of earlier versions, a command.
    #[serde(default = "command", skip_serializing_if = "is_command")]
    origin: PortOrigin,
    #[serde(flatten)]
    keys: Map<String, Value>,
}

fn command() -> PortOrigin {
    PortOrigin::COMMAND
}

fn is_command(origin: &PortOrigin) -> bool {
    *origin == PortOrigin::COMMAND
}

impl SavedPort {
    fn of(port: &PortConfig) -> Self {
        Self { origin: port.origin.clone(), keys: port.stated() }
    }

    fn name(&self) -> Option<&str> {
        self.keys.get("name").and_then(Value::as_str)
    }
}

/// The differences at a port of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct SavedChange {
    name: String,
    /// Keys of the file that are removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unset: Vec<String>,
    #[serde(flatten)]
    keys: Map<String, Value>,
}

impl SavedNetwork {
    /// The difference from `file` to `now`.
    pub fn between(file: &Config, now: &Config) -> Self {
        let difference = Difference::between(file, now);
        let (mut change, mut port) = (Vec::new(), Vec::new());
        for changed in &difference.changed {
            if changed.in_place() {
                let mut after = changed.after.stated();
                let is_set = |key: &&String| after.contains_key(*key);
                let unset = changed.keys.iter().filter(|key| !is_set(key)).cloned().collect();
                after.retain(|key, _| changed.keys.contains(key));
                change.push(SavedChange { name: changed.after.name.clone(), unset, keys: after });
            } else {
                port.push(SavedPort::of(&changed.after));
            }
        }
        port.extend(difference.added.iter().map(SavedPort::of));
        Self { removed: difference.removed.into_iter().map(|port| port.name).collect(), change, port, lease: Vec::new() }
    }

    /// The same with these leases.
    #[must_use]
    pub fn with_leases(self, lease: Vec<SavedLease>) -> Self {
        Self { lease, ..self }
    }

    /// The same without the ports called so that are in addition to the file's.
    #[must_use]
    pub fn without(self, ports: &BTreeSet<String>) -> Self {
        let is_named = |port: &SavedPort| port.name().is_some_and(|name| ports.contains(name));
        Self { port: self.port.into_iter().filter(|port| !is_named(port)).collect(), ..self }
    }

    /// The leases.
    pub fn leases(&self) -> &Vec<SavedLease> {
        &self.lease
    }

    /// `file` with the differences applied; `path` is named in errors.
    ///
    /// # Errors
    /// The result is invalid: two ports have the same MAC address, for example.
    pub fn applied_to(&self, file: &Config, path: &Path) -> Result<Config, StateError> {
        let mut ports: Vec<Map<String, Value>> = file.ports.iter().map(|port| port.stated()).collect();
        let is_called = |port: &Map<String, Value>, name: Option<&str>| port.get("name").and_then(Value::as_str) == name;
        ports.retain(|port| !self.removed.iter().any(|name| is_called(port, Some(name))));
        for SavedChange { name, unset, keys } in &self.change {
            match ports.iter_mut().find(|port| is_called(port, Some(name))) {
                Some(port) => {
                    port.retain(|key, _| !unset.contains(key));
                    port.extend(keys.clone());
                }
                None => {
                    tracing::warn!(port = %name, state = %path.display(), "the state changes a port that the file does not have any more")
                }
            }
        }
        for new in &self.port {
            ports.retain(|port| !is_called(port, new.name()));
            ports.push(new.keys.clone());
        }
        let names: Vec<String> = ports.iter().map(|port| port.get("name").map(Value::to_string).unwrap_or_default()).collect();
        let read = Config::from_json(&json!({ "port": ports }), &file.name, Path::new(""));
        let unfit = |mistakes: Mistakes| StateError::Unfit { path: path.into(), mistakes: sentences(&mistakes, &names) };
        let mut ports = read.map_err(unfit)?.ports;
        for saved in &self.port {
            let own = ports.iter_mut().find(|port| saved.name() == Some(&port.name));
            own.into_iter().for_each(|port| port.origin = saved.origin.clone());
        }
        Ok(Config { ports, ..file.clone() })
    }

    /// Parses the state from `text`; `path` is named in errors.
    ///
    /// # Errors
    /// [`StateError::Read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, StateError> {
        toml::from_str(text).map_err(|error| StateError::Read { path: path.into(), cause: error.to_string().trim_end().into() })
    }

    /// The state as TOML.
    ///
    /// # Errors
    /// It cannot be written as TOML.
    pub fn text(&self) -> io::Result<String> {
        toml::to_string(self).map(|text| format!("{HEADING}{text}")).map_err(io::Error::other)
    }
}

/// Mistakes in lines, with the names of the ports.
fn sentences(mistakes: &Mistakes, names: &[String]) -> String {
    let line = |mistake: &crate::config::Mistake| {
        let number =
            mistake.key.strip_prefix("port[").and_then(|rest| rest.split(']').next()).and_then(|number| number.parse().ok());
        let port = number.and_then(|number: usize| names.get(number));
        port.map_or_else(|| format!("  {}", mistake.text), |port| format!("  port {port}: {}", mistake.text))
    };
    mistakes.list.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Attacher;

    const FILE: &str = r#"
        [[port]]
        name = "a"
        null = true
        mac = "02:00:00:00:00:01"
        mtu = 1400
        [[port]]
        name = "b"
        null = true
        [[port]]
        name = "c"
        null = true
    "#;
    const NOW: &str = r#"
        [[port]]
        name = "a"
        null = true
        mtu = 9000
        weight = 3
        enabled = false
        [[port]]
        name = "c"
        loopback = true
        transmit = { rate = "1Gbit" }
        [[port]]
        name = "d"
        vhost-user = "/run/d.sock"
        link = { delay = "10ms", loss = 0.5 }
    "#;

    fn config(text: &str) -> Config {
        Config::parse(text, "net").unwrap()
    }

    #[test]
    fn a_state_makes_of_the_file_what_was() {
        let path = Path::new("state");
        let mut now = config(NOW);
        // One was detached and attached again, the other the file does not have.
        now.ports[1].origin = PortOrigin::COMMAND;
        now.ports[2].origin = PortOrigin::labelled(Attacher::Libvirt, "d");
        let state = SavedNetwork::between(&config(FILE), &now);
        let read = SavedNetwork::parse(&state.text().unwrap(), path).unwrap();
        assert_eq!(read, state);
        assert_eq!(read.applied_to(&config(FILE), path).unwrap().ports, now.ports);
    }

    #[test]
    fn a_file_that_changed_since_keeps_what_the_state_does_not_say() {
        let state = SavedNetwork::between(&config(FILE), &config(NOW));
        let newer = FILE
            .replace("null = true\n        [[port]]\n        name = \"c\"", "null = true\n        [[port]]\n        name = \"e\"");
        let made = state.applied_to(&config(&newer), Path::new("state")).unwrap();
        let names: Vec<&str> = made.ports.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["a", "e", "c", "d"]);
    }

    #[test]
    fn a_state_that_fits_no_more_is_told() {
        let state = SavedNetwork::between(&config(FILE), &config(NOW));
        let taken = format!("{FILE}\n[[port]]\nname = \"z\"\nvhost-user = \"/run/d.sock\"\n");
        let told = state.applied_to(&config(&taken), Path::new("state")).unwrap_err().to_string();
        assert!(told.contains("port \"d\": socket /run/d.sock is used twice"), "{told}");
    }

    #[test]
    fn a_broken_state_is_an_error_and_none_is_no_difference() {
        assert_eq!(SavedNetwork::parse("", Path::new("state")).unwrap(), SavedNetwork::default());
        for broken in ["removed = 3", "[[port]", "colour = 1", "\u{0}"] {
            let told = SavedNetwork::parse(broken, Path::new("state")).unwrap_err().to_string();
            assert!(told.contains("cannot be read") && told.contains("move it away"), "{told}");
        }
    }
}
