//! Questions of guests for names outside that wait for a forwarder's answer.
//!
//! A port has at most [`MOST_OF_PORT`] that wait, and may ask [`RATE`] in a second. If [`MOST`] wait, one of the port with the most gives way,
//! so that one guest's flood costs no other an answer.

use std::collections::HashMap;
use std::sync::Arc;

use crate::dns::Outside;
use crate::forward::Question;
use crate::tcp::Peer;
use crate::wire::Way;

/// Most questions of a port that wait.
pub(crate) const MOST_OF_PORT: usize = 32;
/// Most questions of all ports that wait.
pub(crate) const MOST: usize = 512;
/// Most questions of a port in a second.
const RATE: u32 = 100;
/// Seconds after which a question waits no more: a forwarder answers earlier, or is gone.
const TIMEOUT: u64 = 10;

/// The client of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// By UDP, from this port.
    Udp(u16),
    /// By TCP.
    Tcp(Peer),
}

/// A question that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub port: Arc<str>,
    pub way: Way,
    pub via: Via,
    pub asked: Outside,
    since: u64,
    /// The question was asked of a forwarder that ended.
    is_repeated: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    waiting: HashMap<u64, Waiting>,
    /// Number of the next question.
    next: u64,
    /// Questions that the forwarder has not been sent.
    queries: Vec<Question>,
    /// Questions of each port in the present second.
    rates: HashMap<Arc<str>, u32>,
    second: u64,
}

/// Why a question does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The client repeats one that waits.
    Repeated,
    /// The port asks too much.
    TooMany,
}

impl Pending {
    /// Has a question of `port` wait in second `now`; returns one that gives way.
    ///
    /// # Errors
    /// The question does not wait.
    pub(crate) fn enter(&mut self, port: &str, (way, via): (Way, Via), asked: Outside, now: u64) -> Result<Option<Waiting>, Full> {
        let is_same = |one: &Waiting| {
            let (is_client, is_question) = (one.via == via && one.way.ip == way.ip, one.asked.is_same(&asked));
            one.port.as_ref() == port && is_client && is_question
        };
        if self.waiting.values().any(is_same) {
            return Err(Full::Repeated);
        }
        if self.count(port) >= MOST_OF_PORT || !self.may_ask(port, now) {
            return Err(Full::TooMany);
        }
        let displaced = if self.waiting.len() >= MOST { self.displace() } else { None };
        let id = self.next;
        self.next += 1;
        self.queries.push(asked.question(id));
        self.waiting.insert(id, Waiting { port: port.into(), way, via, asked, since: now, is_repeated: false });
        Ok(displaced)
    }

    fn count(&self, port: &str) -> usize {
        self.waiting.values().filter(|waiting| waiting.port.as_ref() == port).count()
    }

    /// Whether `port` may ask in second `now`; counts the question.
    fn may_ask(&mut self, port: &str, now: u64) -> bool {
        if self.second != now {
            (self.second, self.rates) = (now, HashMap::new());
        }
        let count = self.rates.entry(port.into()).or_default();
        *count = count.saturating_add(1);
        *count <= RATE
    }

    /// Removes the oldest question of the port with the most.
    fn displace(&mut self) -> Option<Waiting> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        self.waiting.values().for_each(|waiting| *counts.entry(&waiting.port).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(port, _)| port)?;
        let oldest = self.waiting.iter().filter(|(_, waiting)| waiting.port.as_ref() == most).map(|(id, _)| *id).min()?;
        self.take(oldest)
    }

    /// The question with this number, which waits no more.
    pub(crate) fn take(&mut self, id: u64) -> Option<Waiting> {
        self.waiting.remove(&id)
    }

    /// Questions for the forwarder.
    pub(crate) fn take_queries(&mut self) -> Vec<Question> {
        std::mem::take(&mut self.queries)
    }

    /// Removes a port.
    pub(crate) fn remove_port(&mut self, port: &str) {
        self.waiting.retain(|_, waiting| waiting.port.as_ref() != port);
    }

    /// Removes questions that have waited too long by second `now`.
    pub(crate) fn end_old(&mut self, now: u64) {
        self.waiting.retain(|_, waiting| now < waiting.since + TIMEOUT);
    }

    /// The forwarder has ended: asks each question once more; returns the numbers of those that were asked twice.
    pub(crate) fn repeat(&mut self) -> Vec<u64> {
        let (mut twice, mut queries) = (Vec::new(), Vec::new());
        for (&id, waiting) in &mut self.waiting {
            if std::mem::replace(&mut waiting.is_repeated, true) {
                twice.push(id);
            } else {
                queries.push(waiting.asked.question(id));
            }
        }
        self.queries.extend(queries);
        twice
    }
}
