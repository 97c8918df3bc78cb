//! Recordings of verdicts: a recorder at each worker, and the readers of their rings.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use memlane_model::recording::State;
use thiserror::Error;

use super::{Network, Told};
use crate::driven::await_answer;
use crate::host_memory::HostMemory;
use crate::port::Port;
use crate::record::{Chunk, Recorder, Recording};

/// The recorder cannot be started.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RecorderRefused {
    /// One runs.
    #[error("a recorder runs already: `memlane record NET --stop` ends it")]
    Runs,
    /// Memory for records would be more than half of the memory that is left.
    #[error(
        "a recorder of {} MiB needs more than half of the {} MiB that are left on the host and in the cgroup: give it less with --size",
        asked >> 20,
        left >> 20
    )]
    Memory {
        /// Bytes of the recorder.
        asked: u64,
        /// Bytes before the machine or a cgroup is full.
        left: u64,
    },
}

/// Records that are new to a reader.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// States that the frames refer to.
    pub states: Vec<State>,
    /// Of each worker: records that were overwritten, and the records behind them.
    pub workers: Vec<WorkerRecords>,
}

/// Records of one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerRecords {
    /// Records that were overwritten, or too long.
    pub missed: u64,
    /// Number of the first record, of all that the worker has written.
    pub first: u64,
    /// The records; those before `first` are to be left out.
    pub chunks: Vec<Arc<Chunk>>,
}

/// The place of a reader in the records of all workers.
#[derive(Debug, Default)]
pub struct Place {
    state: u32,
    /// Number of the next record of each worker, and of those that were too long.
    workers: HashMap<usize, (u64, u64)>,
}

impl Network {
    /// Starts the recorder, with about `bytes` of memory for the records of all workers. Frames that are transmitted after this returns are recorded.
    ///
    /// # Errors
    /// [`RecorderRefused`].
    pub fn record(&self, bytes: usize) -> Result<Arc<Recording>, RecorderRefused> {
        let (asked, left) = (bytes as u64, HostMemory::of_this_process().left());
        if asked > left / 2 {
            return Err(RecorderRefused::Memory { asked, left });
        }
        let recording = {
            // No port is added meanwhile.
            let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut present = self.recorder();
            if present.is_some() {
                return Err(RecorderRefused::Runs);
            }
            let recording = Arc::new(Recording::default());
            self.ports().iter().for_each(|port| recording.states().port(port));
            *present = Some(Arc::clone(&recording));
            recording
        };
        let each = bytes / self.workers.len().max(1);
        let told = self.workers.iter().enumerate().map(|(index, worker)| {
            let recorder = Box::new(Recorder::new(index as u8, &recording, each));
            worker.order(move |worker| drop(worker.set_recorder(Some(recorder))))
        });
        Told(told.collect()).wait();
        Ok(recording)
    }

    /// The recording that runs.
    pub fn recording(&self) -> Option<Arc<Recording>> {
        self.recorder().clone()
    }

    fn recorder(&self) -> std::sync::MutexGuard<'_, Option<Arc<Recording>>> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the recorder, and frees its memory; false if none runs.
    pub fn stop_recording(&self) -> bool {
        if self.recorder().take().is_none() {
            return false;
        }
        // The rings are freed by this thread.
        let recorders: Vec<_> = self.workers.iter().map(|worker| worker.order(|worker| worker.set_recorder(None))).collect();
        recorders.into_iter().for_each(|recorder| drop(await_answer(&recorder)));
        true
    }

    /// Records that are new since `place`, which moves on; `None` if no recorder runs, or it is another one than `recording`.
    pub fn records(&self, recording: &Arc<Recording>, place: &mut Place) -> Option<Records> {
        if !self.recorder().as_ref().is_some_and(|present| Arc::ptr_eq(present, recording)) {
            return None;
        }
        let next = |place: &Place, index| place.workers.get(&index).map_or(0, |&(next, _)| next);
        let asked: Vec<_> = self
            .workers
            .iter()
            .enumerate()
            .map(|(index, worker)| {
                let next = next(place, index);
                worker.order(move |worker| worker.recorded(next))
            })
            .collect();
        let answers: Vec<_> = asked.into_iter().map(|answer| await_answer(&answer).flatten()).collect();
        let mut workers = Vec::new();
        for (index, answer) in answers.into_iter().enumerate() {
            // A worker that has ended leaves its records.
            let (chunks, lost) = answer.unwrap_or_else(|| (recording.left(index).unwrap_or_default(), 0));
            workers.push(place.take(index, chunks, lost));
        }
        // Behind the frames, which refer to them.
        let (states, last) = recording.states().since(std::mem::take(&mut place.state));
        place.state = last;
        Some(Records { states, workers })
    }

    /// Tells the recorder of a port that is about to be added.
    pub(super) fn tell_recorder(&self, port: &Port) {
        if let Some(recording) = &*self.recorder() {
            recording.states().port(port);
        }
    }
}

impl Place {
    fn take(&mut self, index: usize, chunks: Vec<Arc<Chunk>>, lost: u64) -> WorkerRecords {
        let (next, lost_before) = self.workers.get(&index).copied().unwrap_or_default();
        let chunks: Vec<_> = chunks.into_iter().filter(|chunk| chunk.count > 0 && chunk.end() > next).collect();
        let first = chunks.first().map_or(next, |chunk| chunk.first.max(next));
        let end = chunks.last().map_or(next, |chunk| chunk.end());
        self.workers.insert(index, (end, lost));
        WorkerRecords { missed: first - next + lost.saturating_sub(lost_before), first, chunks }
    }
}
