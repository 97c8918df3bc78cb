//! Quantities as text: a number in the unit of its key, or text with a unit; the same in the configuration file, on the command
//! line and at the control socket.

use std::fmt;
use std::time::Duration;

pub use memlane_virtq::message::{counted, is, was};
use schemars::Schema;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::{Value, json};

/// A kind of quantity, by its `format` in the JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bits a second: "100Mbit".
    Rate,
    /// A delay: "10ms".
    Delay,
    /// A part of a whole: "1%".
    Share,
    /// A rate of bits, of packets, or both: "100Mbit,10kpps".
    Limit,
    /// A time, in milliseconds.
    Milliseconds,
    /// A time, in seconds.
    Seconds,
    /// A size, in MiB.
    Mebibytes,
    /// A size, in GiB.
    Gibibytes,
}

/// Value of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Read {
    /// A number.
    Number(f64),
    /// A whole number, in the unit of the key.
    Whole(u64),
    /// A value that is kept as text.
    Text,
}

impl Quantity {
    const ALL: [(&'static str, Self); 8] = [
        ("rate", Self::Rate),
        ("delay", Self::Delay),
        ("share", Self::Share),
        ("limit", Self::Limit),
        ("milliseconds", Self::Milliseconds),
        ("seconds", Self::Seconds),
        ("mebibytes", Self::Mebibytes),
        ("gibibytes", Self::Gibibytes),
    ];

    /// The kind with this format.
    pub fn named(format: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(name, _)| *name == format).map(|(_, quantity)| quantity)
    }

    /// Format of the quantity in words, to complete "it must be".
    pub fn must_be(self) -> &'static str {
        match self {
            Self::Rate => "a rate from 8Kbit to 1000Gbit, as \"100Mbit\" (bit, Kbit, Mbit or Gbit)",
            Self::Delay => "a time from 0s to 60s, as \"10ms\" (us, ms or s)",
            Self::Share => "a percentage in quotes, as \"10%\"",
            Self::Limit => "a limit, as \"100Mbit\", \"10kpps\", \"100Mbit,10kpps\" or \"none\"",
            Self::Milliseconds => "a time with its unit, as \"20ms\" or \"1s\"",
            Self::Seconds => "a time with its unit, as \"300s\" or \"5min\"",
            Self::Mebibytes => "a size with its unit, as \"64MiB\" or \"1GiB\"",
            Self::Gibibytes => "a size with its unit, as \"64GiB\" or \"1TiB\"",
        }
    }

    /// The value of `text`, if it is such a quantity.
    pub fn read(self, text: &str) -> Option<Read> {
        match self {
            Self::Rate => parse_rate(text).ok().map(|_| Read::Text),
            Self::Delay => parse_delay(text).ok().map(|_| Read::Text),
            Self::Limit => limit(text).map(|_| Read::Text),
            Self::Share => share(text).map(Read::Number),
            Self::Milliseconds => whole(text, &TIMES, 1e3).map(Read::Whole),
            Self::Seconds => whole(text, &TIMES, 1.0).map(Read::Whole),
            Self::Mebibytes => whole(text, &SIZES, 1.0 / MEBI).map(Read::Whole),
            Self::Gibibytes => whole(text, &SIZES, 1.0 / GIBI).map(Read::Whole),
        }
    }
}

/// The longest delay.
const LONGEST: Duration = Duration::from_secs(60);
const MEBI: f64 = 1_048_576.0;
const GIBI: f64 = 1_073_741_824.0;
/// Units of time, in seconds.
const TIMES: [(&str, f64); 4] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)];
/// Units of size, in bytes.
const SIZES: [(&str, f64); 6] =
    [("M", MEBI), ("MiB", MEBI), ("G", GIBI), ("GiB", GIBI), ("T", GIBI * 1024.0), ("TiB", GIBI * 1024.0)];

/// The number and the unit of `text`.
fn parts(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let unit = text.find(|c: char| c.is_ascii_alphabetic() || c == '%')?;
    let number = text[..unit].trim();
    // Signs, exponents and names of numbers are refused.
    let is_plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    Some((number.parse().ok().filter(|_| is_plain)?, &text[unit..]))
}

/// The share of a text as "1%".
fn share(text: &str) -> Option<f64> {
    parts(text).filter(|(_, unit)| *unit == "%").map(|(number, _)| number / 100.0)
}

/// `text` in a unit of which there are `per` in the base of `units`, if that is a whole number of them.
fn whole(text: &str, units: &[(&str, f64)], per: f64) -> Option<u64> {
    let (number, unit) = parts(text)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let value = number * factor * per;
    let is_whole = (value - value.round()).abs() < 1e-6 && value < 1e15;
    is_whole.then_some(value.round() as u64)
}

/// The duration in `text`: a number and `us`, `ms` or `s`.
///
/// # Errors
/// The text is something else, or longer than a minute.
pub fn parse_delay(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a delay: write a number and us, ms or s, as 10ms; up to {} s", LONGEST.as_secs());
    let (number, unit) = text.trim().split_at(text.trim().find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?);
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(wrong()),
    };
    let seconds = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
    if (0.0..=LONGEST.as_secs_f64()).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// The value of the limit `text`: a rate as [`parse_rate`] reads it, packets a second, or both; neither for "none".
pub fn limit(text: &str) -> Option<(Option<&str>, Option<u64>)> {
    let (mut rate, mut packets) = (None, None);
    for part in text.split(',').map(str::trim).filter(|_| text != "none") {
        match part.strip_suffix("pps") {
            Some(number) if packets.is_none() => packets = Some(thousands(number)?),
            None if rate.is_none() && parse_rate(part).is_ok() => rate = Some(part),
            _ => return None,
        }
    }
    Some((rate, packets))
}

/// A whole number above 0, which may end in k for a thousand.
fn thousands(text: &str) -> Option<u64> {
    let (number, factor) = text.strip_suffix('k').map_or((text, 1), |thousands| (thousands, 1000));
    number.trim().parse::<u64>().ok()?.checked_mul(factor).filter(|&number| number > 0)
}

/// Bits a second in `text`: a number and `bit`, `Kbit`, `Mbit` or `Gbit`.
///
/// # Errors
/// The text is something else, below 8 Kbit or above 1000 Gbit.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a rate: write a number and bit, Kbit, Mbit or Gbit, as 100Mbit; 8Kbit to 1000Gbit");
    let number = text.trim().strip_suffix("bit").ok_or_else(wrong)?;
    let (number, factor) = match number.char_indices().last() {
        Some((at, 'K' | 'k')) => (&number[..at], 1e3),
        Some((at, 'M' | 'm')) => (&number[..at], 1e6),
        Some((at, 'G' | 'g')) => (&number[..at], 1e9),
        _ => (number, 1.0),
    };
    let bits = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
    if (8e3..=1e12).contains(&bits) { Ok(bits as u64) } else { Err(wrong()) }
}

/// Reads a number, or a text with a unit.
struct Reader(Quantity);

impl Visitor<'_> for Reader {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a number or {}", self.0.must_be())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        match self.0.read(text) {
            Some(Read::Number(number)) => Ok(number),
            Some(Read::Whole(number)) => Ok(number as f64),
            _ => Err(E::custom(format_args!("\"{text}\" must be {}", self.0.must_be()))),
        }
    }
}

/// Reads a share: 0.01 or "1%".
///
/// # Errors
/// The value is something else.
pub fn read_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(Reader(Quantity::Share))
}

/// Reads a whole number of milliseconds: 100 or "100ms".
///
/// # Errors
/// The value is something else.
pub fn read_milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(Reader(Quantity::Milliseconds)).map(|number| number as u64)
}

/// Like [`read_milliseconds`], for a key that may be left out.
///
/// # Errors
/// The value is something else.
pub fn read_some_milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    read_milliseconds(deserializer).map(Some)
}

/// Reads a whole number of seconds: 300 or "5min".
///
/// # Errors
/// The value is something else.
pub fn read_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    deserializer.deserialize_any(Reader(Quantity::Seconds)).map(|number| number as u32)
}

/// Reads a whole number of MiB: 64 or "64MiB".
///
/// # Errors
/// The value is something else.
pub fn read_mebibytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(Reader(Quantity::Mebibytes)).map(|number| number as u64)
}

/// Reads a whole number of GiB, for a key that may be left out: 64 or "64GiB".
///
/// # Errors
/// The value is something else.
pub fn read_some_gibibytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Reader(Quantity::Gibibytes)).map(|number| Some(number as u64))
}

/// Adds "none" to a schema, as an alternative value.
pub fn or_none(schema: &mut Schema) {
    beside(schema, json!({ "const": "none", "type": "string" }));
}

/// Adds text of this format to a schema, as an alternative to its values.
pub fn or_text(format: &'static str) -> impl Fn(&mut Schema) {
    move |schema| beside(schema, json!({ "type": "string", "format": format }))
}

fn beside(schema: &mut Schema, text: Value) {
    let whole = schema.ensure_object();
    let kept = ["description", "default"].map(|key| whole.remove_entry(key));
    let own = std::mem::take(whole);
    whole.extend(kept.into_iter().flatten());
    whole.insert("anyOf".into(), json!([own, text]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_not_in_the_plural() {
        assert_eq!([0_usize, 1, 2].map(|n| counted(n, "port")), ["0 ports", "1 port", "2 ports"]);
        assert_eq!([0, 1, 2].map(was), ["were", "was", "were"]);
    }

    #[test]
    fn delays_have_units() {
        assert_eq!(parse_delay("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse_delay("2.5 us"), Ok(Duration::from_nanos(2500)));
        for wrong in ["10", "ms", "-1ms", "2min", "61s", ""] {
            assert!(parse_delay(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantities_have_their_units() {
        for (quantity, text, wanted) in [
            (Quantity::Share, "1%", Some(Read::Number(0.01))),
            (Quantity::Share, "0.1 %", Some(Read::Number(0.001))),
            (Quantity::Milliseconds, "1.5s", Some(Read::Whole(1500))),
            (Quantity::Milliseconds, "0.5ms", None),
            (Quantity::Seconds, "5min", Some(Read::Whole(300))),
            (Quantity::Seconds, "1500ms", None),
            (Quantity::Mebibytes, "64M", Some(Read::Whole(64))),
            (Quantity::Mebibytes, "1GiB", Some(Read::Whole(1024))),
            (Quantity::Gibibytes, "1T", Some(Read::Whole(1024))),
            (Quantity::Gibibytes, "512MiB", None),
            (Quantity::Gibibytes, "64GB", None),
        ] {
            assert_eq!(quantity.read(text), wanted, "{text}");
        }
        for (_, quantity) in Quantity::ALL {
            for text in ["", "1", "%", "s", "-1%", "-1ms", "1e3s", "NaN%", "infs", "1 2s", "99999999999999999999T", "1h", "ms1"] {
                assert_eq!(quantity.read(text), None, "{quantity:?} {text}");
            }
        }
    }
}
