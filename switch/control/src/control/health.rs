//! Health of a running network: whether every worker answers.
//!
//! A check sends each worker a command and waits for its answer, so a worker that sleeps wakes once for it, and one that is stuck
//! is told from one without work. A worker that has not answered yet is sent no second command: its mailbox stays bounded.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::managed::Managed;
use super::problem::Refusal;
use crate::network::Network;

/// Longest wait for the workers' answers to a request for the network's readiness.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Age up to which a successful check is valid for the next request: clients cannot keep idle workers awake.
const FRESH: Duration = Duration::from_millis(200);

/// The process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alive {
    /// True.
    pub alive: bool,
}

/// The network forwards frames: every worker has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ready {
    /// Name of the network.
    pub name: String,
    /// Number of workers, which all have answered.
    pub workers: usize,
    /// Number of ports.
    pub ports: usize,
    /// Ports in the state "running".
    pub running: usize,
    /// Ports in quarantine.
    pub quarantined: usize,
}

impl Ready {
    /// Checks the workers of `managed`.
    ///
    /// # Errors
    /// A worker does not answer within the timeout, or the network ends.
    pub fn check(managed: &Managed) -> Result<Self, Refusal> {
        let silent = managed.silent_workers(TIMEOUT)?;
        if !silent.is_empty() {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, stuck(&silent, TIMEOUT)));
        }
        let report = managed.report()?;
        let count = |state: &str| report.ports.iter().filter(|port| port.state == state).count();
        let (running, quarantined) = (count("running"), count("quarantined"));
        Ok(Self { workers: report.workers.len(), ports: report.ports.len(), running, quarantined, name: report.name })
    }
}

/// The sentence on workers that have not answered for the time `waited`.
pub fn stuck(workers: &[usize], waited: Duration) -> String {
    let names: Vec<String> = workers.iter().map(|index| format!("worker-{index}")).collect();
    let seconds = waited.as_secs_f64();
    format!(
        "{} gave no answer within {seconds} s, and no frames of its ports are forwarded: look for a thread of that name that is stopped or \
         has no CPU (top -H)",
        names.join(", ")
    )
}

/// See the module.
#[derive(Debug)]
pub struct Health {
    workers: Vec<Arc<Pulse>>,
    /// When all workers had last answered a check.
    succeeded: Mutex<Option<Instant>>,
}

/// Commands that a worker was sent by checks, and its answers.
#[derive(Debug, Default)]
struct Pulse {
    state: Mutex<PulseState>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct PulseState {
    /// Whether a command is in the worker's mailbox.
    asked: bool,
    answers: u64,
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, PulseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends worker `index` a command, unless one is in its mailbox; returns the number of answers before.
    fn ask(self: &Arc<Self>, network: &Network, index: u8) -> u64 {
        let (was_asked, answers) = {
            let mut state = self.lock();
            (std::mem::replace(&mut state.asked, true), state.answers)
        };
        // Without the lock: a worker that wakes does not have to sleep again for it.
        if !was_asked {
            let pulse = Arc::clone(self);
            drop(network.order(index, move |_| pulse.answer()));
        }
        answers
    }

    fn answer(&self) {
        let mut state = self.lock();
        state.asked = false;
        state.answers += 1;
        self.answered.notify_all();
    }

    /// Waits until there are more than `before` answers, or until `deadline`; false then.
    fn wait(&self, before: u64, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.answered.wait_timeout_while(self.lock(), left, |state| state.answers == before);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.answers != before
    }
}

impl Health {
    /// For a network of so many workers.
    pub fn new(workers: usize) -> Self {
        Self { workers: (0..workers).map(|_| Arc::default()).collect(), succeeded: Mutex::default() }
    }

    /// The workers of `network` that do not answer within `timeout`.
    pub fn silent_workers(&self, network: &Network, timeout: Duration) -> Vec<usize> {
        let succeeded = || self.succeeded.lock().unwrap_or_else(PoisonError::into_inner);
        if succeeded().is_some_and(|at| at.elapsed() < FRESH) {
            return Vec::new();
        }
        let deadline = Instant::now() + timeout;
        let asked: Vec<u64> = (0_u8..).zip(&self.workers).map(|(index, pulse)| pulse.ask(network, index)).collect();
        let answers = self.workers.iter().zip(asked).map(|(pulse, before)| pulse.wait(before, deadline));
        let silent: Vec<usize> = answers.enumerate().filter(|&(_, answered)| !answered).map(|(index, _)| index).collect();
        if silent.is_empty() {
            *succeeded() = Some(Instant::now());
        }
        silent
    }
}
