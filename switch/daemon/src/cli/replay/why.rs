//! Verdicts of the past with their grounds, in the words of `memlane why`.

use memlane_model::moment;
use memlane_observe::recording::{COPIES, FRAME, Frame, LONGEST_FRAME};
use serde::Serialize;

use super::super::recording::{self, Recorded};
use super::super::{Failure, output};
use super::{Replay, note};
use crate::explain::{self, Forecast};
use crate::quantity::counted;

/// Most outcomes that are told apart.
const MOST_OUTCOMES: usize = 50;
/// Most workers with copies of one multicast or flooded frame.
const MOST_COPIES: usize = 64;

/// Frames with one outcome, and the grounds of the last one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Told {
    port: String,
    outcome: String,
    frames: u64,
    last_frame: u64,
    last_moment: String,
    #[serde(flatten)]
    forecast: Forecast,
}

/// A flooded frame; records of its copies (broadcast, multicast, unknown unicast) may follow.
struct Waiting {
    bytes: Vec<u8>,
    index: usize,
    record: Vec<u8>,
    copies: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Grounds {
    told: Vec<Told>,
    further: u64,
    waiting: Option<Waiting>,
}

impl Grounds {
    /// Adds a frame; copies belong to the flooded frame before them.
    fn add(&mut self, recorded: &Recorded<'_>) {
        let Recorded { frame, replay, number, .. } = recorded;
        if frame.kind == COPIES {
            return self.add_copies(recorded);
        }
        self.waiting = None;
        let outcome = match replay.recorded(frame) {
            Ok(outcome) => explain::outcome(replay, &outcome, frame.moment),
            Err(cause) => format!("not known: {cause}"),
        };
        let port = replay.name(frame.port, frame.moment);
        let place = self.told.iter().position(|told| told.port == port && told.outcome == outcome);
        if place.is_none() && self.told.len() >= MOST_OUTCOMES {
            self.further += 1;
            return;
        }
        let not_known = |cause| Forecast::of_step(format!("not known: {cause}"));
        let forecast = Forecast::recorded(replay, frame, &[]).unwrap_or_else(not_known);
        let last = (*number, recorded.moment());
        let index = match place {
            Some(index) => {
                let told = &mut self.told[index];
                told.frames += 1;
                ((told.last_frame, told.last_moment), told.forecast) = (last, forecast);
                index
            }
            None => {
                self.told.push(Told { port, outcome, frames: 1, last_frame: last.0, last_moment: last.1, forecast });
                self.told.len() - 1
            }
        };
        self.waiting = Some(Waiting { bytes: frame.bytes.to_vec(), index, record: encoded(frame), copies: Vec::new() });
    }

    /// The copies of the flooded frame before, at one worker.
    fn add_copies(&mut self, recorded: &Recorded<'_>) {
        let Recorded { frame, replay, .. } = recorded;
        let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.bytes == frame.bytes) else { return };
        if waiting.copies.len() >= MOST_COPIES {
            return;
        }
        waiting.copies.push(encoded(frame));
        let decoded: Vec<Frame<'_>> =
            waiting.copies.iter().filter_map(|copies| Frame::decode(copies)).map(|(frame, _)| frame).collect();
        let flooded = Frame::decode(&waiting.record);
        if let (Some((flooded, _)), Some(told)) = (flooded, self.told.get_mut(waiting.index))
            && let Ok(forecast) = Forecast::recorded(replay, &flooded, &decoded)
        {
            told.forecast = forecast;
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for told in &self.told {
            let frames = counted(told.frames, "frame");
            let which = if told.frames == 1 { "" } else { "the last one " };
            let head =
                format!("{}: {frames} {}; {which}at {}, frame {}", told.port, told.outcome, told.last_moment, told.last_frame);
            text += &output::wrapped(&output::shown(&head));
            text.extend(told.forecast.steps.iter().map(|step| output::wrapped(&format!("  {}", output::shown(step)))));
        }
        if self.further > 0 {
            text += &format!("{} with further outcomes\n", counted(self.further, "frame"));
        }
        if text.is_empty() { "no such frame is in the recording\n".into() } else { text }
    }
}

/// The record of a frame, with its copies.
fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut record = [0; LONGEST_FRAME];
    let length = frame.encode(&mut record);
    [record.get(..length).unwrap_or_default(), frame.parts].concat()
}

/// Tells the verdicts that the arguments select.
pub(super) fn run(arguments: &Replay) -> Result<(), Failure> {
    let mut span = None;
    let mut grounds = Grounds::default();
    let summary = recording::read(&arguments.file, |recorded| {
        if recorded.frame.kind == FRAME {
            recorded.replay.follow(&recorded.frame);
        }
        if span.is_none() {
            span = Some(arguments.span(recorded.time)?);
        }
        let is_then = span.flatten().is_none_or(|(first, lasting)| recorded.time >= first && recorded.time - first < lasting);
        let is_it = arguments.frame.is_none_or(|number| number == recorded.number);
        let is_of = |name: &String| recorded.replay.name(recorded.frame.port, recorded.frame.moment) == *name;
        if is_then && is_it && arguments.port.as_ref().is_none_or(is_of) {
            grounds.add(recorded);
        }
        Ok(arguments.frame.is_none_or(|number| recorded.number <= number))
    })?;
    note(&summary, &arguments.file);
    output::print_either(arguments.json, &grounds.told, || grounds.text())
}

impl Replay {
    /// The moments of `--at`, in nanoseconds: the first, and how long; the recording begins at `near`.
    fn span(&self, near: u64) -> Result<Option<(u64, u64)>, Failure> {
        let wrong = |text: &String| {
            Failure::Configuration(format!(
                "--at is \"{text}\"; it must be a moment in UTC, as \"2026-11-28 03:12:44.100\", \"2026-11-28 03:12\" or \"03:12\""
            ))
        };
        self.at.as_ref().map(|text| moment::parse(text, near).ok_or_else(|| wrong(text))).transpose()
    }
}
