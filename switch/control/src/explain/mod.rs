//! Outcomes of frames in words: forecasts for frames that are not sent (`memlane why`), and verdicts of recorded frames (`memlane replay`).
//!
//! The data path decides, and gives the [steps](crate::grounds::Step) of a decision; the sentences, and the keys of the configuration that decide, are in
//! `sentences`.

mod recorded;
mod sentences;

use memlane_observe::recording::Frame;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grounds::Grounds;
use crate::id::PortId;
use crate::network::Network;
use crate::port::Port;
use crate::replay::{NotKnown, Replay};
use crate::stats::DropReason;

pub use recorded::outcome;

/// The expected outcome of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Forecast {
    /// How that follows, a sentence a step.
    pub steps: Vec<String>,
    /// Ports that it would be delivered to.
    pub receivers: Vec<String>,
    /// Where it would be dropped.
    pub drops: Vec<ForecastDrop>,
    /// Keys of the configuration that deny it, and those that would allow it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub keys: Vec<DecidingKey>,
    /// The port for which the switch would answer it: an ARP request, or a neighbour solicitation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub answered_for: Option<String>,
}

/// A key of the configuration that decides about a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DecidingKey {
    /// The port that has it; none for a policy rule.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<String>,
    /// Its name.
    pub key: String,
    /// Whether the frame would pass with another value of it.
    pub would_allow: bool,
    /// Whether it allows the frame, as a policy rule may.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub allows: bool,
    /// The network's file, if the network has the key from there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// Its line there, from 1 on; if the file does not have it, the first line of the port's table.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<usize>,
}

/// A drop that is foreseen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForecastDrop {
    /// The port where it would be counted.
    pub port: String,
    /// The reason, as in the counters.
    pub reason: String,
}

impl Forecast {
    /// The outcome in one sentence.
    pub fn outcome(&self) -> String {
        if let Some(port) = &self.answered_for {
            return format!("would be answered by the switch for {port}");
        }
        let drops: Vec<String> = self.drops.iter().map(|drop| format!("{} (counted at {})", drop.reason, drop.port)).collect();
        match (&self.receivers[..], &drops[..]) {
            ([], []) => "would reach no port: the segment has no other".into(),
            ([], _) => format!("would be dropped: {}", drops.join(", ")),
            (receivers, []) => format!("would be delivered to {}", receivers.join(", ")),
            (receivers, _) => {
                format!("would be delivered to {}, and dropped elsewhere: {}", receivers.join(", "), drops.join(", "))
            }
        }
    }

    /// The outcome of `frame` if the guest of `port` transmitted it in second `now` of the network: see [`Network::why`].
    pub fn foresee(network: &Network, port: &Port, frame: &[u8], now: u32) -> Self {
        let name_of = |port| network.port(port).map_or_else(|| "a detached port".into(), |port| port.name.clone());
        Self::of(&network.why(port, frame, now), &name_of)
    }

    /// The outcome of a recorded frame, with its `copies` if it was flooded: see [`Replay::why`].
    ///
    /// # Errors
    /// The recording does not have all on which it depended.
    pub fn recorded(replay: &Replay, frame: &Frame<'_>, copies: &[Frame<'_>]) -> Result<Self, NotKnown> {
        Ok(Self::of(&replay.why(frame, copies)?, &|port| replay.name(port.0, frame.moment)))
    }

    /// Of these `grounds`; `name_of` names ports.
    fn of(grounds: &Grounds, name_of: &dyn Fn(PortId) -> String) -> Self {
        let drop_at = |&(port, reason): &(PortId, DropReason)| ForecastDrop { port: name_of(port), reason: reason.name().into() };
        let mut forecast = Self {
            receivers: grounds.receivers.iter().map(|port| name_of(*port)).collect(),
            drops: grounds.drops.iter().map(drop_at).collect(),
            answered_for: grounds.answered_for.map(name_of),
            ..Self::default()
        };
        sentences::tell(&mut forecast, grounds, name_of);
        forecast
    }

    /// Of one step without an outcome, in words.
    pub fn of_step(text: impl Into<String>) -> Self {
        Self { steps: vec![text.into()], ..Self::default() }
    }

    /// Notes that `key` of the port called `port` denies the frame.
    fn denied_by(&mut self, port: &str, key: &str) {
        self.decided_by(DecidingKey { port: Some(port.into()), key: key.into(), ..DecidingKey::default() });
    }

    /// Notes that another value of `key` of the port called `port` would allow the frame.
    fn allowed_by(&mut self, port: &str, key: &str) {
        self.decided_by(DecidingKey { port: Some(port.into()), key: key.into(), would_allow: true, ..DecidingKey::default() });
    }

    /// Notes that the policy rule in this `line` of the file denies the frame, or `allows` it; 0 if its line is not known.
    fn decided_by_rule(&mut self, line: usize, allows: bool) {
        let line = (line > 0).then_some(line);
        self.decided_by(DecidingKey { key: "policy".into(), allows, line, ..DecidingKey::default() });
    }

    fn decided_by(&mut self, key: DecidingKey) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }
}
