//! Networks and ports as JSON: the keys of the file, with the same checks.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::difference::{CHANGEABLE, can_change};
use super::document::{self, schema_value};
use super::lines::FileLines;
use super::renamed;
use super::shape;
use super::words::{either, nearest, printable};
use super::written::Written;
use super::{Config, Mistake, Mistakes, PortConfig, PortEntry, Stated, check};
use memlane_backends::vhost_user::access::Access;

const NO_PORT: &str = "a port must be a JSON object, as { \"name\": \"web\", \"vhost-user\": \"web.sock\" }";

impl Config {
    /// Reads a whole network; it is called `default_name` if it has no name. Relative paths lie in `folder`. A key with the value
    /// null is ignored.
    ///
    /// # Errors
    /// All [`Mistakes`] at once, by their keys; lines mean nothing there.
    pub fn from_json(document: &Value, default_name: &str, folder: &Path) -> Result<Self, Mistakes> {
        if !document.is_object() {
            return Err(Mistakes::whole("a network must be a JSON object, as { \"port\": [] }"));
        }
        let mut read = check::check_in(&as_text(document)?, folder)?;
        // The lines of the text are of no file.
        read.lines = FileLines::default();
        for (index, rule) in read.policy.iter_mut().enumerate() {
            rule.line = document["policy"][index]["line"].as_u64().and_then(|line| line.try_into().ok()).unwrap_or(0);
        }
        Ok(Self { stated: Stated::of(&read), ..Self::from_document(&read, default_name, folder).with_twins() })
    }

    /// Reads ports, as [`Self::from_json`] does, without the segments that they are on.
    ///
    /// # Errors
    /// The errors of [`Self::from_json`].
    pub fn ports_from_json<P: Serialize>(ports: &[P], folder: &Path) -> Result<Vec<PortConfig>, Mistakes> {
        let read = check::check_ports(&as_text(&json!({ "port": ports }))?, folder)?;
        Ok(Self::from_document(&read, "", folder).ports)
    }
}

/// The TOML text of `document`.
fn as_text(document: &Value) -> Result<String, Mistakes> {
    let unreadable = |_| Mistakes::whole("a list contains null, or a number is too large for any key: remove it");
    toml::to_string(&without_nulls(document)).map_err(unreadable)
}

/// The mistakes in `sent`, which does not fit `schema`.
pub fn misshapen(schema: &Value, sent: &Value) -> Mistakes {
    let list: Vec<Mistake> =
        shape::mistakes_of_all(schema, &Written::from(sent)).into_iter().map(|one| Mistake::of(&one.key, &one.text)).collect();
    if list.is_empty() {
        Mistakes::whole("the request body does not fit its schema in /v1/openapi.json")
    } else {
        Mistakes::of(list)
    }
}

impl PortConfig {
    /// Reads a port; as [`Config::from_json`] does.
    ///
    /// # Errors
    /// All [`Mistakes`] at once, by their keys.
    pub fn from_json(port: &Value, folder: &Path) -> Result<Self, Mistakes> {
        if !port.is_object() {
            return Err(Mistakes::whole(NO_PORT));
        }
        let read = Config::ports_from_json(&[port], folder);
        let mut ports = read.map_err(|mut mistakes| {
            for mistake in &mut mistakes.list {
                mistake.key = mistake.key.trim_start_matches("port[0]").trim_start_matches('.').into();
            }
            mistakes
        })?;
        ports.pop().ok_or_else(|| Mistakes::whole(NO_PORT))
    }

    /// The port with the keys of `patch` in place of its own; null removes a key.
    ///
    /// # Errors
    /// All [`Mistakes`] at once, by their keys, including keys that cannot change while the port runs.
    pub fn patched(&self, patch: &Map<String, Value>) -> Result<Self, Mistakes> {
        let (free, fixed): (Vec<_>, Vec<_>) = patch.iter().partition(|(key, _)| can_change(&self.kind, key));
        let mut keys = self.stated();
        if patch.get("twin-of").is_some_and(|base| !base.is_null()) {
            keys.remove("inside");
        }
        keys.extend(free.into_iter().map(|(key, value)| (key.clone(), value.clone())));
        // The port's own paths are absolute already.
        let read = Self::from_json(&Value::Object(keys), Path::new(""));
        if fixed.is_empty() {
            return read;
        }
        let known = PortEntry::keys();
        let told = fixed.into_iter().map(|(key, _)| match known.contains(key) {
            true => Mistake::of(
                key,
                &format!("{key} cannot change while the port is attached: detach the port, and attach it again with the new value"),
            ),
            false => Mistake::of(key, &unknown_change(key)),
        });
        Err(Mistakes::of(told.chain(read.err().into_iter().flat_map(|mistakes| mistakes.list)).collect()))
    }

    /// The port as in a file, without keys at their defaults.
    pub fn stated(&self) -> Map<String, Value> {
        PortEntry::from(self).stated()
    }

    /// The port as a file would state it.
    pub fn entry(&self) -> PortEntry {
        PortEntry::from(self)
    }
}

/// The sentence for an unknown key in a change.
fn unknown_change(key: &str) -> String {
    if let Some(told) = renamed::told(key) {
        return told;
    }
    match nearest(key, CHANGEABLE.into_iter()) {
        Some(near) => format!("unknown key {}; did you mean {near}?", printable(key)),
        None => format!("unknown key {}; the keys that can change are {}", printable(key), either(&CHANGEABLE.map(str::to_owned))),
    }
}

impl PortEntry {
    /// Checks each of these keys and values by itself; required keys may be missing.
    ///
    /// # Errors
    /// All [`Mistakes`] at once, by their keys.
    pub fn check_keys(keys: &Map<String, Value>) -> Result<(), Mistakes> {
        let entries = document::alternatives(schema_value(), &schema_value()["properties"]["port"]["items"]);
        let schema = entries.first().copied().unwrap_or(&Value::Null);
        let found = keys.iter().flat_map(|(key, value)| shape::mistakes(schema_value(), schema, key, 0, &Written::from(value)));
        let list: Vec<Mistake> = found.map(|one| Mistake::of(&one.key, &one.text)).collect();
        if list.is_empty() { Ok(()) } else { Err(Mistakes::of(list)) }
    }

    /// The value of `key` from `text` of the command line: a number, a boolean, a list or a table if the key has this type and
    /// the text parses; else a string.
    pub fn value_of(key: &str, text: &str) -> Value {
        let entries = document::alternatives(schema_value(), &schema_value()["properties"]["port"]["items"]);
        let schema = entries.first().map_or(&Value::Null, |entry| &entry["properties"][key]);
        let takes = |kind| document::alternatives(schema_value(), schema).iter().any(|one| document::is_of(one, kind));
        let begins = |c: char| text.trim_start().starts_with(c);
        let is_bare = match text.parse::<f64>() {
            Ok(_) => takes("integer") || takes("number"),
            Err(_) => {
                takes("boolean") && matches!(text, "true" | "false")
                    || takes("object") && begins('{')
                    || takes("array") && begins('[')
            }
        };
        let read = is_bare.then(|| toml::from_str::<Map<String, Value>>(&format!("value = {text}\n")).ok()).flatten();
        read.filter(|map| map.len() == 1).and_then(|mut map| map.remove("value")).unwrap_or_else(|| Value::String(text.into()))
    }

    /// All keys that a port may have.
    pub fn keys() -> Vec<String> {
        to_map(&Self::default()).keys().cloned().collect()
    }

    /// Keys of the port, without those at their defaults.
    pub fn stated(&self) -> Map<String, Value> {
        let usual = to_map(&Self::default());
        let mut keys = to_map(self);
        keys.retain(|key, value| usual.get(key) != Some(value));
        keys
    }
}

fn to_map(entry: &PortEntry) -> Map<String, Value> {
    // Plain data: strings, numbers, lists and tables with names.
    match serde_json::to_value(entry) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

impl From<&PortConfig> for PortEntry {
    fn from(port: &PortConfig) -> Self {
        let kind = &port.kind;
        let mut entry = Self {
            name: Some(port.name.clone()),
            access: if kind.listens_at().is_some() { port.access.clone() } else { Access::default() },
            segment: port.segment.clone(),
            receive_offloads: port.receive_offloads,
            lazy_memory: port.lazy_memory,
            queues: port.queues,
            second: port.second,
            forward: port.forward.clone(),
            ..Self::default()
        };
        entry.state(&port.settings);
        kind.state(&mut entry);
        entry
    }
}

/// `value` without keys that are null, which TOML does not know.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: &str = r#"
        access = { group = "7" }
        [[port]]
        name = "a"
        vhost-user = "a.sock"
        segment = "back"
        enabled = false
        mac = "02:00:00:00:00:0a"
        mtu = 1400
        receive-offloads = false
        lazy-memory = true
        second = "replace"
        queues = 4
        weight = 3
        transmit = { rate = "1Gbit", packets = 7, burst-ms = 9 }
        receive = { packets = 9 }
        storm = 0
        anti-spoof = "all"
        addresses = ["10.0.0.5", "fd00::5"]
        allowed = [{ mac = "00:00:5e:00:01:07", ip = "10.0.0.100" }, { ip = "10.1.0.0/16" }]
        may-serve = ["dhcp", "ra"]
        isolated = true
        reserved = "drop"
        vlan = 10
        trunk = [20, "100-199"]
        groups = ["front"]
        labels = { pod = "shop/web-0" }
        link = { delay = "10ms", loss = 0.25, gilbert-elliott = { p = 0.1, r = 0.5, bad = 1.0, good = 0.0 } }
        [[port]]
        name = "b"
        stream = "/run/b.sock"
        connect = true
        checksums = "complete"
        [[port]]
        name = "c"
        tap = "tap0"
        netns = "inner"
        [[port]]
        name = "d"
        passt = true
        [[port]]
        name = "e"
        passt = ["--tcp-ports", "8080:80"]
        [[port]]
        name = "f"
        null = true
        [[port]]
        name = "g"
        loopback = true
        access = {}
        [[port]]
        name = "h"
        xen = "guest"
        vif = 1
        queues = 2
    "#;

    #[test]
    fn a_port_says_of_itself_what_makes_it_again() {
        let folder = Path::new("/nets");
        let config = Config::from_document(&check::check_in(EVERYTHING, folder).unwrap(), "net", folder);
        assert_eq!(config.ports.len(), 8);
        for port in &config.ports {
            let stated = Value::Object(port.stated());
            assert_eq!(PortConfig::from_json(&stated, Path::new("/elsewhere")).unwrap(), *port, "{stated}");
        }
        assert_eq!(Value::Object(config.ports[5].stated()), json!({ "name": "f", "null": true }));
    }

    #[test]
    fn mistakes_of_json_are_told_all_at_once_by_their_keys() {
        let port = json!({ "name": "a b", "vhost-user": 7, "mtu": 1, "mac": null, "queues": 40, "sise": 1, "weight": "x" });
        let mut keys: Vec<_> =
            PortConfig::from_json(&port, Path::new("")).unwrap_err().list.into_iter().map(|mistake| mistake.key).collect();
        keys.sort();
        assert_eq!(keys, ["mtu", "name", "queues", "sise", "vhost-user", "weight"]);
    }

    #[test]
    fn what_is_no_port_is_told_so() {
        for wrong in [json!(null), json!([]), json!("a"), json!({ "name": [null] }), json!({ "storm": u64::MAX }), json!({})] {
            assert!(!PortConfig::from_json(&wrong, Path::new("")).unwrap_err().list.is_empty(), "{wrong}");
        }
    }
}
