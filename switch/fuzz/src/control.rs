//! Target `control`: requests to the control socket, as JSON, and the content of a state file. Any bytes give either a setting that
//! a file could have too, or mistakes with keys; a port that was read prints settings that make it again; a change changes the keys
//! that it names and no other.

use std::path::Path;

use memlane::config::difference::{CHANGEABLE, keys};
use memlane::config::{Config, Mistakes, PortConfig};
use memlane::control::reload::is_same;
use memlane::control::state::SavedNetwork;
use serde_json::{Map, Value};

/// The network that is changed.
const BASE: &str = r#"
    [[port]]
    name = "a"
    vhost-user = "/run/a.sock"
    mac = "02:00:00:00:00:01"
    mtu = 1400
    [[port]]
    name = "b"
    tap = "tap0"
"#;

/// Reads `data` as all that may be sent.
pub fn run(data: &[u8]) {
    let base = Config::parse(BASE, "net").expect("the base is a good network");
    if let Ok(state) = toml::from_str::<SavedNetwork>(&String::from_utf8_lossy(data))
        && let Ok(config) = state.applied_to(&base, Path::new("state"))
    {
        check_state(&base, &config);
    }
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    match PortConfig::from_json(&value, Path::new("/nets")) {
        Ok(port) => assert_eq!(PortConfig::from_json(&Value::Object(port.stated()), Path::new("/else")).unwrap(), port),
        Err(mistakes) => check_mistakes(&mistakes),
    }
    match Config::from_json(&value, "net", Path::new("/nets")) {
        Ok(config) => check_state(&base, &Config { ports: config.ports, ..base.clone() }),
        Err(mistakes) => check_mistakes(&mistakes),
    }
    if let Value::Object(patch) = &value {
        base.ports.iter().for_each(|port| check_patch(port, patch));
    }
}

/// The state between two networks makes one of the other.
fn check_state(base: &Config, config: &Config) {
    let again = SavedNetwork::between(base, config).applied_to(base, Path::new("state"));
    let again = again.unwrap_or_else(|error| panic!("{error}"));
    assert!(is_same(&again, config), "{again:?}");
}

fn check_patch(port: &PortConfig, patch: &Map<String, Value>) {
    match port.patched(patch) {
        Ok(changed) => {
            let changed = keys(port, &changed);
            assert!(changed.iter().all(|key| patch.contains_key(key) && CHANGEABLE.contains(&key.as_str())), "{changed:?}");
        }
        Err(mistakes) => check_mistakes(&mistakes),
    }
}

fn check_mistakes(mistakes: &Mistakes) {
    assert!(!mistakes.list.is_empty() && mistakes.list.iter().all(|mistake| !mistake.text.is_empty()));
    assert!(!mistakes.to_string().is_empty());
}
