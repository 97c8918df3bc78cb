//! Addresses, from the IPAM plugin that the configuration names (CNI specification 1.1, section 4).

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use super::error::{CniError, Code};

/// The part of an IPAM plugin's result that configures an interface.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Addresses {
    #[serde(default)]
    pub(super) ips: Vec<Address>,
    #[serde(default)]
    pub(super) routes: Vec<Route>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Address {
    /// With the length of its prefix.
    address: String,
    pub(super) gateway: Option<IpAddr>,
    /// Place of the interface among the interfaces of the result; an IPAM plugin leaves it out.
    pub(super) interface: Option<usize>,
}

/// A route; its attributes are of version 1.1, and those of `ip route`: `mtu` is the path MTU.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Route {
    dst: String,
    pub(super) gw: Option<IpAddr>,
    pub(super) mtu: Option<u32>,
    pub(super) advmss: Option<u32>,
    pub(super) priority: Option<u32>,
    pub(super) table: Option<u32>,
    pub(super) scope: Option<u8>,
}

impl Address {
    pub(super) fn prefix(&self) -> Result<(IpAddr, u8), CniError> {
        prefix(&self.address)
    }
}

impl Route {
    pub(super) fn destination(&self) -> Result<(IpAddr, u8), CniError> {
        prefix(&self.dst)
    }
}

impl Addresses {
    /// The addresses of `result`.
    pub(super) fn of(result: &Value) -> Result<Self, CniError> {
        // serde would read an array as the fields in their order.
        if !result.is_object() {
            return Err(nonsense("it is no JSON object"));
        }
        serde_json::from_value(result.clone()).map_err(nonsense)
    }

    /// The addresses without their prefixes.
    pub(super) fn plain(&self) -> Result<Vec<IpAddr>, CniError> {
        self.ips.iter().map(|ip| ip.prefix().map(|(address, _)| address)).collect()
    }
}

fn nonsense(error: impl std::fmt::Display) -> CniError {
    CniError::new(Code::Undecodable, format!("cannot parse the result of the IPAM plugin: {error}"))
}

fn prefix(text: &str) -> Result<(IpAddr, u8), CniError> {
    let parse = || {
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let length = length.parse().ok().filter(|&length| length <= if address.is_ipv4() { 32 } else { 128 })?;
        Some((address, length))
    };
    parse().ok_or_else(|| nonsense(format!("{text:?} is no address with a prefix")))
}

/// Runs `plugin` of `folders` for `command` with this process's environment and the `configuration`; returns its output, `null` if
/// there is none.
///
/// # Errors
/// There is no such plugin, or it failed.
pub(super) fn delegate(plugin: &str, folders: &[PathBuf], command: &str, configuration: &[u8]) -> Result<Value, CniError> {
    let program = folders.iter().map(|folder| folder.join(plugin)).find(|program| program.is_file());
    let Some(program) = program.filter(|_| !plugin.contains('/')) else {
        let text = format!(
            "there is no IPAM plugin {plugin:?} in the folders of CNI_PATH. Install it: apt install containernetworking-plugins"
        );
        return Err(CniError::new(Code::InvalidConfiguration, text));
    };
    let failed = |error: std::io::Error| CniError::new(Code::Io, format!("cannot run {}: {error}", program.display()));
    let mut child =
        Command::new(&program).env("CNI_COMMAND", command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A plugin need not read all.
        let _ = input.write_all(configuration);
    }
    let output = child.wait_with_output().map_err(failed)?;
    let answer = (!output.stdout.trim_ascii().is_empty()).then(|| serde_json::from_slice(&output.stdout).map_err(nonsense));
    match (output.status.success(), answer.transpose()) {
        (true, answer) => Ok(answer?.unwrap_or(Value::Null)),
        (false, Ok(Some(error))) if error.get("code").is_some() => Err(CniError::Delegated(error)),
        (false, _) => Err(CniError::new(Code::Io, format!("{} failed: {}", program.display(), output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prefixes_are_checked() {
        assert_eq!(prefix("10.1.0.5/16").unwrap(), ("10.1.0.5".parse().unwrap(), 16));
        assert_eq!(prefix("fd00::5/64").unwrap(), ("fd00::5".parse().unwrap(), 64));
        for bad in ["", "10.1.0.5", "10.1.0.5/33", "fd00::5/129", "x/8", "10.1.0.5/-1", "/"] {
            assert!(prefix(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_result_of_any_version_is_read() {
        let old = json!({"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1"}],
            "routes": [{"dst": "0.0.0.0/0"}]});
        let addresses = Addresses::of(&old).unwrap();
        assert_eq!(addresses.ips[0].gateway, Some("10.1.0.1".parse().unwrap()));
        assert_eq!(addresses.routes[0].destination().unwrap(), ("0.0.0.0".parse().unwrap(), 0));
        assert!(Addresses::of(&json!({})).unwrap().ips.is_empty());
        assert!(Addresses::of(&json!({"ips": [{"address": 7}]})).is_err() && Addresses::of(&json!([])).is_err());
    }
}
