//! Another configuration on a recording: the verdicts that would be others, summed by port, destination and rule.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use memlane_model::policy::PolicyRule;
use memlane_observe::recording::Frame;
use serde::Serialize;

use super::super::recording;
use super::super::{Failure, output};
use super::note;
use crate::config::Config;
use crate::explain;
use crate::quantity::counted;
use crate::replay::{Change, Replay, Tried};

/// Most changes that are summed apart, and examples of each.
const MOST_CHANGES: usize = 4096;
const MOST_EXAMPLES: usize = 10;

/// A change of a verdict in words: of the drop reason, or of the unicast receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct Told {
    from: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    to: String,
    destination: String,
    was: String,
    becomes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

impl Told {
    fn new(replay: &Replay, frame: &Frame<'_>, Change { to, destination, was, becomes, rule }: Change) -> Self {
        let name = |port: u16| replay.name(port, frame.moment);
        let tell = |outcome| explain::outcome(replay, outcome, frame.moment);
        let to = to.map_or_else(String::new, |to| name(to.0));
        Self { from: name(frame.port), to, destination, was: tell(&was), becomes: tell(&becomes), rule }
    }
}

/// Frames with the same change of their verdict.
#[derive(Debug, Serialize)]
struct Sum {
    #[serde(flatten)]
    change: Told,
    frames: u64,
    examples: Vec<Example>,
}

/// A frame with another verdict.
#[derive(Debug, Serialize)]
struct Example {
    frame: u64,
    moment: String,
}

/// The result of a trial.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Trial {
    frames: u64,
    would_change: u64,
    not_known: u64,
    /// Frames of further changes.
    unlisted: u64,
    changes: Vec<Sum>,
    /// Names in the rules that the recording does not know.
    unknown_names: Vec<String>,
    #[serde(skip)]
    places: HashMap<Told, usize>,
}

impl Trial {
    fn add(&mut self, change: Told, number: u64, moment: String) {
        self.would_change += 1;
        let index = match self.places.get(&change) {
            Some(index) => *index,
            None if self.changes.len() >= MOST_CHANGES => {
                self.unlisted += 1;
                return;
            }
            None => {
                self.changes.push(Sum { change: change.clone(), frames: 0, examples: Vec::new() });
                self.places.insert(change, self.changes.len() - 1);
                self.changes.len() - 1
            }
        };
        if let Some(sum) = self.changes.get_mut(index) {
            sum.frames += 1;
            if sum.examples.len() < MOST_EXAMPLES {
                sum.examples.push(Example { frame: number, moment });
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Sum { change: Told { from, to, destination, was, becomes, rule }, frames, examples } in &self.changes {
            let to = if to.is_empty() { String::new() } else { format!(" to {to}") };
            let head =
                format!("{from}: {}{to}, destination {destination}: was {was}, would be {becomes}", counted(*frames, "frame"));
            text += &(output::shown(&head) + "\n");
            text.extend(rule.iter().map(|rule| output::shown(&format!("    by {rule}")) + "\n"));
            let listed: Vec<String> = examples.iter().map(|example| example.frame.to_string()).collect();
            let first = examples.first().map_or("", |example| &example.moment);
            text += &format!("    frames {}; the first at {first}\n", listed.join(", "));
        }
        if self.unlisted > 0 {
            text += &format!("{} of further kinds\n", counted(self.unlisted, "frame"));
        }
        text += &format!("{}: {} would have another verdict", counted(self.frames, "frame"), self.would_change);
        if self.not_known > 0 {
            text += &format!(", {} not known: the verdict would depend on state that was not recorded", self.not_known);
        }
        text + "\n"
    }
}

/// Names in the rules of `config` that are in none of `known`, nor in the file.
fn unknown_names(config: &Config, known: &HashSet<String>) -> Vec<String> {
    let in_file: HashSet<&str> = config
        .ports
        .iter()
        .flat_map(|port| std::iter::once(&*port.name).chain(port.settings.limits.groups.iter().map(String::as_str)))
        .collect();
    let of_rule =
        |rule: &PolicyRule| [&rule.from, &rule.to, &rule.members].into_iter().flat_map(|names| names.0.clone()).collect::<Vec<_>>();
    let mut unknown: Vec<String> = config.policy.iter().flat_map(of_rule).filter(|name| !known.contains(name)).collect();
    let ports = config.ports.iter().map(|port| port.name.clone()).filter(|name| !known.contains(name));
    unknown.retain(|name| !in_file.contains(&**name));
    unknown.extend(ports);
    unknown.sort();
    unknown.dedup();
    unknown
}

/// Tells the verdicts of the recording `file` that would be others with the network's file `with`; of frames of `port`, if one is named.
pub(super) fn run(file: &Path, with: &Path, port: Option<&str>, json: bool) -> Result<(), Failure> {
    let config = Config::load(with)?;
    let ports = config.ports.iter().map(|port| (port.name.clone(), port.settings.limits.clone()));
    let (mut tried, mut trial, mut known) = (Tried::new(&config.policy, ports), Trial::default(), HashSet::new());
    let mut names = 0;
    let summary = recording::read(file, |recorded| {
        let (frame, replay) = (&recorded.frame, recorded.replay);
        if names != replay.count_names() {
            names = replay.count_names();
            known = replay.known_names().into_iter().collect();
        }
        match tried.judge(replay, frame) {
            Ok(changes) => {
                let changes = changes.into_iter().map(|change| Told::new(replay, frame, change));
                let is_of = |told: &Told| port.is_none_or(|port| told.from == port);
                changes.filter(is_of).for_each(|told| trial.add(told, recorded.number, recorded.moment()));
            }
            Err(_) => trial.not_known += 1,
        }
        Ok(true)
    })?;
    trial.frames = summary.frames;
    trial.changes.sort_by_key(|sum| std::cmp::Reverse(sum.frames));
    trial.unknown_names = unknown_names(&config, &known);
    note(&summary, file);
    output::note(
        "addresses, leases and grants are as recorded; replies to a flow that began before the recording count as no replies until its guest sends",
    );
    if config.policy.iter().any(PolicyRule::has_names) {
        output::note("a DNS name in the rules stands for the addresses that recorded rules asked for; others are not known");
    }
    if !trial.unknown_names.is_empty() {
        output::note(&format!("the recording knows no port or group called {}", trial.unknown_names.join(", ")));
    }
    output::print_either(json, &trial, || trial.text())
}
