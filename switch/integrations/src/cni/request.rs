//! A request of the runtime: environment variables, and a configuration on standard input (CNI specification 1.1, section 2).

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::error::{CniError, Code};
use crate::port::{default_address, short_hash};

/// Versions of the specification that the plugin speaks.
pub(super) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Most bytes of an interface name (IFNAMSIZ).
const INTERFACE: usize = 15;

/// The network configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Configuration {
    pub(super) cni_version: String,
    pub(super) name: String,
    /// Name of the running memlane network, or the path of its file.
    pub(super) network: Option<PathBuf>,
    /// Control socket of the network, where that is not at its usual place.
    pub(super) control: Option<PathBuf>,
    pub(super) segment: Option<String>,
    pub(super) mtu: Option<u16>,
    /// Further keys of the port.
    #[serde(default, deserialize_with = "null_is_none")]
    pub(super) port: Map<String, Value>,
    pub(super) ipam: Option<Ipam>,
    #[serde(default, deserialize_with = "null_is_none")]
    runtime_config: RuntimeConfiguration,
    pub(super) prev_result: Option<Value>,
    /// Attachments that GC leaves. A runtime written in Go that has none says null.
    #[serde(rename = "cni.dev/valid-attachments", default, deserialize_with = "list_or_null")]
    pub(super) valid_attachments: Option<Vec<Attachment>>,
}

/// The default for null, as Go writes lists and maps without elements.
fn null_is_none<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Option::deserialize(value).map(Option::unwrap_or_default)
}

/// Like [`null_is_none`], of a key that has to be there.
fn list_or_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<Vec<T>>, D::Error> {
    null_is_none(value).map(Some)
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Ipam {
    #[serde(rename = "type")]
    pub(super) plugin: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RuntimeConfiguration {
    mac: Option<String>,
}

/// A container's interface on the network.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Attachment {
    #[serde(rename = "containerID")]
    pub(super) container: String,
    #[serde(rename = "ifname")]
    pub(super) interface: String,
}

/// The variables of the environment, as far as a command needs them.
#[derive(Debug, Default)]
pub(super) struct Environment {
    pub(super) netns: Option<PathBuf>,
    pub(super) folders: Vec<PathBuf>,
}

impl Configuration {
    /// Parses standard input.
    ///
    /// # Errors
    /// With the version that it names, as far as it can be read.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, (String, CniError)> {
        let newest = || VERSIONS[VERSIONS.len() - 1].to_owned();
        let undecodable = |error| (newest(), CniError::new(Code::Undecodable, format!("cannot parse the configuration: {error}")));
        let mut value: Value = serde_json::from_slice(bytes).map_err(undecodable)?;
        let version = value.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0").to_owned();
        if !VERSIONS.contains(&&version[..]) {
            let text = format!("version {version:?} of CNI is not supported; these are: {}", VERSIONS.join(", "));
            return Err((newest(), CniError::new(Code::IncompatibleVersion, text)));
        }
        if let Some(map) = value.as_object_mut() {
            map.insert("cniVersion".into(), json!(version));
        }
        let invalid = |text: String| (version.clone(), CniError::new(Code::InvalidConfiguration, text));
        let configuration: Self =
            serde_json::from_value(value).map_err(|error| invalid(format!("the configuration is invalid: {error}")))?;
        if !is_identifier(&configuration.name) {
            return Err(invalid("name must consist of letters, digits, '_', '.' and '-', and begin with a letter or digit".into()));
        }
        Ok(configuration)
    }

    /// The object `ipam` names a plugin.
    pub(super) fn ipam(&self) -> Option<&str> {
        self.ipam.as_ref()?.plugin.as_deref().filter(|plugin| !plugin.is_empty())
    }

    /// The MAC address of the container's interface: the one that the runtime asks for, or one that depends on its names alone.
    pub(super) fn mac(&self, attachment: &Attachment) -> Result<[u8; 6], CniError> {
        let Some(mac) = &self.runtime_config.mac else {
            return Ok(default_address(&self.name, &format!("{}/{}", attachment.container, attachment.interface)).bytes());
        };
        let parsed = mac.parse::<crate::frame::MacAddress>().ok().filter(|mac| mac.is_unicast());
        let invalid =
            || CniError::new(Code::InvalidConfiguration, format!("runtimeConfig.mac is {mac:?}, and no unicast MAC address"));
        parsed.map(|mac| mac.bytes()).ok_or_else(invalid)
    }

    /// The beginning of the names of all host ends of this CNI network.
    pub(super) fn prefix(&self) -> String {
        format!("ml{:04x}", short_hash(self.name.bytes()) & 0xffff)
    }

    /// The name of the host end of an attachment, and of its port.
    pub(super) fn host_end(&self, Attachment { container, interface }: &Attachment) -> String {
        let hash = short_hash(container.bytes().chain([0]).chain(interface.bytes()));
        format!("{}{:09x}", self.prefix(), (hash ^ hash >> 36) & 0xf_ffff_ffff)
    }

    /// The alias of the host end, by which GC recognises it.
    pub(super) fn alias(&self, Attachment { container, interface }: &Attachment) -> String {
        format!("{}{container} {interface}", self.alias_prefix())
    }

    /// The beginning of the aliases of this CNI network.
    pub(super) fn alias_prefix(&self) -> String {
        format!("memlane-cni {} ", self.name)
    }

    /// The entry of the port `name`, as in the network's file.
    pub(super) fn entry(&self, name: &str, mac: &str, addresses: &[IpAddr]) -> Map<String, Value> {
        let mut entry = Map::new();
        let mut state = |key: &str, value: Value| drop((!value.is_null()).then(|| entry.insert(key.into(), value)));
        state("mac", json!(mac));
        state("addresses", json!(addresses));
        state("segment", json!(self.segment));
        state("mtu", json!(self.mtu));
        for (key, value) in &self.port {
            state(key, value.clone());
        }
        state("name", json!(name));
        state("af-packet", json!(name));
        entry
    }
}

/// Most bytes of a label's value.
const LONGEST_LABEL: usize = 256;

/// Labels of the port of an attachment: its container, and its pod where the runtime names one in these `arguments` (CNI_ARGS, as
/// `K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0`).
pub(super) fn labels(attachment: &Attachment, arguments: &str) -> Map<String, Value> {
    let argument = |name: &str| {
        let mut pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value)
    };
    let pod =
        argument("K8S_POD_NAME").map(|name| argument("K8S_POD_NAMESPACE").map_or_else(|| name.into(), |of| format!("{of}/{name}")));
    let labels = [("container", Some(attachment.container.clone())), ("pod", pod)];
    let is_label = |value: &String| value.len() <= LONGEST_LABEL && !value.contains(char::is_control);
    labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value.filter(is_label)?)))).collect()
}

/// Arguments of the runtime.
pub(super) fn arguments() -> String {
    variable("CNI_ARGS").unwrap_or_default()
}

impl Environment {
    /// Reads the variables.
    pub(super) fn read() -> Self {
        let folders = std::env::var_os("CNI_PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
        Self { netns: variable("CNI_NETNS").map(PathBuf::from), folders }
    }

    /// The container's network namespace.
    pub(super) fn netns(&self) -> Result<&PathBuf, CniError> {
        self.netns.as_ref().ok_or_else(|| missing("CNI_NETNS"))
    }
}

impl Attachment {
    /// The attachment that the environment names.
    pub(super) fn read() -> Result<Self, CniError> {
        let container = variable("CNI_CONTAINERID").ok_or_else(|| missing("CNI_CONTAINERID"))?;
        let interface = variable("CNI_IFNAME").ok_or_else(|| missing("CNI_IFNAME"))?;
        let attachment = Self { container, interface };
        let invalid = |name: &str, text: &str| CniError::new(Code::InvalidEnvironment, format!("{name} is invalid: {text}"));
        if !is_identifier(&attachment.container) {
            return Err(invalid("CNI_CONTAINERID", "it must consist of letters, digits, '_', '.' and '-'"));
        }
        if !is_interface(&attachment.interface) {
            return Err(invalid("CNI_IFNAME", "it must be an interface name of 1 to 15 characters"));
        }
        Ok(attachment)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn missing(name: &str) -> CniError {
    CniError::new(Code::InvalidEnvironment, format!("the environment variable {name} is missing"))
}

/// Names of networks and containers (section 2): a letter or digit, then also `_`, `.` and `-`.
fn is_identifier(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && letters.all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn is_interface(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_graphic() && !"/:".contains(c);
    (1..=INTERFACE).contains(&text.len()) && text.chars().all(is_letter) && ![".", ".."].contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_labelled_with_its_container_and_its_pod() {
        let attachment = Attachment { container: "c0ffee".into(), interface: "eth0".into() };
        let of = |arguments: &str| Value::Object(labels(&attachment, arguments));
        assert_eq!(
            of("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"),
            json!({ "container": "c0ffee", "pod": "shop/web-0" })
        );
        assert_eq!(of("K8S_POD_NAME=web-0"), json!({ "container": "c0ffee", "pod": "web-0" }));
        for none in ["", ";;=", "K8S_POD_NAME", "K8S_POD_NAME=a\nb"] {
            assert_eq!(of(none), json!({ "container": "c0ffee" }), "{none:?}");
        }
    }

    fn parsed(text: &str) -> Configuration {
        Configuration::parse(text.as_bytes()).unwrap()
    }

    fn code(text: &str) -> Value {
        let (version, error) = Configuration::parse(text.as_bytes()).unwrap_err();
        error.json(&version)["code"].clone()
    }

    #[test]
    fn garbage_is_answered_with_the_codes_of_the_specification() {
        for garbage in ["", "garbage", "{", "[1", "\u{0}"] {
            assert_eq!(code(garbage), 6, "{garbage:?}");
        }
        for version in ["{}", r#"{"cniVersion":"9.0.0","name":"a"}"#, r#"{"cniVersion":7,"name":"a"}"#, "[]", "7"] {
            assert_eq!(code(version), 1, "{version}");
        }
        for invalid in [r#""name":7"#, r#""name":"""#, r#""name":"a b""#, r#""name":"-a""#, r#""name":"a","mtu":"x""#, r#""x":1"#] {
            assert_eq!(code(&format!(r#"{{"cniVersion":"1.1.0",{invalid}}}"#)), 7, "{invalid}");
        }
    }

    #[test]
    fn null_is_a_list_or_map_without_elements_and_a_missing_key_is_none() {
        let text =
            r#"{"cniVersion":"1.1.0","name":"a","port":null,"runtimeConfig":null,"ipam":null,"cni.dev/valid-attachments":null}"#;
        let configuration = parsed(text);
        assert_eq!(configuration.valid_attachments.map(|list| list.len()), Some(0));
        assert!(configuration.port.is_empty() && configuration.runtime_config.mac.is_none());
        assert!(parsed(r#"{"cniVersion":"1.1.0","name":"a"}"#).valid_attachments.is_none());
    }

    #[test]
    fn a_configuration_that_is_cut_off_anywhere_is_undecodable() {
        let whole = r#"{"cniVersion":"1.1.0","name":"a","ipam":{"type":"b"},"cni.dev/valid-attachments":[{"containerID":"c","ifname":"d"}]}"#;
        parsed(whole);
        for length in 0..whole.len() {
            assert_eq!(code(&whole[..length]), 6, "{}", &whole[..length]);
        }
    }

    #[test]
    fn names_of_host_ends_differ_and_fit() {
        let (a, b) = (parsed(r#"{"cniVersion":"1.1.0","name":"a"}"#), parsed(r#"{"cniVersion":"1.1.0","name":"b"}"#));
        let of = |container: &str, interface: &str| Attachment { container: container.into(), interface: interface.into() };
        let names = [
            a.host_end(&of("c1", "eth0")),
            a.host_end(&of("c1", "eth1")),
            a.host_end(&of("c2", "eth0")),
            b.host_end(&of("c1", "eth0")),
        ];
        assert!(names.iter().all(|name| name.len() == 15 && is_interface(name)));
        assert!(names[..3].iter().all(|name| name.starts_with(&a.prefix())) && !names[3].starts_with(&a.prefix()));
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        // A later version finds the interfaces of this one.
        assert_eq!(names[0], a.host_end(&of("c1", "eth0")));
    }

    #[test]
    fn keys_of_the_port_are_the_files_own_and_its_names_are_not_to_be_changed() {
        let text = r#"{"cniVersion":"1.1.0","name":"a","segment":"back","mtu":9000,
            "port":{"transmit":"1Gbit","name":"other","af-packet":"eth0","anti-spoof":"all"}}"#;
        let entry = parsed(text).entry("ml1", "02:00:00:00:00:01", &["10.0.0.5".parse().unwrap()]);
        let wanted = json!({"name": "ml1", "af-packet": "ml1", "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.5"], "segment": "back",
            "mtu": 9000, "transmit": "1Gbit", "anti-spoof": "all"});
        assert_eq!(Value::Object(entry), wanted);
    }

    #[test]
    fn identifiers_are_those_of_the_specification() {
        assert!(["a", "0", "a-b_c.d"].into_iter().all(is_identifier));
        assert!(!["", "-a", ".a", "a b", "a/b", "ä"].into_iter().any(is_identifier));
        assert!(is_interface("eth0") && !["", ".", "..", "a/b", "a b", "a:b", "0123456789abcdef"].into_iter().any(is_interface));
    }
}
