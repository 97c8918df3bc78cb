//! Outcomes of recorded frames in words.

use crate::id::PortId;
use crate::packet::TagChange;
use crate::replay::{CopyOutcome, Outcome, Replay};
use crate::verdict::Verdict;

/// An outcome in the moment `at` of a recording, in words.
pub fn outcome(replay: &Replay, outcome: &Outcome, at: u64) -> String {
    let name = |port: &PortId| replay.name(port.0, at);
    match outcome {
        Outcome::Verdict(Verdict::To(to)) => format!("to {}", name(to)),
        Outcome::Verdict(Verdict::Retagged(to, TagChange::Push(vlan))) => format!("to {} with a tag of VLAN {vlan}", name(to)),
        Outcome::Verdict(Verdict::Retagged(to, TagChange::Pop)) => format!("to {} without its VLAN tag", name(to)),
        Outcome::Verdict(Verdict::Flood) => "flooded".into(),
        Outcome::Verdict(Verdict::Drop(reason)) | Outcome::Early(reason) => format!("dropped: {}", reason.name()),
        Outcome::TooLong(to) => format!("dropped: too-long for the way to {}", name(to)),
        Outcome::Answered => "answered by the switch".into(),
        Outcome::Limited(reason) => format!("dropped: {}, in place of being flooded", reason.name()),
        Outcome::Copies(outcomes) => copies(outcomes, name),
    }
}

fn copies(outcomes: &[(PortId, CopyOutcome)], name: impl Fn(&PortId) -> String) -> String {
    let told = outcomes.iter().filter_map(|(port, outcome)| {
        let name = name(port);
        Some(match outcome {
            CopyOutcome::None => return None,
            CopyOutcome::Same => name,
            CopyOutcome::Tagged => format!("{name} (with a VLAN tag)"),
            CopyOutcome::Untagged => format!("{name} (without its VLAN tag)"),
            CopyOutcome::Dropped(reason) => format!("{name} (dropped: {})", reason.name()),
        })
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() { "copies to no port".into() } else { format!("copies to {}", told.join(", ")) }
}
