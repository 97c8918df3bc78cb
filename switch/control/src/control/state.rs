//! The state file: the differences to the network's file that came from ports attached, detached or changed at run time, and the leased
//! addresses.
//!
//! The state file holds differences only, so that the network's file can change too: `removed` ports are left out, a `[[change]]` holds keys
//! that differ from the file's (and, in `unset`, keys to remove), a `[[port]]` is added to the file's or replaces the one of its
//! name, and has its origin. A `[[then]]` is a change since the rest was written: one [`Step`], in one line, so that a line that a power
//! failure has cut off is no TOML. [`super::state_file`] locks and writes it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::difference::{Changed, Difference};
use crate::config::{Config, Mistakes, PortConfig, PortOrigin};
use crate::names::SavedLease;

const HEADING: &str = "# What was attached, detached and changed while the network ran, by memlane; see `memlane up --state`.\n";

/// The line that begins a step, and the beginning of the next one, which has all of it.
const THEN: &str = "[[then]]";
const STEP: &str = "step = ";

/// Why the state file cannot be read or written.
#[derive(Debug, Error)]
pub enum StateError {
    /// The state file cannot be read.
    #[error("the state file {path} cannot be read: {cause}. Repair it, or move it away to start from the network's file alone")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The state file can be read, but together with the network's file the result is invalid.
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
    /// The state file cannot be written.
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
#[serde(from = "Written", rename_all = "kebab-case")]
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

/// A [`SavedNetwork`] in its file, with the steps since it was written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Written {
    removed: Vec<String>,
    change: Vec<SavedChange>,
    port: Vec<SavedPort>,
    lease: Vec<SavedLease>,
    then: Vec<Then>,
}

/// An appended step; none if a power failure has cut it off.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Then {
    step: Option<Step>,
}

/// The difference of one port to the file, in place of its former one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Step {
    name: String,
    /// The file has the port, and it is not attached.
    #[serde(skip_serializing_if = "is_false")]
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<SavedChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<SavedPort>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Step {
    /// The step to the configuration `now` of the port called `name`, none if it was detached; the file has `before`.
    pub fn of(name: &str, before: Option<&PortConfig>, now: Option<&PortConfig>) -> Self {
        let (mut change, mut port) = (None, None);
        match (before, now) {
            (None, Some(now)) => port = Some(SavedPort::of(now)),
            (Some(before), Some(now)) => match Changed::between(before, now) {
                Some(changed) if changed.in_place() => change = Some(SavedChange::of(&changed)),
                Some(changed) => port = Some(SavedPort::of(&changed.after)),
                None => {}
            },
            (_, None) => {}
        }
        Self { name: name.into(), removed: before.is_some() && now.is_none(), change, port }
    }

    /// The lines that append the step to the state file; `None` if it takes several.
    ///
    /// # Errors
    /// TOML has no form for the step.
    pub fn text(&self) -> io::Result<Option<String>> {
        let mut value = String::new();
        self.serialize(toml::ser::ValueSerializer::new(&mut value)).map_err(io::Error::other)?;
        Ok((!value.contains('\n')).then(|| format!("\n{THEN}\n{STEP}{value}\n")))
    }
}

impl From<Written> for SavedNetwork {
    fn from(Written { removed, change, port, lease, then }: Written) -> Self {
        let steps: Vec<Step> = then.into_iter().filter_map(|then| then.step).collect();
        let mut saved = Self { removed, change, port, lease };
        saved.take(steps);
        saved
    }
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

impl SavedChange {
    fn of(changed: &Changed) -> Self {
        let mut after = changed.after.stated();
        let is_set = |key: &&String| after.contains_key(*key);
        let unset = changed.keys.iter().filter(|key| !is_set(key)).cloned().collect();
        after.retain(|key, _| changed.keys.contains(key));
        Self { name: changed.after.name.clone(), unset, keys: after }
    }
}

impl SavedNetwork {
    /// The difference from `file` to `now`.
    pub fn between(file: &Config, now: &Config) -> Self {
        let difference = Difference::between(file, now);
        let (mut change, mut port) = (Vec::new(), Vec::new());
        for changed in &difference.changed {
            if changed.in_place() {
                change.push(SavedChange::of(changed));
            } else {
                port.push(SavedPort::of(&changed.after));
            }
        }
        port.extend(difference.added.iter().map(SavedPort::of));
        Self { removed: difference.removed.into_iter().map(|port| port.name).collect(), change, port, lease: Vec::new() }
    }

    /// Takes steps, in their order: of each port the last one holds.
    fn take(&mut self, steps: Vec<Step>) {
        let last: HashMap<String, usize> = steps.iter().enumerate().map(|(index, step)| (step.name.clone(), index)).collect();
        self.removed.retain(|name| !last.contains_key(name));
        self.change.retain(|change| !last.contains_key(&change.name));
        self.port.retain(|port| port.name().is_none_or(|name| !last.contains_key(name)));
        for (index, Step { name, removed, change, port }) in steps.into_iter().enumerate() {
            if last.get(&name) == Some(&index) {
                self.removed.extend(removed.then_some(name));
                self.change.extend(change);
                self.port.extend(port);
            }
        }
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
                    tracing::warn!(
                        target: "memlane::control::state",
                        port = %name, state = %path.display(), "the state changes a port that the file does not have any more"
                    )
                }
            }
        }
        for new in &self.port {
            ports.retain(|port| !is_called(port, new.name()));
            ports.push(new.keys.clone());
        }
        let names: Vec<String> = ports.iter().map(|port| port.get("name").map(Value::to_string).unwrap_or_default()).collect();
        let read = Config::ports_from_json(&ports, Path::new(""));
        let unfit = |mistakes: Mistakes| StateError::Unfit { path: path.into(), mistakes: sentences(&mistakes, &names) };
        let mut ports = read.map_err(unfit)?;
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
        let read = toml::from_str(text).or_else(|error| match without_cut_off(text) {
            Some(whole) => toml::from_str(whole),
            None => Err(error),
        });
        read.map_err(|error: toml::de::Error| StateError::Read { path: path.into(), cause: error.to_string().trim_end().into() })
    }

    /// The state as TOML.
    ///
    /// # Errors
    /// The state cannot be written as TOML.
    pub fn text(&self) -> io::Result<String> {
        toml::to_string(self).map(|text| format!("{HEADING}{text}")).map_err(io::Error::other)
    }
}

/// The text before a step that a power failure has cut off: its command was not answered. The end of such a file may be zeroes.
fn without_cut_off(text: &str) -> Option<&str> {
    let whole = text.split('\0').next()?;
    let (before, line) = whole.split_at(whole.rfind('\n')? + 1);
    let is_of_step = THEN.starts_with(line) || STEP.starts_with(line) || line.starts_with(STEP);
    (before.len() < text.len() && is_of_step).then_some(before)
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

    /// The text of a state file after `first`, to which the steps to each of `later` were appended one by one.
    fn appended(file: &Config, first: &Config, later: &[&Config]) -> String {
        let mut text = SavedNetwork::between(file, first).text().unwrap();
        let mut before = first;
        for &after in later {
            let names: BTreeSet<&String> = before.ports.iter().chain(&after.ports).map(|port| &port.name).collect();
            for name in names.into_iter().filter(|name| before.port(name) != after.port(name)) {
                text += &Step::of(name, file.port(name), after.port(name)).text().unwrap().expect("one line");
            }
            before = after;
        }
        text
    }

    #[test]
    fn steps_make_of_a_state_what_was() {
        let (path, file, now) = (Path::new("state"), config(FILE), config(NOW));
        let mut labelled = config(NOW);
        labelled.ports[2].settings.limits.labels.insert("text".into(), "a \"quoted\" [[then]]".into());
        for (first, later) in
            [(&file, vec![&now]), (&now, vec![&file]), (&file, vec![&now, &file, &labelled]), (&now, vec![&file, &now])]
        {
            let text = appended(&file, first, &later);
            let wanted = later.last().unwrap();
            let mut made = SavedNetwork::parse(&text, path).unwrap().applied_to(&file, path).unwrap().ports;
            made.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(made, wanted.ports, "{text}");
        }
    }

    #[test]
    fn a_step_that_a_power_failure_cut_off_is_none() {
        let (path, file, now) = (Path::new("state"), config(FILE), config(NOW));
        let before = appended(&file, &file, &[&now]);
        let whole = appended(&file, &file, &[&now, &file]);
        let last = whole.rfind("\n[[then]]").unwrap();
        let kept = SavedNetwork::parse(&whole[..last], path).unwrap();
        assert_ne!(kept, SavedNetwork::parse(&before, path).unwrap(), "more than one port was changed");
        let end = SavedNetwork::parse(&whole, path).unwrap();
        for cut in last..whole.len() {
            let read = SavedNetwork::parse(&whole[..cut], path).unwrap();
            assert!(read == kept || cut == whole.len() - 1 && read == end, "at {cut}");
            let zeroes = format!("{}{}", &whole[..cut], "\0".repeat(whole.len() - cut));
            let read = SavedNetwork::parse(&zeroes, path).unwrap();
            assert!(read == kept || cut == whole.len() - 1 && read == end, "zeroes at {cut}");
        }
        // A mistake of an operator's is told.
        let mistaken = format!("{whole}colour = \n");
        assert!(SavedNetwork::parse(&mistaken, path).is_err());
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
