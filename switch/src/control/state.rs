//! The state file: what is different from the network's file, because it was attached, detached or changed while the network ran.
//!
//! It holds differences only, so that the network's file can change too: `removed` ports do not come, a `[[change]]` holds keys that are other
//! than the file's (and, in `unset`, keys that are not there), a `[[port]]` comes beside the file's or in place of the one of its name. It is
//! written whole beside its place and moved there, so that no reader ever sees half of it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::config::difference::Difference;
use crate::config::{Config, Mistakes};

const HEADING: &str = "# What was attached, detached and changed while the network ran, by memlane; see `memlane up --state`.\n";

/// Why the state cannot be read or kept.
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
    /// It can be read, but no network comes of it and the network's file.
    #[error(
        "the state file {path} does not fit the network's file:\n{mistakes}\nRepair it, or move it away to start from the network's file alone"
    )]
    Unfit {
        /// The file.
        path: PathBuf,
        /// All of them, by their keys.
        mistakes: String,
    },
    /// It cannot be written.
    #[error("the state file {path} cannot be written: {cause}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        cause: io::Error,
    },
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct State {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    change: Vec<Change>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    port: Vec<Map<String, Value>>,
}

/// What is different at a port of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Change {
    name: String,
    /// Keys that the file states and that do not hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unset: Vec<String>,
    #[serde(flatten)]
    keys: Map<String, Value>,
}

impl State {
    /// What makes `file` into `now`.
    pub fn between(file: &Config, now: &Config) -> Self {
        let difference = Difference::between(file, now);
        let (mut change, mut port) = (Vec::new(), Vec::new());
        for changed in &difference.changed {
            let mut after = changed.after.stated();
            if changed.in_place() {
                let is_set = |key: &&String| after.contains_key(*key);
                let unset = changed.keys.iter().filter(|key| !is_set(key)).cloned().collect();
                after.retain(|key, _| changed.keys.contains(key));
                change.push(Change { name: changed.after.name.clone(), unset, keys: after });
            } else {
                port.push(after);
            }
        }
        port.extend(difference.added.iter().map(|added| added.stated()));
        Self { removed: difference.removed.into_iter().map(|port| port.name).collect(), change, port }
    }

    /// `file` with what is different; `path` is told in errors.
    ///
    /// # Errors
    /// What comes of it has mistakes: two ports have the same address, for one.
    pub fn applied_to(&self, file: &Config, path: &Path) -> Result<Config, StateError> {
        let mut ports: Vec<Map<String, Value>> = file.ports.iter().map(|port| port.stated()).collect();
        let is_called = |port: &Map<String, Value>, name: Option<&str>| port.get("name").and_then(Value::as_str) == name;
        ports.retain(|port| !self.removed.iter().any(|name| is_called(port, Some(name))));
        for Change { name, unset, keys } in &self.change {
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
            let name = new.get("name").and_then(Value::as_str);
            ports.retain(|port| !is_called(port, name));
            ports.push(new.clone());
        }
        let names: Vec<String> = ports.iter().map(|port| port.get("name").map(Value::to_string).unwrap_or_default()).collect();
        let read = Config::from_json(&json!({ "port": ports }), &file.name, Path::new(""));
        let unfit = |mistakes: Mistakes| StateError::Unfit { path: path.into(), mistakes: sentences(&mistakes, &names) };
        Ok(Config { ports: read.map_err(unfit)?.ports, ..file.clone() })
    }

    /// Reads the state at `path`; there is no difference where there is no file.
    ///
    /// # Errors
    /// [`StateError::Read`].
    pub fn load(path: &Path) -> Result<Self, StateError> {
        let unreadable = |cause: String| StateError::Read { path: path.into(), cause };
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| unreadable(error.to_string()))?,
        };
        toml::from_str(&text).map_err(|error| unreadable(error.to_string().trim_end().into()))
    }

    /// Keeps it at `path`, for its owner alone; when this returns it outlives a loss of power.
    ///
    /// # Errors
    /// [`StateError::Write`]; the old one stands then.
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        let text = toml::to_string(self).map_err(io::Error::other);
        let written = text.and_then(|text| replace(path, &format!("{HEADING}{text}")));
        written.map_err(|cause| StateError::Write { path: path.into(), cause })
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

/// Puts `text` in place of what is at `path`, whole or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| io::Error::other("this is no file's name"))?;
    let beside = folder.join(format!(".{}.new", name.to_string_lossy()));
    // What a crash left there goes; nobody else's file is followed or written to.
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = file
        .set_permissions(Permissions::from_mode(0o600))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // The next write would remove it too.
        let _ = std::fs::remove_file(&beside);
        return written;
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        intake = { rate = "1Gbit" }
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let state = State::between(&config(FILE), &config(NOW));
        state.save(&path).unwrap();
        let read = State::load(&path).unwrap();
        assert_eq!(read, state);
        assert_eq!(read.applied_to(&config(FILE), &path).unwrap().ports, config(NOW).ports);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_that_changed_since_keeps_what_the_state_does_not_say() {
        let state = State::between(&config(FILE), &config(NOW));
        let newer = FILE
            .replace("null = true\n        [[port]]\n        name = \"c\"", "null = true\n        [[port]]\n        name = \"e\"");
        let made = state.applied_to(&config(&newer), Path::new("state")).unwrap();
        let names: Vec<&str> = made.ports.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["a", "e", "c", "d"]);
    }

    #[test]
    fn a_state_that_fits_no_more_is_told() {
        let state = State::between(&config(FILE), &config(NOW));
        let taken = format!("{FILE}\n[[port]]\nname = \"z\"\nvhost-user = \"/run/d.sock\"\n");
        let told = state.applied_to(&config(&taken), Path::new("state")).unwrap_err().to_string();
        assert!(told.contains("port \"d\": socket /run/d.sock is used twice"), "{told}");
    }

    #[test]
    fn a_broken_state_is_an_error_and_none_is_no_difference() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert_eq!(State::load(&path).unwrap(), State::default());
        for broken in ["removed = 3", "[[port]", "colour = 1", "\u{0}"] {
            std::fs::write(&path, broken).unwrap();
            let told = State::load(&path).unwrap_err().to_string();
            assert!(told.contains("cannot be read") && told.contains("move it away"), "{told}");
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(State::load(&path).is_err());
        assert!(State::load(folder.path()).is_err(), "a folder is no state");
    }

    #[test]
    fn where_it_cannot_be_written_the_old_one_stands() {
        let told = State::default().save(Path::new("/proc/no/state")).unwrap_err().to_string();
        assert!(told.contains("/proc/no/state"), "{told}");
    }
}
