//! Configuration keys of a port as command-line options: each option has the meaning and the checks of the key of its name.

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Failure;
use crate::config::PortEntry;
use crate::config::difference::CHANGEABLE;

/// Keys and their values, as in the file; null stands for a key that the file does not have.
#[derive(Debug, Default)]
pub struct Keys(Map<String, Value>);

impl Keys {
    /// Sets `value`.
    pub fn state(&mut self, key: &str, value: Value) {
        if !value.is_null() {
            self.0.insert(key.into(), value);
        }
    }

    /// Sets `key` to the text of an option, if it was given. "none" resets a key that can change while the port runs.
    pub fn written(&mut self, key: &str, text: Option<&str>) {
        let Some(text) = text else { return };
        let value = if text == "none" && CHANGEABLE.contains(&key) { Value::Null } else { PortEntry::value_of(key, text) };
        self.0.insert(key.into(), value);
    }

    /// All keys, if each has a value of its type.
    ///
    /// # Errors
    /// The mistakes in them.
    pub fn checked(self) -> Result<Map<String, Value>, Failure> {
        PortEntry::check_keys(&self.0)?;
        Ok(self.0)
    }
}

/// Keys that can change while a port runs; "none" resets each to its default. Each option has the name of its key.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Changeable {
    /// Weight for fair queueing at a busy receiver, relative to other senders: 1 to 1000.
    #[arg(long, value_name = "NUMBER")]
    weight: Option<String>,
    /// Transmit rate limit (guest to switch): "100Mbit", "10kpps", both as "100Mbit,10kpps", or a table as in the file.
    #[arg(long, value_name = "LIMIT")]
    transmit: Option<String>,
    /// Receive rate limit (switch to guest), in the same form.
    #[arg(long, value_name = "LIMIT")]
    receive: Option<String>,
    /// Most flooded frames (broadcast, multicast, unknown unicast) that the port may send per second, by default 200000; 0 for no
    /// limit.
    #[arg(long, value_name = "NUMBER")]
    storm: Option<String>,
    /// Filter of the guest's addresses: "mac" drops frames that are not from the port's mac, "all" also those with other IP
    /// addresses than its own, "off" drops none for that.
    #[arg(long, value_name = "RULE")]
    anti_spoof: Option<String>,
    /// IP addresses of the guest, as in the file: '["10.0.0.5"]'.
    #[arg(long, value_name = "LIST")]
    addresses: Option<String>,
    /// Addresses that the guest has inside, as in the file: '{ mac = "02:00:00:00:00:01", addresses = ["10.0.0.5"] }'; "none" where it has
    /// the port's.
    #[arg(long, value_name = "TABLE")]
    inside: Option<String>,
    /// Port of the guest of which a snapshot was taken that this guest was restored from: it has the addresses of that one inside.
    #[arg(long, value_name = "PORT")]
    twin_of: Option<String>,
    /// Further addresses that the guest may use, as in the file: '[{ mac = "00:00:5e:00:01:07", ip = "10.0.0.100" }]'.
    #[arg(long, value_name = "LIST")]
    allowed: Option<String>,
    /// Services that the guest may offer, as in the file: '["dhcp", "ra"]'.
    #[arg(long, value_name = "LIST")]
    may_serve: Option<String>,
    /// Isolation: whether the port exchanges frames only with ports that are not isolated: true or false.
    #[arg(long, value_name = "BOOL")]
    isolated: Option<String>,
    /// Frames to the reserved group addresses 01:80:c2:00:00:00 to 0f, in both directions: "pass" or "drop".
    #[arg(long, value_name = "RULE")]
    reserved: Option<String>,
    /// Groups by which policy rules name the port, as in the file: '["web"]'.
    #[arg(long, value_name = "LIST")]
    groups: Option<String>,
    /// Most addresses that memlane leases to machines behind the port, of each IP version: 1 to 1024.
    #[arg(long, value_name = "NUMBER")]
    leases: Option<String>,
    /// Labels of the port, as in the file: '{ pod = "shop/web-0" }'.
    #[arg(long, value_name = "TABLE")]
    labels: Option<String>,
    /// Link emulation towards the guest, as in the file: '{ delay = "10ms", loss = "1%" }'.
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// MAC address that is offered to the guest, and refused as a source at other ports.
    #[arg(long, value_name = "ADDRESS")]
    mac: Option<String>,
    /// MTU that is offered to the guest when it connects next.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<String>,
    /// Whether the port forwards frames, in both directions: true or false.
    #[arg(long, value_name = "BOOL", conflicts_with = "disabled")]
    enabled: Option<String>,
    /// As --enabled false.
    #[arg(long)]
    #[serde(skip)]
    disabled: bool,
}

impl Changeable {
    /// Sets the keys of the options that were given.
    pub fn state(&self, keys: &mut Keys) {
        // Strings alone: that does not fail.
        let options = serde_json::to_value(self).unwrap_or_default();
        options.as_object().into_iter().flatten().for_each(|(key, text)| keys.written(key, text.as_str()));
        keys.state("enabled", if self.disabled { json!(false) } else { Value::Null });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        keys: Changeable,
    }

    #[test]
    fn an_option_says_what_the_key_of_its_name_says() {
        let words = [
            ("weight", "3", json!(3)),
            ("transmit", "1Gbit,7pps", json!("1Gbit,7pps")),
            ("receive", "{ packets = 9 }", json!({ "packets": 9 })),
            ("storm", "0", json!(0)),
            ("anti-spoof", "mac", json!("mac")),
            ("addresses", "[\"10.0.0.5\"]", json!(["10.0.0.5"])),
            ("inside", "{ addresses = [\"10.0.0.7\"] }", json!({ "addresses": ["10.0.0.7"] })),
            ("twin-of", "base", json!("base")),
            ("allowed", "[{ ip = \"10.1.0.0/16\" }]", json!([{ "ip": "10.1.0.0/16" }])),
            ("may-serve", "[\"ra\"]", json!(["ra"])),
            ("isolated", "true", json!(true)),
            ("reserved", "drop", json!("drop")),
            ("groups", "[\"web\"]", json!(["web"])),
            ("leases", "250", json!(250)),
            ("labels", "{ pod = \"a/b\" }", json!({ "pod": "a/b" })),
            ("link", "{ loss = \"1%\" }", json!({ "loss": "1%" })),
            ("mac", "02:00:00:00:00:01", json!("02:00:00:00:00:01")),
            ("mtu", "1400", json!(1400)),
            ("enabled", "false", json!(false)),
        ];
        assert_eq!(words.each_ref().map(|word| word.0), CHANGEABLE);
        let line = words.iter().flat_map(|(key, text, _)| [format!("--{key}"), (*text).to_owned()]);
        let mut keys = Keys::default();
        Line::parse_from(std::iter::once("set".to_owned()).chain(line)).keys.state(&mut keys);
        let keys = keys.checked().unwrap();
        for (key, _, wanted) in words {
            assert_eq!(keys[key], wanted, "{key}");
        }
        let mut keys = Keys::default();
        Line::parse_from(["set", "--mtu", "none", "--disabled"]).keys.state(&mut keys);
        assert_eq!(Value::Object(keys.checked().unwrap()), json!({ "mtu": null, "enabled": false }));
    }
}
