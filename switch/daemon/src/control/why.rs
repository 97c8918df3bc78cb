//! Forecasts: the request with a frame, and the response with its expected outcome.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::MacAddress;
use crate::network::Forecast;
use crate::port::Port;
use crate::table::Kind;

/// MAC address of the guest of `port`: the configured one, or else that of its last frame; `None` before its first frame.
pub fn address_of_guest(port: &Port) -> Option<MacAddress> {
    let records = port.segment.table().records().into_iter();
    let own = records.filter(|record| record.port == port.id && record.kind != Kind::Told);
    own.max_by_key(|record| (record.kind == Kind::Pinned, record.confirmed)).map(|record| record.learned_address.address)
}

/// A frame that a port's guest may transmit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct WhyFrame {
    /// MAC address of the destination; the frame is a small one from the address of the port's guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Or the whole Ethernet frame, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
}

/// Most bytes of a frame: what virtio-net's longest has.
const LONGEST_FRAME: usize = 65_550;

impl WhyFrame {
    /// The frame's bytes; one without a source is from `own`.
    ///
    /// # Errors
    /// The key that is mistaken, and how.
    pub fn bytes(&self, own: MacAddress) -> Result<Vec<u8>, (&'static str, String)> {
        match (&self.to, &self.frame) {
            (Some(to), None) => {
                let wrong = |_| ("to", format!("to is \"{to}\"; it must be a MAC address, as \"02:00:00:00:00:01\""));
                let to: MacAddress = to.parse().map_err(wrong)?;
                // A type for experiments (IEEE 802), and nothing in it.
                let mut frame = [to.bytes().as_slice(), &own.bytes(), &[0x88, 0xb5]].concat();
                frame.resize(60, 0);
                Ok(frame)
            }
            (None, Some(text)) => {
                let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b':').collect();
                let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
                let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
                let frame: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
                frame.filter(|frame| frame.len() <= LONGEST_FRAME).ok_or_else(|| {
                    ("frame", format!("frame must be an even number of hexadecimal digits, of at most {LONGEST_FRAME} bytes"))
                })
            }
            _ => Err(("to", "name the destination (to), or the whole frame (frame)".into())),
        }
    }
}

/// The expected outcome of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Why {
    /// In one sentence.
    pub outcome: String,
    /// How that follows.
    #[serde(flatten)]
    pub forecast: Forecast,
}
