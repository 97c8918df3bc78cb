//! The recorder of a network: each verdict that it has recorded is made again, by the code that replays recordings, and is the same. The
//! [ledger](super::ledger) compares it with the model.

use std::sync::Arc;

use memlane::network::{Network, Place, WorkerRecords};
use memlane::record::Recording;
use memlane::replay::{Outcome, Replay};
use memlane::stats::DropReason;
use memlane_observe::recording::{FRAME, Frame, frames};

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    recording: Arc<Recording>,
    replay: Replay,
    place: Place,
}

/// The record of a frame.
#[derive(Debug)]
pub struct Recorded {
    /// Number of the sender's port.
    pub port: u16,
    /// The headers, and the bytes of the whole frame; none of a frame that was not read.
    pub headers: Vec<u8>,
    pub length: usize,
    pub outcome: Outcome,
}

/// Records of a worker.
#[derive(Debug, Default)]
pub struct Log {
    /// Records that were overwritten: the oldest ones.
    pub missed: u64,
    pub frames: Vec<Recorded>,
}

impl Recorder {
    /// Starts the recorder, with so many `bytes` for all workers.
    pub fn start(network: &Network, bytes: usize) -> Self {
        let reasons: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        let description = serde_json::from_value(serde_json::json!({ "reasons": reasons })).expect("a description");
        let recording = network.record(bytes).expect("no recorder runs");
        Self { recording, replay: Replay::new(&description), place: Place::default() }
    }

    /// Makes the verdicts again that are new; returns the records of each worker.
    pub fn replay(&mut self, network: &Network) -> Vec<Log> {
        let records = network.records(&self.recording, &mut self.place).expect("the recorder runs");
        records.states.into_iter().for_each(|state| self.replay.learn(state));
        records.workers.iter().map(|records| self.log(records)).collect()
    }

    fn log(&self, records: &WorkerRecords) -> Log {
        let mut log = Log { missed: records.missed, frames: Vec::new() };
        let mut next = records.first;
        for chunk in &records.chunks {
            assert!(chunk.first <= next, "records {next} to {} are missing and not counted", chunk.first);
            let (mut frames, mut number) = (frames(&chunk.bytes), chunk.first);
            for frame in frames.by_ref() {
                if number >= next {
                    log.frames.extend(self.again(&frame));
                }
                number += 1;
            }
            assert!(frames.are_over() && number == chunk.end(), "a record is malformed");
            next = number;
        }
        log
    }

    /// Makes the verdict on a frame again, or on the copies of a flooded one.
    fn again(&self, frame: &Frame<'_>) -> Option<Recorded> {
        let recorded = self.replay.recorded(frame);
        assert!(recorded.is_ok() && self.replay.judge(frame) == recorded, "{frame:?}: {:?}", self.replay.judge(frame));
        let outcome = recorded.ok().filter(|_| frame.kind == FRAME)?;
        Some(Recorded { port: frame.port, headers: frame.bytes.to_vec(), length: frame.length as usize, outcome })
    }
}
