//! VLANs of a port, as configured.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Valid VLAN identifiers (IEEE 802.1Q, section 9.6).
pub const VLANS: RangeInclusive<u16> = 1..=4094;

/// VLANs from a first to a last one: in the file a number, or text as "100-199".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRange {
    first: u16,
    last: u16,
}

impl VlanRange {
    /// VLANs of the entry.
    pub fn vlans(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    fn new(first: u16, last: u16) -> Option<Self> {
        (VLANS.contains(&first) && VLANS.contains(&last) && first <= last).then_some(Self { first, last })
    }
}

impl FromStr for VlanRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let range = number(first).zip(number(last)).and_then(|(first, last)| Self::new(first, last));
        range.ok_or_else(|| format!("\"{text}\" is not a range of VLANs from 1 to 4094, as \"100-199\""))
    }
}

impl fmt::Display for VlanRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl Serialize for VlanRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last { serializer.serialize_u16(self.first) } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for VlanRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = VlanRange;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a VLAN from 1 to 4094, or a range as \"100-199\"")
            }

            fn visit_u64<E: Error>(self, vlan: u64) -> Result<VlanRange, E> {
                let vlan = u16::try_from(vlan).ok().and_then(|vlan| VlanRange::new(vlan, vlan));
                vlan.ok_or_else(|| E::custom("a VLAN is a number from 1 to 4094"))
            }

            fn visit_i64<E: Error>(self, vlan: i64) -> Result<VlanRange, E> {
                self.visit_u64(u64::try_from(vlan).unwrap_or(0))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<VlanRange, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for VlanRange {
    fn schema_name() -> Cow<'static, str> {
        "VlanRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A VLAN, or VLANs from a first to a last one, as \"100-199\".",
            "anyOf": [
                { "type": "integer", "minimum": *VLANS.start(), "maximum": *VLANS.end() },
                { "type": "string", "format": "vlans" }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_people_write_them() {
        for text in ["10", "\"100-199\"", "1", "4094"] {
            let range: VlanRange = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&range).unwrap(), text);
        }
        for wrong in ["0", "4095", "-1", "\"\"", "\"7-\"", "\"9-8\"", "\"0-5\"", "\"+1-5\"", "\"1-2-3\"", "true", "70000"] {
            assert!(serde_json::from_str::<VlanRange>(wrong).is_err(), "{wrong}");
        }
        assert_eq!("5-7".parse::<VlanRange>().unwrap().vlans().collect::<Vec<_>>(), [5, 6, 7]);
    }
}
