//! The outcome of a frame that was not sent, as reported (`memlane why`).

use memlane_virtq::drop_reason::DropReason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

    /// Adds a step.
    pub fn step(&mut self, text: impl Into<String>) {
        self.steps.push(text.into());
    }

    /// Notes that `key` of the port called `port` denies the frame.
    pub fn denied_by(&mut self, port: &str, key: &str) {
        self.decided_by(DecidingKey {
            port: Some(port.into()),
            key: key.into(),
            would_allow: false,
            allows: false,
            file: None,
            line: None,
        });
    }

    /// Notes that another value of `key` of the port called `port` would allow the frame.
    pub fn allowed_by(&mut self, port: &str, key: &str) {
        self.decided_by(DecidingKey {
            port: Some(port.into()),
            key: key.into(),
            would_allow: true,
            allows: false,
            file: None,
            line: None,
        });
    }

    /// Notes that the policy rule in this `line` of the file denies the frame, or `allows` it; 0 if its line is not known.
    pub fn decided_by_rule(&mut self, line: usize, allows: bool) {
        let line = (line > 0).then_some(line);
        self.decided_by(DecidingKey { port: None, key: "policy".into(), would_allow: false, allows, file: None, line });
    }

    fn decided_by(&mut self, key: DecidingKey) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }

    /// Adds a drop at the port called `port`.
    pub fn drop_at(&mut self, port: &str, reason: DropReason) {
        self.drops.push(ForecastDrop { port: port.into(), reason: reason.name().into() });
    }
}
