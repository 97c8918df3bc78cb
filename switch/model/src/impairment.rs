//! Impairment of an emulated link (netem), as configured.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::quantity;

/// One direction of an emulated link, as configured; omitted keys do not impair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[schemars(extend("examples" = [{ "delay": "10ms", "loss": "1%" }]))]
pub struct Impairment {
    /// Delay, as "10ms" or "250us".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "delay"))]
    pub delay: Option<String>,
    /// Jitter: the half width of a uniform distribution, the standard deviation of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "delay"))]
    pub jitter: Option<String>,
    /// Distribution of the jitter.
    pub distribution: Distribution,
    /// Frames keep their order despite the jitter; otherwise each has its own delay, and may overtake others.
    pub keep_order: bool,
    /// Share of frames that are lost, each independently (0.01 or "1%"). Here and below, frames are those of a wire: each segment
    /// of a GSO frame counts as one.
    #[serde(deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub loss: f64,
    /// Losses in bursts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gilbert_elliott: Option<GilbertElliott>,
    /// Share of frames that are duplicated (0.01 or "1%").
    #[serde(deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub duplicate: f64,
    /// Share of frames that are not delayed, and so overtake others (0.01 or "1%").
    #[serde(deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub reorder: f64,
    /// Bits a second of whole Ethernet frames, as "100Mbit".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "rate"))]
    pub rate: Option<String>,
    /// Frames of the wire that the transmitter's queue holds, by default 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub queue: Option<u32>,
}

impl Impairment {
    /// Reads a table, or "none".
    ///
    /// # Errors
    /// The value is something else.
    pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Option<Impairment>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a table or \"none\"")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(None)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text == "none" { Ok(None) } else { Err(E::custom("a link is a table or \"none\"")) }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Impairment::deserialize(MapAccessDeserializer::new(map)).map(Some)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl fmt::Display for Impairment {
    /// The values as JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Distribution of a delay around its mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Uniform, up to the jitter to either side.
    #[default]
    Uniform,
    /// As a normal distribution, with the jitter as standard deviation.
    Normal,
    /// With a long tail to later (Pareto, shape 3), with the jitter as standard deviation.
    Pareto,
}

/// Losses in bursts: a Markov chain of a good and a bad state, each with its own loss (Gilbert 1960, Elliott 1963). All four are
/// shares, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{ "p": "1%", "r": "50%" }]))]
pub struct GilbertElliott {
    /// Transition from good to bad, per frame.
    #[serde(deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub p: f64,
    /// Transition from bad to good, per frame.
    #[serde(deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub r: f64,
    /// Loss in the bad state, by default 1.
    #[serde(default = "one", deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub bad: f64,
    /// Loss in the good state, by default 0.
    #[serde(default, deserialize_with = "quantity::read_share")]
    #[schemars(range(min = 0, max = 1), transform = quantity::or_text("share"))]
    pub good: f64,
}

fn one() -> f64 {
    1.0
}
