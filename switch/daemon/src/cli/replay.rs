//! `memlane replay`: verdicts of a recording, made again; with drop reasons and their grounds, by other policy rules, or as pcapng for Wireshark.

mod pcap;
mod tried;
mod why;

use std::path::{Path, PathBuf};

use clap::Args;
use memlane_model::recording::Description;
use serde::Serialize;

use super::recording::{self, Recorded, Summary};
use super::{Failure, output};
use crate::explain;
use crate::quantity::counted;

/// Differences that are told one by one.
const MOST_TOLD: usize = 10;

/// Arguments of `memlane replay`.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// The recording.
    file: PathBuf,
    /// Tell the verdicts of this moment (UTC): as "2026-11-28 03:12:44.100"; without seconds those of a minute, without a date on the day of the recording.
    #[arg(long, value_name = "MOMENT", conflicts_with_all = ["with", "write"])]
    at: Option<String>,
    /// Tell the verdict on this frame, by its number in the recording.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["at", "with", "write"], value_parser = clap::value_parser!(u64).range(1..))]
    frame: Option<u64>,
    /// Only frames that this port transmitted; tell their verdicts.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["write"])]
    port: Option<String>,
    /// A network's file: tell which verdicts would be others by its policy rules and the settings of its ports.
    #[arg(long, value_name = "FILE", conflicts_with = "write")]
    with: Option<PathBuf>,
    /// Write the frames as pcapng, with verdicts as comments.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// As JSON.
    #[arg(long, conflicts_with = "write")]
    json: bool,
}

/// A verdict that is another one now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Difference {
    frame: u64,
    moment: String,
    port: String,
    recorded: String,
    replayed: String,
}

/// The result of a replay.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Verdicts {
    frames: u64,
    verdicts: u64,
    different: u64,
    not_known: u64,
    missed: u64,
    differences: Vec<Difference>,
}

impl Replay {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match (&self.write, &self.with) {
            (Some(to), _) => pcap::write(&self.file, to),
            (_, Some(with)) => tried::run(&self.file, with, self.port.as_deref(), self.json),
            _ if self.at.is_some() || self.frame.is_some() || self.port.is_some() => why::run(self),
            _ => self.all(),
        }
    }

    /// Makes all verdicts again.
    fn all(&self) -> Result<(), Failure> {
        let mut result = Verdicts::default();
        let summary = recording::read(&self.file, |recorded| {
            result.add(recorded);
            Ok(true)
        })?;
        (result.frames, result.missed) = (summary.frames, summary.missed);
        note(&summary, &self.file);
        output::print_either(self.json, &result, || made_by(&summary.description) + &result.text())?;
        match result.different {
            0 => Ok(()),
            _ => Err(Failure::Running(
                "a verdict is another one than was recorded: the recording was edited, or this is a defect".into(),
            )),
        }
    }
}

/// The origin of a recording.
fn made_by(description: &Description) -> String {
    let Description { program, network, by, cause, .. } = description;
    let by = by.as_ref().map_or_else(String::new, |by| format!(", ordered by {by}"));
    let cause = cause.as_ref().map_or_else(String::new, |cause| format!(", because: {cause}"));
    output::wrapped(&output::shown(&format!("recorded by {program} of the network {network}{by}{cause}")))
}

/// Tells the flaws of a recording.
fn note(summary: &Summary, file: &Path) {
    summary.notes(file).iter().for_each(|note| output::note(note));
}

impl Verdicts {
    fn add(&mut self, recorded: &Recorded<'_>) {
        let Recorded { frame, replay, .. } = recorded;
        self.verdicts += 1;
        let (before, again) = match (replay.recorded(frame), replay.judge(frame)) {
            (Ok(before), Ok(again)) => (before, again),
            _ => {
                self.not_known += 1;
                return;
            }
        };
        if before == again {
            return;
        }
        self.different += 1;
        if self.differences.len() < MOST_TOLD {
            let tell = |outcome| explain::outcome(replay, outcome, frame.moment);
            self.differences.push(Difference {
                frame: recorded.number,
                moment: recorded.moment(),
                port: replay.name(frame.port, frame.moment),
                recorded: tell(&before),
                replayed: tell(&again),
            });
        }
    }

    fn text(&self) -> String {
        let told = |difference: &Difference| {
            let Difference { frame, moment, port, recorded, replayed } = difference;
            output::shown(&format!("frame {frame} of {port}, {moment}: recorded: {recorded}; now: {replayed}")) + "\n"
        };
        let mut text: String = self.differences.iter().map(told).collect();
        let more = self.different - self.differences.len() as u64;
        if more > 0 {
            text += &format!("{more} more\n");
        }
        let same = self.verdicts - self.different - self.not_known;
        text += &format!("{}, {} made again: {same} the same", counted(self.frames, "frame"), counted(self.verdicts, "verdict"));
        text += &format!(", {} different", self.different);
        if self.not_known > 0 {
            text += &format!(", {} not known", self.not_known);
        }
        text + "\n"
    }
}
