//! From one network to another, port by port: what goes, then what changes, then what comes. Ports that are the same are not touched.
//! Uplinks go before ports change, and come after: what is changed at a port may be its MTU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::managed::Managed;
use crate::config::PortChange;
use crate::config::difference::{self, Changed, Difference};
use crate::config::{Config, PortConfig, UplinkConfig};
use crate::daemon::Daemon;

/// How far a reload may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadOptions {
    /// Only tell what would be done.
    pub dry_run: bool,
    /// Change the ports though keys beside them differ, which only a restart changes.
    pub ports_only: bool,
    /// Detach all ports that run, too, and take over a file that may have been cut off.
    pub force: bool,
    /// The file ends in the middle of a line, or a program has it open for writing.
    pub cut_off: bool,
}

impl ReloadOptions {
    /// Why a network of `ports` ports is not changed by so much, if so.
    pub(super) fn refuse(&self, difference: &Difference, ports: usize) -> Option<String> {
        let removed = &difference.removed;
        if removed.is_empty() || self.force {
            return None;
        }
        if removed.len() == ports {
            let text = "the file has none of the ports that run, so that all of them would be detached";
            return Some(format!("{text} ({ports} now). Check the file, or use `memlane reload --force` if that is meant"));
        }
        let names: Vec<&str> = removed.iter().map(|port| port.name.as_str()).collect();
        let text = "the file may have been cut off (it ends in the middle of a line, or another program has it open for writing): it does not \
                    have the ports";
        let remedy = "End its last line and close it, or use `memlane reload --force`";
        self.cut_off.then(|| format!("{text} {}. {remedy}", names.join(", ")))
    }
}

/// What a reload did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct Reloaded {
    /// Ports that came.
    pub added: Vec<String>,
    /// Ports that went.
    pub removed: Vec<String>,
    /// Ports that differ.
    pub changed: Vec<ChangedPort>,
    /// Ports that stayed as they were.
    pub untouched: Vec<String>,
    /// Segments that go on at other hosts from now on, or go on otherwise.
    pub leads_on: Vec<String>,
    /// Segments that end at this host from now on.
    pub ends_here: Vec<String>,
    /// Keys beside the ports that differ, which only a restart changes.
    pub restart: Vec<String>,
    /// What could not be done; everything else was.
    pub failed: Vec<Failed>,
    /// Nothing was done: this is what would be.
    pub dry_run: bool,
    /// Why it would be refused, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A port that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ChangedPort {
    /// Its name.
    pub name: String,
    /// Keys whose values differ.
    pub keys: Vec<String>,
    /// It was detached and attached anew, because not all of them can change while it runs.
    pub anew: bool,
}

/// A port or a segment's uplink of which something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Failed {
    /// Its name.
    pub name: String,
    /// Why, and what holds now.
    pub error: String,
}

impl Reloaded {
    /// What would be done, or why not.
    pub fn planned(difference: &Difference, refused: Option<String>) -> Self {
        let names = |ports: &[PortConfig]| ports.iter().map(|port| port.name.clone()).collect();
        Self {
            added: names(&difference.added),
            removed: names(&difference.removed),
            changed: difference.changed.iter().map(told).collect(),
            untouched: difference.untouched.clone(),
            leads_on: segments(&difference.leads_on),
            ends_here: ending(difference),
            restart: difference.restart.iter().map(|&key| key.into()).collect(),
            failed: Vec::new(),
            dry_run: true,
            refused,
        }
    }

    fn fail(&mut self, name: &str, error: impl ToString) {
        self.failed.push(Failed { name: name.into(), error: error.to_string() });
    }
}

fn told(changed: &Changed) -> ChangedPort {
    ChangedPort { name: changed.after.name.clone(), keys: changed.keys.clone(), anew: !changed.in_place() }
}

fn segments(uplinks: &[UplinkConfig]) -> Vec<String> {
    uplinks.iter().map(|uplink| uplink.segment.clone()).collect()
}

/// Segments whose uplink goes and that get no other.
fn ending(difference: &Difference) -> Vec<String> {
    let goes_on = segments(&difference.leads_on);
    segments(&difference.ends_here).into_iter().filter(|segment| !goes_on.contains(segment)).collect()
}

/// Makes the network what it is to be; tells what was done and what was not. There is no half port afterwards. The daemon is asked step by
/// step: a network that ends waits for one.
pub(super) fn carry_out(managed: &Managed, difference: &Difference) -> Reloaded {
    let mut done = Reloaded {
        untouched: difference.untouched.clone(),
        restart: difference.restart.iter().map(|&key| key.into()).collect(),
        ..Reloaded::default()
    };
    let (in_place, anew): (Vec<_>, Vec<_>) = difference.changed.iter().partition(|changed| changed.in_place());
    // All go before any comes: one may have what another is to have.
    detach_all(managed, difference, &anew, &mut done);
    for uplink in &difference.ends_here {
        // One that a network which ends still has goes with it.
        let _ = managed.ask(|daemon| daemon.remove_uplink(&uplink.segment));
    }
    done.ends_here = ending(difference);
    let _ = managed.ask(|daemon| change_all(daemon, &in_place, &mut done));
    for uplink in &difference.leads_on {
        let _ = managed.ask(|daemon| lead_on(daemon, uplink, difference, &mut done));
    }
    for changed in anew {
        attach_anew(managed, changed, &mut done);
    }
    for port in &difference.added {
        match managed.come(port) {
            Ok(()) => done.added.push(port.name.clone()),
            Err(error) => done.fail(&port.name, error),
        }
    }
    done
}

/// Detaches what goes for good and what comes `anew`, all at once: front ends that do not read delay a reload by the time of one.
fn detach_all(managed: &Managed, difference: &Difference, anew: &[&Changed], done: &mut Reloaded) {
    let removed = difference.removed.iter().map(|port| port.name.as_str());
    let names: Vec<&str> = removed.chain(anew.iter().map(|changed| changed.before.name.as_str())).collect();
    let gone = managed.ask(|daemon| daemon.detach_all(&names)).unwrap_or_default();
    for (index, (&name, gone)) in names.iter().zip(gone).enumerate() {
        match gone {
            Ok(_) if index < difference.removed.len() => done.removed.push(name.into()),
            Ok(_) => {}
            Err(error) => done.fail(name, error),
        }
    }
}

fn change_all(daemon: &Daemon, all: &[&Changed], done: &mut Reloaded) {
    // Addresses are given up before they are taken: two ports may swap theirs.
    for changed in all.iter().filter(|changed| changed.before.mac.is_some() && changed.before.mac != changed.after.mac) {
        if let Err(error) = daemon.change(&changed.before.name, &PortChange { mac: Some(None), ..PortChange::default() }) {
            done.fail(&changed.before.name, error);
        }
    }
    for changed in all {
        match daemon.change(&changed.after.name, &difference::change(&changed.before, &changed.after)) {
            Ok(_) => done.changed.push(told(changed)),
            Err(error) => done.fail(&changed.after.name, error),
        }
    }
}

/// Has the segment go on as it is to, or else as it did.
fn lead_on(daemon: &Daemon, uplink: &UplinkConfig, difference: &Difference, done: &mut Reloaded) {
    let Err(error) = daemon.add_uplink(uplink) else { return done.leads_on.push(uplink.segment.clone()) };
    let before = difference.ends_here.iter().find(|before| before.segment == uplink.segment);
    let now = match before.map(|before| daemon.add_uplink(before)) {
        None => "it ends here".into(),
        Some(Ok(())) => "it goes on as before".into(),
        Some(Err(again)) => format!("it ends here, since it cannot go on as before either: {again}"),
    };
    done.fail(&uplink.segment, format!("{error} ({now})"));
}

/// Attaches the port as it is to be, or else as it was.
fn attach_anew(managed: &Managed, changed: &Changed, done: &mut Reloaded) {
    let Err(error) = managed.come(&changed.after) else { return done.changed.push(told(changed)) };
    let now = match managed.come(&changed.before) {
        Ok(()) => "it is as it was, and its guest has to connect again".into(),
        Err(again) => format!("it is detached, since it cannot be attached as it was either: {again}"),
    };
    done.fail(&changed.after.name, format!("{error} ({now})"));
}

/// Whether a network is what `wanted` says, whatever the order of its ports.
pub fn is_same(config: &Config, wanted: &Config) -> bool {
    let difference = Difference::between(config, wanted);
    difference.is_empty() && difference.restart.is_empty()
}
