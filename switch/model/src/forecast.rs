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
    /// The port for which the switch would answer it: an ARP request, or a neighbour solicitation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub answered_for: Option<String>,
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

    /// Adds a drop at the port called `port`.
    pub fn drop_at(&mut self, port: &str, reason: DropReason) {
        self.drops.push(ForecastDrop { port: port.into(), reason: reason.name().into() });
    }
}
