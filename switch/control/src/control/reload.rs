//! Reload: the change from one configuration to another, port by port: first ports are removed, then changed, then added. Policy rules
//! are replaced before ports change. Ports
//! without a difference are not touched, nor those of other origins than the file. A port with a guest is neither removed nor attached
//! anew, unless the operator names it. Uplinks are removed before ports change, and added after: the change may be a port's
//! MTU.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::daemon_handle::DaemonHandle;
use crate::config::difference::{Changed, Difference};
use crate::config::{Config, PortConfig, PortOrigin, UplinkConfig};
use crate::daemon::Daemon;

/// Options of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadOptions {
    /// Only report the changes, without making them.
    pub dry_run: bool,
    /// Change the ports even if keys beside them differ, which only a restart changes.
    pub ports_only: bool,
    /// Remove ports of other origins than the file, too.
    pub prune: bool,
    /// Names of the ports that may be removed or attached anew while a guest is connected, and if the file may be incomplete.
    pub force: Vec<String>,
    /// The file ends in the middle of a line, or a program has it open for writing.
    pub cut_off: bool,
}

impl ReloadOptions {
    fn forces(&self, port: &str) -> bool {
        self.force.iter().any(|name| name == port)
    }

    /// Why this `difference` to the network `now` is refused, if so.
    pub(super) fn refuse(&self, difference: &Difference, now: &Config) -> Option<String> {
        let removed = &difference.removed;
        let unnamed: Vec<&str> = removed.iter().map(|port| port.name.as_str()).filter(|name| !self.forces(name)).collect();
        if unnamed.is_empty() {
            return None;
        }
        let names = unnamed.join(",");
        let ports = now.ports.iter().filter(|port| self.prune || port.origin.is_file()).count();
        if removed.len() == ports {
            let text = "the file contains none of its running ports, so all of them would be detached";
            return Some(format!(
                "{text} ({ports} now). Check the file, or name the ports to detach: `memlane reload --force {names}`"
            ));
        }
        let text = "the file may have been cut off (it ends in the middle of a line, or another program has it open for writing): it lacks \
                    the ports";
        let remedy = "End its last line and close it, or name the ports to detach: `memlane reload --force";
        self.cut_off.then(|| format!("{text} {}. {remedy} {names}`", unnamed.join(", ")))
    }

    /// Takes the ports of other origins out of those that `difference` removes.
    pub(super) fn keep_others(&self, difference: &mut Difference) -> Vec<KeptPort> {
        let others = difference.removed.extract_if(.., |port| !self.prune && !port.origin.is_file());
        others.map(|port| KeptPort { name: port.name, origin: port.origin }).collect()
    }

    /// Takes out of `difference` the ports that would be removed or attached anew though they are `connected`.
    pub(super) fn leave_connected(&self, difference: &mut Difference, connected: &HashSet<String>) -> Vec<LeftPort> {
        let stays = |name: &String| connected.contains(name) && !self.forces(name);
        let removed = difference.removed.extract_if(.., |port| stays(&port.name));
        let mut left: Vec<LeftPort> = removed.map(|port| LeftPort { name: port.name, keys: Vec::new() }).collect();
        let changed = difference.changed.extract_if(.., |changed| !changed.in_place() && stays(&changed.after.name));
        left.extend(changed.map(|changed| LeftPort { keys: changed.fixed_keys(), name: changed.after.name }));
        difference.adopted.retain(|name| !left.iter().any(|port| port.name == *name));
        left
    }
}

/// Ports that a reload does not touch, though the file lacks them or has them otherwise.
#[derive(Clone, Debug, Default)]
pub(super) struct Untouchable {
    pub(super) kept: Vec<KeptPort>,
    pub(super) left: Vec<LeftPort>,
}

/// Changes that a reload made, or would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct Reloaded {
    /// Ports that were added.
    pub added: Vec<String>,
    /// Ports that were removed.
    pub removed: Vec<String>,
    /// Ports with differences.
    pub changed: Vec<ChangedPort>,
    /// Ports without a difference.
    pub untouched: Vec<String>,
    /// Ports that the file would remove or attach anew, and that were left as they are because a guest is connected.
    pub left: Vec<LeftPort>,
    /// Ports of other origins, which the file does not have.
    pub kept: Vec<KeptPort>,
    /// Segments that got an uplink to other hosts, or a different one.
    pub uplinks_added: Vec<String>,
    /// Segments that lost their uplink.
    pub uplinks_removed: Vec<String>,
    /// The policy rules were replaced.
    pub policy: bool,
    /// Other segments have multicast snooping.
    pub multicast: bool,
    /// Keys beside the ports with a difference, which only a restart changes.
    pub restart: Vec<String>,
    /// Changes that failed; all others were made.
    pub failed: Vec<Failed>,
    /// True if nothing was changed: the report is a plan.
    pub dry_run: bool,
    /// Why it would be refused, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A port with differences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ChangedPort {
    /// Its name.
    pub name: String,
    /// Keys with different values.
    pub keys: Vec<String>,
    /// The port was detached and attached again, because some keys cannot change while it runs.
    pub anew: bool,
}

/// A port that was left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LeftPort {
    /// Name of the port.
    pub name: String,
    /// Keys that cannot change while it is attached; empty if the file does not have the port.
    pub keys: Vec<String>,
}

impl LeftPort {
    /// The cause in a sentence, and the remedy.
    pub fn told(&self) -> String {
        let Self { name, keys } = self;
        match keys.is_empty() {
            true => format!("a guest is connected, and the file lacks the port: `memlane reload --force {name}` detaches it"),
            false => format!(
                "a guest is connected, and {} cannot change meanwhile: `memlane reload --force {name}` attaches the port anew",
                keys.join(", ")
            ),
        }
    }
}

/// A port of another origin than the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KeptPort {
    /// Name of the port.
    pub name: String,
    /// Origin of the port.
    pub origin: PortOrigin,
}

/// A port or a segment's uplink with a failed change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Failed {
    /// Its name.
    pub name: String,
    /// The cause, and the present state.
    pub error: String,
}

impl Reloaded {
    /// The planned changes, or why they are refused.
    pub(super) fn planned(difference: &Difference, untouchable: Untouchable, refused: Option<String>) -> Self {
        let names = |ports: &[PortConfig]| ports.iter().map(|port| port.name.clone()).collect();
        Self {
            added: names(&difference.added),
            removed: names(&difference.removed),
            changed: difference.changed.iter().map(told).collect(),
            untouched: difference.untouched.clone(),
            left: untouchable.left,
            kept: untouchable.kept,
            uplinks_added: segments(&difference.uplinks_added),
            uplinks_removed: ending(difference),
            policy: difference.policy.is_some(),
            multicast: difference.snooping.is_some(),
            restart: difference.restart.iter().map(|&key| key.into()).collect(),
            failed: Vec::new(),
            dry_run: true,
            refused,
        }
    }

    /// Whether the network has all that the file says.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.left.is_empty()
    }

    /// Names of ports and uplinks that are not as the file says.
    pub fn unfinished(&self) -> Vec<String> {
        let left = self.left.iter().map(|port| port.name.clone());
        self.failed.iter().map(|failed| failed.name.clone()).chain(left).collect()
    }

    fn fail(&mut self, name: &str, error: impl ToString) {
        self.failed.push(Failed { name: name.into(), error: error.to_string() });
    }
}

fn told(changed: &Changed) -> ChangedPort {
    ChangedPort { name: changed.after.name.clone(), keys: changed.keys.clone(), anew: !changed.in_place() }
}

fn segments(uplinks: &[UplinkConfig]) -> Vec<String> {
    uplinks.iter().map(|uplink| uplink.segment().to_owned()).collect()
}

/// Segments that lose their uplink without getting another.
fn ending(difference: &Difference) -> Vec<String> {
    let goes_on = segments(&difference.uplinks_added);
    segments(&difference.uplinks_removed).into_iter().filter(|segment| !goes_on.contains(segment)).collect()
}

/// Makes the changes; reports successes and failures. Each port is then attached completely or not at all. The daemon is asked
/// step by step, so that the end of the network waits for one step only.
pub(super) fn carry_out(
    handle: &DaemonHandle,
    difference: &mut Difference,
    untouchable: Untouchable,
    options: &ReloadOptions,
) -> Reloaded {
    let mut done = Reloaded {
        untouched: difference.untouched.clone(),
        left: untouchable.left,
        kept: untouchable.kept,
        restart: difference.restart.iter().map(|&key| key.into()).collect(),
        ..Reloaded::default()
    };
    // All are removed before any is added: a new port may claim a resource of an old one.
    detach_all(handle, difference, options, &mut done);
    let (in_place, anew): (Vec<_>, Vec<_>) = difference.changed.iter().partition(|changed| changed.in_place());
    for uplink in &difference.uplinks_removed {
        // Fails only while the network ends, and then the uplink is removed with it.
        let _ = handle.ask(|daemon| daemon.remove_uplink(uplink.segment()));
    }
    done.uplinks_removed = ending(difference);
    if let Some(rules) = &difference.policy {
        done.policy = handle.ask(|daemon| daemon.network().set_policy(rules)).is_ok();
    }
    if let Some(segments) = &difference.snooping {
        match handle.ask(|daemon| daemon.network().set_snooping(segments)) {
            Ok(Ok(())) => done.multicast = true,
            Ok(Err(error)) => done.fail("multicast", error),
            // The network ends.
            Err(_) => {}
        }
    }
    let _ = handle.ask(|daemon| change_all(daemon, &in_place, &mut done));
    let adopted: Vec<&str> = difference.adopted.iter().map(String::as_str).collect();
    let _ = handle.ask(|daemon| daemon.adopt(&adopted));
    for uplink in &difference.uplinks_added {
        let _ = handle.ask(|daemon| start_uplink(daemon, uplink, difference, &mut done));
    }
    for changed in anew {
        attach_anew(handle, changed, &mut done);
    }
    for port in &difference.added {
        match handle.attach(port) {
            Ok(()) => done.added.push(port.name.clone()),
            Err(error) => done.fail(&port.name, error),
        }
    }
    done
}

/// Detaches removed ports and those to be attached again, all at once: front ends that do not read their last reply delay a
/// reload by one timeout. A guest that has connected since the plan was made stays.
fn detach_all(handle: &DaemonHandle, difference: &mut Difference, options: &ReloadOptions, done: &mut Reloaded) {
    let (names, gone) = handle
        .ask(|daemon| {
            done.left.extend(options.leave_connected(difference, &daemon.connected()));
            let removed = difference.removed.iter().map(|port| port.name.clone());
            let anew = difference.changed.iter().filter(|changed| !changed.in_place()).map(|changed| changed.before.name.clone());
            let names: Vec<String> = removed.chain(anew).collect();
            let gone = daemon.detach_all(&names.iter().map(String::as_str).collect::<Vec<_>>());
            (names, gone)
        })
        .unwrap_or_default();
    for (index, (name, gone)) in names.iter().zip(gone).enumerate() {
        match gone {
            Ok(_) if index < difference.removed.len() => done.removed.push(name.clone()),
            Ok(_) => {}
            Err(error) => done.fail(name, error),
        }
    }
}

fn change_all(daemon: &Daemon, all: &[&Changed], done: &mut Reloaded) {
    // MAC addresses are released before they are claimed: two ports may swap theirs.
    for changed in all
        .iter()
        .filter(|changed| changed.before.settings.mac.is_some() && changed.before.settings.mac != changed.after.settings.mac)
    {
        if let Err(error) = daemon.change(&changed.before.name, |settings| settings.mac = None) {
            done.fail(&changed.before.name, error);
        }
    }
    for changed in all {
        match daemon.change(&changed.after.name, |settings| *settings = changed.after.settings.clone()) {
            Ok(_) => done.changed.push(told(changed)),
            Err(error) => done.fail(&changed.after.name, error),
        }
    }
}

/// Adds the segment's new uplink, or else its old one again.
fn start_uplink(daemon: &Daemon, uplink: &UplinkConfig, difference: &Difference, done: &mut Reloaded) {
    let Err(error) = daemon.add_uplink(uplink) else { return done.uplinks_added.push(uplink.segment().to_owned()) };
    let before = difference.uplinks_removed.iter().find(|before| before.segment() == uplink.segment());
    let now = match before.map(|before| daemon.add_uplink(before)) {
        None => "the segment has no uplink now".into(),
        Some(Ok(())) => "its former uplink was restored".into(),
        Some(Err(again)) => format!("the segment has no uplink now, because its former one could not be restored: {again}"),
    };
    done.fail(uplink.segment(), format!("{error} ({now})"));
}

/// Attaches the port with its new configuration, or else with its old one.
fn attach_anew(handle: &DaemonHandle, changed: &Changed, done: &mut Reloaded) {
    let Err(error) = handle.attach(&changed.after) else { return done.changed.push(told(changed)) };
    let now = match handle.attach(&changed.before) {
        Ok(()) => "its former settings were restored, and its guest has to connect again".into(),
        Err(again) => format!("it is detached now, because its former settings could not be restored: {again}"),
    };
    done.fail(&changed.after.name, format!("{error} ({now})"));
}

/// Whether the configurations are equal, apart from the order of ports.
pub fn is_same(config: &Config, wanted: &Config) -> bool {
    let difference = Difference::between(config, wanted);
    difference.is_empty() && difference.restart.is_empty()
}
