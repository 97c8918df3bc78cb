//! Recordings as files: a tally of one that is being written, and the reader of one that is there.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use crate::quantity::{counted, is};
use memlane_model::moment::moment;
use memlane_model::recording::Description;
use memlane_observe::recording::{Block, Clock, FRAME, Frame, Reader, RecordingError, frames};

use super::Failure;
use crate::replay::Replay;

/// Bytes of a block before its content, and of the file before the first block.
const HEAD: usize = 12;
/// Numbers of kinds of blocks that are counted.
const FRAMES: u8 = 2;
const GAP: u8 = 4;

/// Records of a recording that arrives in parts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) records: u64,
    pub(super) missed: u64,
    has_begun: bool,
    /// A block that is not whole yet.
    rest: Vec<u8>,
}

impl Tally {
    pub(super) fn is_empty(&self) -> bool {
        !self.has_begun
    }

    /// Counts the records of `part`.
    pub(super) fn take(&mut self, part: &[u8]) {
        self.rest.extend(part);
        let rest = std::mem::take(&mut self.rest);
        let mut left = &rest[..];
        if !self.has_begun {
            let Some(blocks) = left.get(HEAD..) else { return self.rest.extend(left) };
            (left, self.has_begun) = (blocks, true);
        }
        while let Some((kind, content, after)) = block(left) {
            self.count(kind, content);
            left = after;
        }
        self.rest.extend(left);
    }

    fn count(&mut self, kind: u8, content: &[u8]) {
        match kind {
            FRAMES => {
                self.records += frames(content).filter(|frame| frame.kind == FRAME).count() as u64;
            }
            GAP => self.missed += content.first_chunk().map_or(0, |lost| u64::from_le_bytes(*lost)),
            _ => {}
        }
    }
}

/// Kind and content of the block with which `bytes` begin, and the bytes behind it.
fn block(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let head: &[u8; HEAD] = bytes.first_chunk()?;
    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let (content, after) = bytes.get(HEAD..)?.split_at_checked(length)?;
    Some((head[0], content, after))
}

/// A recorded frame, or the copies of one, in the order of the file.
pub(super) struct Recorded<'r> {
    /// Number of the frame in the file, from 1 on; of copies, that of the last frame before.
    pub(super) number: u64,
    pub(super) frame: Frame<'r>,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) replay: &'r Replay,
}

impl Recorded<'_> {
    /// The frame's moment in words.
    pub(super) fn moment(&self) -> String {
        moment(self.time as f64 / 1e9)
    }
}

/// Description and flaws of a recording.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) description: Description,
    pub(super) frames: u64,
    /// Records that were overwritten before they could be written.
    pub(super) missed: u64,
    /// Jumps of the wall clock: seconds by which it was ahead of the recording's clock afterwards, or behind, and the moment.
    pub(super) jumps: Vec<(f64, String)>,
    /// Why the file ends before its end.
    pub(super) cut: Option<String>,
}

impl Summary {
    /// Sentences about missing records, clocks and the end.
    pub(super) fn notes(&self, path: &Path) -> Vec<String> {
        let file = path.display();
        let mut notes = Vec::new();
        if self.missed > 0 {
            let (verdicts, are) = (counted(self.missed, "verdict"), is(self.missed));
            let were = if self.missed == 1 { "it was overwritten before it" } else { "they were overwritten before they" };
            notes.push(format!("{file}: {verdicts} {are} missing: {were} could be written"));
        }
        for (seconds, moment) in &self.jumps {
            notes.push(format!(
                "{file}: the clock of the host was set by {seconds:+.3} s at {moment}; moments before are by the old clock"
            ));
        }
        notes.extend(self.cut.iter().map(|cause| format!("{file}: {cause}; the frames before are good")));
        notes
    }
}

/// Least jump of the wall clock that is told, in nanoseconds.
const JUMP: i128 = 100_000_000;
/// Most jumps that are told.
const MOST_JUMPS: usize = 20;

/// Calls `each` with the frames of a recording, until that is false.
pub(super) fn read(path: &Path, mut each: impl FnMut(&Recorded<'_>) -> Result<bool, Failure>) -> Result<Summary, Failure> {
    let wrong = |cause: &dyn std::fmt::Display| Failure::Configuration(format!("the recording {}: {cause}", path.display()));
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let (mut reader, description) = Reader::new(BufReader::with_capacity(1 << 20, file)).map_err(|error| wrong(&error))?;
    let description: Description = serde_json::from_slice(&description).map_err(|error| wrong(&error))?;
    let (mut replay, mut clock, mut has_ended) = (Replay::new(&description), Clock::default(), false);
    let mut summary = Summary { description, ..Summary::default() };
    loop {
        let block = match reader.block() {
            Ok(Some(block)) => block,
            Ok(None) => break,
            Err(error @ RecordingError::CutOff(_)) => {
                summary.cut = Some(error.to_string());
                return Ok(summary);
            }
            Err(error) => return Err(wrong(&error)),
        };
        match block {
            Block::State(json) => replay.learn(serde_json::from_slice(&json).map_err(|error| wrong(&error))?),
            Block::Clock(next) => {
                summary.note_jump(clock, next);
                clock = next;
            }
            Block::Gap { lost, .. } => summary.missed = summary.missed.saturating_add(lost),
            Block::End { .. } => has_ended = true,
            Block::Frames { records, .. } => {
                let mut frames = frames(&records);
                for frame in frames.by_ref() {
                    summary.frames += u64::from(frame.kind == FRAME);
                    let (number, time) = (summary.frames, clock.time(frame.moment));
                    if !each(&Recorded { number, frame, time, replay: &replay })? {
                        return Ok(summary);
                    }
                }
                if !frames.are_over() {
                    return Err(wrong(&"a record is malformed"));
                }
            }
        }
    }
    if !has_ended {
        summary.cut = Some("it has no end: it was cut off, or the network or the command ended".into());
    }
    Ok(summary)
}

impl Summary {
    fn note_jump(&mut self, before: Clock, after: Clock) {
        if before.frequency == 0 || self.jumps.len() >= MOST_JUMPS {
            return;
        }
        let ahead = i128::from(after.nanoseconds) - i128::from(before.time(after.cycles));
        if ahead.abs() >= JUMP {
            self.jumps.push((ahead as f64 / 1e9, moment(after.nanoseconds as f64 / 1e9)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_observe::recording::{LONGEST_FRAME, begin, put_frames};

    #[test]
    fn records_are_counted_however_they_arrive() {
        let mut record = [0; LONGEST_FRAME];
        let length = Frame { kind: FRAME, bytes: &[1; 60], ..Frame::default() }.encode(&mut record);
        let mut bytes = begin(b"{}");
        put_frames(&mut bytes, 0, &record[..length].repeat(40), 500);
        Block::Gap { worker: 0, lost: 7 }.encode(&mut bytes);
        for size in [1, 7, 100, 10_000] {
            let mut tally = Tally::default();
            assert!(tally.is_empty());
            bytes.chunks(size).for_each(|part| tally.take(part));
            assert_eq!((tally.records, tally.missed, tally.is_empty()), (40, 7, false), "{size}");
        }
    }

    #[test]
    fn a_clock_that_was_set_is_told() {
        let mut summary = Summary::default();
        let clock = |cycles, nanoseconds| Clock { cycles, nanoseconds, frequency: 1_000_000_000 };
        summary.note_jump(Clock::default(), clock(5, 5));
        summary.note_jump(clock(0, 1_000), clock(1_000_000_000, 1_000_001_000));
        assert!(summary.jumps.is_empty());
        summary.note_jump(clock(0, 0), clock(1_000_000_000, 3_601_000_000_000));
        summary.note_jump(clock(0, 9_000_000_000), clock(1_000_000_000, 0));
        let seconds: Vec<f64> = summary.jumps.iter().map(|(seconds, _)| *seconds).collect();
        assert_eq!(seconds, [3600.0, -10.0]);
        assert!(summary.notes(Path::new("a"))[0].contains("+3600.000 s"), "{:?}", summary.notes(Path::new("a")));
    }
}
