//! Each setting of a port passes unchanged from the file and from a request to the port, its report and the state file.

use std::collections::BTreeSet;
use std::path::Path;

use memlane::config::difference::CHANGEABLE;
use memlane::config::{Config, PortConfig};
use memlane::control::{Managed, Origin};
use serde_json::{Map, Value, json};

/// A key, a value, and its place in the report with the value there.
type Row = (&'static str, Value, Option<(&'static str, Value)>);

/// Each key with a value that is not its default, and its place in the report, if that shows it. In this order, each key can be
/// set: `anti-spoof` needs `mac` and `addresses`.
fn table() -> [Row; 18] {
    let rate = json!({ "rate": "1Gbit", "packets": 7, "burst-ms": 9 });
    [
        ("weight", json!(3), Some(("/limits/weight", json!(3)))),
        ("transmit", rate.clone(), Some(("/limits/transmit", rate.clone()))),
        ("receive", rate.clone(), Some(("/limits/receive", rate))),
        ("storm", json!(5), Some(("/limits/storm", json!(5)))),
        ("mac", json!("02:00:00:00:00:07"), Some(("/address", json!("02:00:00:00:00:07")))),
        ("addresses", json!(["10.0.0.5"]), Some(("/limits/addresses/0", json!("10.0.0.5")))),
        ("inside", json!({ "addresses": ["10.0.0.6"] }), Some(("/limits/inside/addresses/0", json!("10.0.0.6")))),
        ("anti-spoof", json!("all"), Some(("/limits/anti-spoof", json!("all")))),
        ("allowed", json!([{ "ip": "10.1.0.0/16" }]), Some(("/limits/allowed/0/ip", json!("10.1.0.0/16")))),
        ("may-serve", json!(["ra"]), Some(("/limits/may-serve/0", json!("ra")))),
        ("isolated", json!(true), Some(("/limits/isolated", json!(true)))),
        ("reserved", json!("drop"), Some(("/limits/reserved", json!("drop")))),
        ("groups", json!(["web"]), Some(("/limits/groups/0", json!("web")))),
        ("leases", json!(9), Some(("/limits/leases", json!(9)))),
        ("labels", json!({ "pod": "shop/web-0" }), Some(("/labels/pod", json!("shop/web-0")))),
        ("mtu", json!(1400), None),
        ("link", json!({ "delay": "10ms", "loss": 0.25 }), Some(("/link/delay", json!("10ms")))),
        ("enabled", json!(false), Some(("/enabled", json!(false)))),
    ]
}

fn bare() -> Config {
    Config::parse("[[port]]\nname = \"a\"\nnull = true\n", "net").unwrap()
}

/// The network with these keys of its port, and a state file in `folder`.
fn started(folder: &Path, config: Config) -> Managed {
    Managed::start(config, Origin { folder: folder.into(), state: Some(folder.join("state.toml")), ..Origin::default() }).unwrap()
}

/// The values of `key` in the port's entry and report; of `link`, the entry states keys at their defaults too.
fn shown(managed: &Managed, key: &str, place: Option<&str>) -> (Value, Option<Value>) {
    let view = managed.view("a").unwrap();
    let entry = PortConfig::from_json(&serde_json::to_value(&view.entry).unwrap(), Path::new("")).unwrap();
    let report = serde_json::to_value(&view.report).unwrap();
    (entry.stated()[key].clone(), place.map(|place| report.pointer(place).cloned().unwrap_or_default()))
}

/// `value` of `key` as a port of the file states it.
fn stated(key: &str, value: &Value) -> Value {
    let with_address = json!({ "name": "a", "null": true, "mac": "02:00:00:00:00:07", "addresses": ["10.0.0.5"], key: value });
    PortConfig::from_json(&with_address, Path::new("")).unwrap().stated()[key].clone()
}

fn check(managed: &Managed, by: &str) {
    for (key, value, report) in table() {
        let (place, reported) = report.unzip();
        assert_eq!(shown(managed, key, place), (stated(key, &value), reported), "{key} by {by}");
    }
}

#[test]
fn the_table_has_each_key_that_can_change() {
    // The key of a base is looked up, and stated as `inside`: see `twins`.
    let keys: BTreeSet<&str> = table().into_iter().map(|(key, ..)| key).chain(["twin-of"]).collect();
    assert_eq!(keys, BTreeSet::from(CHANGEABLE));
}

#[test]
fn each_key_passes_from_the_file_to_the_port() {
    let keys: Map<String, Value> = table().into_iter().map(|(key, value, _)| (key.to_owned(), value)).collect();
    let mut port = json!({ "name": "a", "null": true });
    port.as_object_mut().unwrap().extend(keys);
    let folder = tempfile::tempdir().unwrap();
    let config = Config::from_json(&json!({ "port": [port] }), "net", folder.path()).unwrap();
    let managed = started(folder.path(), config);
    check(&managed, "the file");
    managed.stop();
}

#[test]
fn each_key_passes_from_a_request_to_the_port_and_the_state_file() {
    let folder = tempfile::tempdir().unwrap();
    let managed = started(folder.path(), bare());
    for (key, value, _) in table() {
        managed.change("a", &Map::from_iter([(key.to_owned(), value)])).unwrap();
    }
    check(&managed, "a request");
    managed.stop();

    let again = started(folder.path(), bare());
    check(&again, "the state file");
    for (key, ..) in table().into_iter().rev() {
        again.change("a", &Map::from_iter([(key.to_owned(), Value::Null)])).unwrap();
    }
    assert_eq!(again.config().unwrap().ports, bare().ports, "null removes each key");
    again.stop();
}

/// The document of the API describes a change by the same keys.
#[test]
fn a_change_is_described_by_the_keys_that_can_change() {
    let document = memlane::control::document();
    let keys = document.pointer("/components/schemas/Change/properties").and_then(Value::as_object).unwrap();
    assert_eq!(keys.keys().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(CHANGEABLE));
    assert_eq!(keys["weight"]["anyOf"][0]["maximum"], json!(1000));
}
