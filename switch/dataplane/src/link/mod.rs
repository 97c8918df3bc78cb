//! Link emulation (netem): broadcast domains of exactly two ports on which frames are delayed, lost, duplicated or reordered.
//!
//! 1. [`Impairment`]: the configuration; [`Path`]: the same, checked, in the units of the data path.
//! 2. [`chance`]: random losses and delays.
//! 3. [`Line`]: one direction of an emulated link. It stands before the receiver's virtqueue. A frame in flight on it has left its
//!    sender's memory: a copy lies in the switch's memory, within a [`Budget`](crate::budget).
//!
//! A frame first waits for the emulated transmitter, which sends at the link's rate and has a bounded queue; then it is delayed.

pub mod chance;
mod line;

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

pub use chance::{Distribution, GilbertElliott};
pub use line::{Line, LineOutcome};

use crate::quantity::{self, parse_delay, parse_rate};
use crate::time::{Cycles, in_cycles};

/// Default length of the transmitter's queue, in frames.
const QUEUE: u32 = 1000;

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
    /// It is something else.
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

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    delay: Cycles,
    jitter: Cycles,
    distribution: Distribution,
    keep_order: bool,
    loss: f64,
    bursts: Option<GilbertElliott>,
    duplicate: f64,
    reorder: f64,
    /// Bytes a second; 0 for no limit.
    rate: u64,
    queue: u32,
}

impl Path {
    /// True if frames pass without any impairment.
    pub fn is_clear(&self) -> bool {
        let Self { delay, jitter, loss, bursts, duplicate, rate, .. } = self;
        (*delay, *jitter, *rate) == (0, 0, 0) && *loss == 0.0 && *duplicate == 0.0 && bursts.is_none()
    }

    /// True if the path only delays, by a constant: frames that leave at the same moment arrive at the same moment.
    fn only_delays(&self) -> bool {
        let Self { delay: _, jitter, distribution: _, keep_order: _, loss, bursts, duplicate, reorder, rate, queue: _ } = self;
        (*jitter, *rate) == (0, 0) && [*loss, *duplicate, *reorder] == [0.0; 3] && bursts.is_none()
    }
}

impl From<&Impairment> for Path {
    /// An invalid value in `impairment` does not impair.
    fn from(impairment: &Impairment) -> Self {
        let delay = |text: &Option<String>| text.as_deref().and_then(|text| parse_delay(text).ok()).map_or(0, in_cycles);
        Self {
            delay: delay(&impairment.delay),
            jitter: delay(&impairment.jitter),
            distribution: impairment.distribution,
            keep_order: impairment.keep_order,
            loss: impairment.loss,
            bursts: impairment.gilbert_elliott,
            duplicate: impairment.duplicate,
            reorder: impairment.reorder,
            rate: impairment.rate.as_deref().and_then(|rate| parse_rate(rate).ok()).map_or(0, |bits| bits.div_ceil(8)),
            queue: impairment.queue.unwrap_or(QUEUE),
        }
    }
}

impl From<&Option<Impairment>> for Path {
    /// No impairment is a clear path.
    fn from(impairment: &Option<Impairment>) -> Self {
        impairment.as_ref().map_or_else(|| Self::from(&Impairment::default()), Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn delays_have_units() {
        assert_eq!(parse_delay("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse_delay("2.5 us"), Ok(Duration::from_nanos(2500)));
        for wrong in ["10", "ms", "-1ms", "2min", "61s", ""] {
            assert!(parse_delay(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_is_clear_when_nothing_on_it_impairs() {
        let clear = Impairment { reorder: 0.5, keep_order: true, queue: Some(7), ..Impairment::default() };
        assert!(Path::from(&clear).is_clear());
        let bursts = Some(GilbertElliott { p: 0.1, r: 0.5, bad: 1.0, good: 0.0 });
        for impaired in [
            Impairment { delay: Some("1us".into()), ..Impairment::default() },
            Impairment { jitter: Some("1us".into()), ..Impairment::default() },
            Impairment { rate: Some("1Gbit".into()), ..Impairment::default() },
            Impairment { loss: 0.001, ..Impairment::default() },
            Impairment { duplicate: 0.001, ..Impairment::default() },
            Impairment { gilbert_elliott: bursts, ..Impairment::default() },
        ] {
            assert!(!Path::from(&impaired).is_clear(), "{impaired:?}");
        }
    }
}
