//! `memlane-cni`: a plugin of the Container Network Interface (CNI specification 1.1), by which a container runtime puts containers on
//! a segment, beside virtual machines.
//!
//! ADD makes a veth pair with one end in the container's network namespace, has an IPAM plugin choose addresses, and attaches the other
//! end to the running network as an `af-packet` port. Names of both follow from those of network, container and interface, so DEL and GC
//! find the remains of an ADD that was killed at any point.

mod error;
mod ipam;
mod request;
mod veth;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;

use axum::http::StatusCode;
use hyper::Method;
use serde_json::{Value, json};

use super::net::{Net, Socket};
use crate::config::{Attacher, PortEntry, PortOrigin};
use crate::control::{Client, ControlError, PortView, Report, detach_notes};
use crate::frame::MacAddress;
use error::{CniError, Code};
use ipam::Addresses;
use request::{Attachment, Configuration, Environment, VERSIONS, arguments, labels};
use veth::Pair;

/// Name under which the program is the plugin.
const PROGRAM: &str = "memlane-cni";
/// Most bytes of a configuration: one of a network with ten thousand attachments, for GC, has fewer.
const MOST: u64 = 4 << 20;

/// Whether the program was started as the plugin.
pub fn is_plugin(arguments: &[OsString]) -> bool {
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    name.is_some_and(|name| name == PROGRAM)
}

/// Carries out the request of the environment and of standard input, and prints its result; returns the exit code.
pub fn main() -> u8 {
    // The name of a network is no file of the folder in which the runtime was started.
    let _ = std::env::set_current_dir("/");
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(MOST + 1).read_to_end(&mut bytes);
    let newest = VERSIONS[VERSIONS.len() - 1];
    let (code, answer) = match read {
        Err(error) => (1, CniError::new(Code::Io, format!("cannot read standard input: {error}")).json(newest)),
        Ok(length) if length as u64 > MOST => {
            let text = format!("the configuration is longer than {} MiB", MOST >> 20);
            (1, CniError::new(Code::Undecodable, text).json(newest))
        }
        Ok(_) => match answer(&std::env::var("CNI_COMMAND").unwrap_or_default(), &bytes) {
            Ok(answer) => (0, answer),
            Err((version, error)) => (1, error.json(&version)),
        },
    };
    if !answer.is_null() {
        // If standard output is closed, the exit code still tells.
        let _ = writeln!(std::io::stdout(), "{answer:#}");
    }
    code
}

fn answer(command: &str, bytes: &[u8]) -> Result<Value, (String, CniError)> {
    if command == "VERSION" {
        return Ok(versions(bytes));
    }
    let configuration = Configuration::parse(bytes)?;
    let version = configuration.cni_version.clone();
    let plugin = Plugin { configuration, environment: Environment::read(), bytes };
    plugin.run(command).map_err(|error| (version, error))
}

/// The answer to VERSION: in the version of the request.
fn versions(bytes: &[u8]) -> Value {
    let asked = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    let version = asked.get("cniVersion").and_then(Value::as_str).unwrap_or(VERSIONS[VERSIONS.len() - 1]);
    json!({ "cniVersion": version, "supportedVersions": VERSIONS })
}

/// A request.
struct Plugin<'b> {
    configuration: Configuration,
    environment: Environment,
    /// The configuration as it came, for the IPAM plugin.
    bytes: &'b [u8],
}

impl Plugin<'_> {
    fn run(&self, command: &str) -> Result<Value, CniError> {
        let version = &self.configuration.cni_version[..];
        let since = |first: &str| VERSIONS.iter().position(|v| *v == first) <= VERSIONS.iter().position(|v| *v == version);
        match command {
            "ADD" => self.add(&Attachment::read()?),
            "DEL" => self.del(&Attachment::read()?),
            "CHECK" if since("0.4.0") => self.check(&Attachment::read()?),
            "GC" if since("1.1.0") => self.gc(),
            "STATUS" if since("1.1.0") => self.status(),
            "CHECK" | "GC" | "STATUS" => {
                let text = format!("version {version} of CNI has no command {command}");
                Err(CniError::new(Code::IncompatibleVersion, text))
            }
            _ => {
                let text = format!("CNI_COMMAND is {command:?}; ADD, DEL, CHECK, GC, STATUS and VERSION are known");
                Err(CniError::new(Code::InvalidEnvironment, text))
            }
        }
    }

    fn client(&self) -> Result<Client, CniError> {
        let Configuration { network, control, .. } = &self.configuration;
        let net = Net { net: network.clone(), socket: Socket { control: control.clone() } };
        net.client().map_err(|failure| match failure {
            super::Failure::Configuration(text) => CniError::new(Code::InvalidConfiguration, text),
            super::Failure::Running(text) => CniError::new(Code::TryAgainLater, text),
            super::Failure::Lacking => CniError::new(Code::TryAgainLater, "the network is not there"),
        })
    }

    /// Has the IPAM plugin carry out `command`; `null` if there is none.
    fn ipam(&self, command: &str) -> Result<Value, CniError> {
        let Some(plugin) = self.configuration.ipam() else { return Ok(Value::Null) };
        ipam::delegate(plugin, &self.environment.folders, command, self.bytes)
    }

    fn add(&self, attachment: &Attachment) -> Result<Value, CniError> {
        let netns = self.environment.netns()?;
        let host = self.configuration.host_end(attachment);
        let mac = self.configuration.mac(attachment)?;
        let pair = Pair {
            host: &host,
            container: &attachment.interface,
            mac,
            mtu: self.configuration.mtu,
            alias: self.configuration.alias(attachment),
        };
        pair.make(netns)?;
        let added = self.ipam("ADD").and_then(|addresses| self.connect(attachment, &host, MacAddress::new(mac), &addresses));
        added.inspect_err(|_| {
            // Also if the IPAM plugin's own ADD failed (section 4). The error to be told is the first one.
            drop(self.ipam("DEL"));
            drop(veth::remove(&host));
        })
    }

    /// Configures the container's end, attaches the other one, and returns the result of ADD.
    fn connect(&self, attachment: &Attachment, host: &str, mac: MacAddress, result: &Value) -> Result<Value, CniError> {
        let netns = self.environment.netns()?;
        let addresses = if result.is_null() { Addresses::default() } else { Addresses::of(result)? };
        veth::configure(netns, &attachment.interface, &addresses)?;
        let mut entry = self.configuration.entry(host, &mac.to_string(), &addresses.plain()?);
        let stated = entry.entry("labels").or_insert_with(|| json!({}));
        if let Some(stated) = stated.as_object_mut() {
            for (key, value) in labels(attachment, &arguments()) {
                stated.entry(key).or_insert(value);
            }
        }
        let client = self.client()?;
        if self.port_is_there(&client, host)? {
            // Of an ADD that was killed: its interface is gone, and this one has the name.
            self.detach(&client, host)?;
        }
        let unwritten = |error| CniError::new(Code::Io, format!("cannot take back the note to detach {host}: {error}"));
        detach_notes::forget(client.path(), host).map_err(unwritten)?;
        let origin = PortOrigin::labelled(Attacher::Cni, &attachment.container);
        let attach = || client.attach(entry.clone(), &origin);
        match attach() {
            // A container that has ended without DEL may have had the address.
            Err(ControlError::Refused(refusal)) if refusal.status == StatusCode::CONFLICT => {
                self.detach_gone(&client, &veth::host_ends().map_err(unlisted)?, &[])?;
                attach()?
            }
            attached => attached?,
        };
        Ok(self.result(attachment, host, mac, result))
    }

    /// The result of ADD: behind that of the plugins before this one in the list, the interfaces, and the IPAM plugin's addresses at
    /// the container's.
    fn result(&self, attachment: &Attachment, host: &str, mac: MacAddress, addresses: &Value) -> Value {
        let sandbox = self.environment.netns.as_deref().map(|path| path.display().to_string());
        let host_mac =
            veth::host_ends().ok().and_then(|all| all.into_iter().find(|found| found.name == host)).map(|found| found.mac);
        let before = self.configuration.prev_result.clone().filter(Value::is_object).unwrap_or_else(|| json!({}));
        let container = before["interfaces"].as_array().map_or(0, Vec::len) + 1;
        let mut own = if addresses.is_object() { addresses.clone() } else { json!({ "ips": [] }) };
        own["interfaces"] = json!([
            { "name": host, "mac": host_mac.unwrap_or_default() },
            { "name": attachment.interface, "mac": mac.to_string(), "sandbox": sandbox.unwrap_or_default() },
        ]);
        for ip in own["ips"].as_array_mut().into_iter().flatten() {
            ip["interface"] = json!(container);
        }
        let mut answer = joined(before, own);
        answer["cniVersion"] = json!(self.configuration.cni_version);
        answer
    }

    fn del(&self, attachment: &Attachment) -> Result<Value, CniError> {
        let host = self.configuration.host_end(attachment);
        self.take_away(&host)?;
        self.ipam("DEL")?;
        Ok(Value::Null)
    }

    /// Detaches the port `host` and deletes its interface. A network that does not run is left a note for its next start.
    fn take_away(&self, host: &str) -> Result<(), CniError> {
        let client = self.client()?;
        match self.detach(&client, host) {
            Err(error) if error.is_no_listener() => {
                let unwritten = |cause| {
                    CniError::new(
                        Code::TryAgainLater,
                        format!("{error}; and the note to detach {host} at its next start cannot be left: {cause}"),
                    )
                };
                detach_notes::add(client.path(), host).map_err(unwritten)?;
                // Started meanwhile, the network may have missed it.
                drop(self.detach(&client, host));
            }
            detached => detached?,
        }
        veth::remove(host).map_err(|error| CniError::new(Code::Io, format!("cannot delete the interface {host}: {error}")))
    }

    /// Detaches the port `name`, if it is there.
    fn detach(&self, client: &Client, name: &str) -> Result<(), ControlError> {
        match client.ask::<PortEntry>(Method::DELETE, &format!("/v1/ports/{name}"), None::<&()>) {
            Err(ControlError::Refused(refusal)) if refusal.status == StatusCode::NOT_FOUND => Ok(()),
            detached => detached.map(drop),
        }
    }

    /// Detaches the ports of this CNI network that have no interface among `found` any more, except for `valid` ones; the first error.
    fn detach_gone(&self, client: &Client, found: &[veth::Found], valid: &[String]) -> Result<(), CniError> {
        let report = client.get::<Report>("/v1/network")?;
        let (prefix, kind) = (self.configuration.prefix(), "af-packet");
        let is_gone = |name: &str| !found.iter().any(|found| found.name == name) && !valid.iter().any(|valid| valid == name);
        let gone = report.ports.iter().filter(|port| port.kind == kind && port.name.starts_with(&prefix) && is_gone(&port.name));
        let mut outcome = Ok(());
        for port in gone {
            outcome = outcome.and(self.detach(client, &port.name).map_err(Into::into));
        }
        outcome
    }

    fn port_is_there(&self, client: &Client, name: &str) -> Result<bool, CniError> {
        match client.get::<PortView>(&format!("/v1/ports/{name}")) {
            Ok(_) => Ok(true),
            Err(ControlError::Refused(refusal)) if refusal.status == StatusCode::NOT_FOUND => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn check(&self, attachment: &Attachment) -> Result<Value, CniError> {
        let wrong = |text: String| CniError::new(Code::Check, text);
        let before = self.configuration.prev_result.as_ref();
        let before = before.ok_or_else(|| CniError::new(Code::InvalidConfiguration, "CHECK needs prevResult"))?;
        let (host, interface) = (self.configuration.host_end(attachment), &attachment.interface);
        let end = veth::container_end(self.environment.netns()?, interface)?;
        let end = end.ok_or_else(|| wrong(format!("the container has no interface {interface}")))?;
        end.check(interface, before)?;
        let client = self.client()?;
        if !self.port_is_there(&client, &host)? {
            return Err(wrong(format!("the network has no port {host}")));
        }
        self.ipam("CHECK")?;
        Ok(Value::Null)
    }

    /// Removes interfaces of this CNI network without a valid attachment, and ports without an interface.
    fn gc(&self) -> Result<Value, CniError> {
        let configuration = &self.configuration;
        let Some(valid) = &configuration.valid_attachments else {
            return Err(CniError::new(Code::InvalidConfiguration, "GC needs cni.dev/valid-attachments"));
        };
        let valid: Vec<String> = valid.iter().map(|attachment| configuration.host_end(attachment)).collect();
        let (prefix, alias) = (configuration.prefix(), configuration.alias_prefix());
        // One without an alias was left half made.
        let is_ours =
            |found: &veth::Found| found.name.starts_with(&prefix) && (found.alias.is_empty() || found.alias.starts_with(&alias));
        let found = veth::host_ends().map_err(unlisted)?;
        // An error ends nothing: as much as possible is removed, and the first error told (section 2).
        let mut outcome = Ok(());
        for found in found.iter().filter(|found| is_ours(found) && !valid.contains(&found.name)) {
            outcome = outcome.and(self.take_away(&found.name));
        }
        let gone = self.client().and_then(|client| self.detach_gone(&client, &found, &valid));
        // A network that does not run has no ports: GC comes again.
        let gone = gone.or_else(|error| if error.is_for_later() { Ok(()) } else { Err(error) });
        outcome = outcome.and(gone);
        outcome.and(self.ipam("GC")).map(|_| Value::Null)
    }

    /// Whether ADD can succeed.
    fn status(&self) -> Result<Value, CniError> {
        let report = self.client().and_then(|client| Ok(client.get::<Report>("/v1/network")?));
        report.map_err(|error| match error {
            CniError::Own { text, .. } => CniError::new(Code::NotAvailable, text),
            delegated @ CniError::Delegated(_) => delegated,
        })?;
        self.ipam("STATUS")?;
        Ok(Value::Null)
    }
}

fn unlisted(error: std::io::Error) -> CniError {
    CniError::new(Code::Io, format!("cannot list interfaces: {error}"))
}

/// The result `before` of other plugins, with `own` behind it: lists are continued, and other keys are those of the first.
fn joined(mut before: Value, own: Value) -> Value {
    let Value::Object(own) = own else { return before };
    for (key, value) in own {
        match (before.get_mut(&key), value) {
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
            (None | Some(Value::Null), value) => before[key] = value,
            (Some(_), _) => {}
        }
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_continued_and_nothing_before_is_lost() {
        let before =
            json!({ "interfaces": [{ "name": "a" }], "ips": [{ "address": "10.0.0.1/8" }], "dns": { "domain": "a" }, "more": 1 });
        let own =
            json!({ "interfaces": [{ "name": "b" }], "ips": [], "routes": [{ "dst": "0.0.0.0/0" }], "dns": { "domain": "b" } });
        let both = json!({ "interfaces": [{ "name": "a" }, { "name": "b" }], "ips": [{ "address": "10.0.0.1/8" }],
            "routes": [{ "dst": "0.0.0.0/0" }], "dns": { "domain": "a" }, "more": 1 });
        assert_eq!(joined(before, own.clone()), both);
        assert_eq!(joined(json!({}), own.clone()), own);
    }
}
