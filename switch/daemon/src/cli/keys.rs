//! Keys of a port at the command line: an option says what the key of its name says in the file, and is read by the same rules.

use clap::Args;
use serde_json::{Map, Value, json};

use super::Failure;
use crate::config::PortEntry;
use crate::config::difference::CHANGEABLE;

/// Keys and their values, as a file would state them; null for those that are to be as if it did not.
#[derive(Debug, Default)]
pub(super) struct Keys(Map<String, Value>);

impl Keys {
    /// States `value`, if there is one.
    pub(super) fn state(&mut self, key: &str, value: Value) {
        if !value.is_null() {
            self.0.insert(key.into(), value);
        }
    }

    /// States what was written as the value of `key`, if anything was. What can change can be taken back by "none".
    pub(super) fn written(&mut self, key: &str, text: Option<&str>) {
        let Some(text) = text else { return };
        let value = if text == "none" && CHANGEABLE.contains(&key) { Value::Null } else { PortEntry::value_of(key, text) };
        self.0.insert(key.into(), value);
    }

    /// All of them, if each is one that its key takes.
    pub(super) fn checked(self) -> Result<Map<String, Value>, Failure> {
        PortEntry::check_keys(&self.0)?;
        Ok(self.0)
    }
}

/// What can change while a port runs; "none" takes any of it back.
#[derive(Debug, Args)]
pub(super) struct Changeable {
    /// The port's share of a busy receiver, compared with other senders': 1 to 1000.
    #[arg(long, value_name = "NUMBER")]
    weight: Option<String>,
    /// What the guest may transmit: "100Mbit", "10kpps", both as "100Mbit,10kpps", or a table as in the file.
    #[arg(long, value_name = "LIMIT")]
    transmit: Option<String>,
    /// What the guest may receive, likewise.
    #[arg(long, value_name = "LIMIT")]
    receive: Option<String>,
    /// Flooded frames (broadcast, multicast, unknown) that the port may send a second, by default 200000; 0 for no limit.
    #[arg(long, value_name = "NUMBER")]
    storm: Option<String>,
    /// Which frames of the guest are dropped for their source: "mac" drops those that are not from the port's mac, "off" none for that.
    #[arg(long, value_name = "RULE")]
    anti_spoof: Option<String>,
    /// What frames to the port go through, as in the file: '{ delay = "10ms", loss = "1%" }'.
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// MAC address that is offered to the guest and refused from other ports.
    #[arg(long, value_name = "ADDRESS")]
    mac: Option<String>,
    /// MTU that is offered to the guest when it connects next.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<String>,
    /// Whether the port sends and is sent anything: true or false.
    #[arg(long, value_name = "BOOL", conflicts_with = "disabled")]
    enabled: Option<String>,
    /// As --enabled false.
    #[arg(long)]
    disabled: bool,
}

impl Changeable {
    /// States what was written.
    pub(super) fn state(&self, keys: &mut Keys) {
        let options = [
            &self.weight,
            &self.transmit,
            &self.receive,
            &self.storm,
            &self.anti_spoof,
            &self.link,
            &self.mac,
            &self.mtu,
            &self.enabled,
        ];
        for (key, text) in CHANGEABLE.into_iter().zip(options) {
            keys.written(key, text.as_deref());
        }
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
