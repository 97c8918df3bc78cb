//! Metrics as text, in the two formats that scrapers take: OpenMetrics 1.0 and the Prometheus text format 0.0.4.
//!
//! Families are written one after the other, each with all its samples:
//!
//! ```
//! use memlane_observe::metrics::{Exposition, Format, Kind};
//!
//! let mut text = Exposition::new(Format::Prometheus);
//! let mut frames = text.family("memlane_port_receive_frames", Kind::Counter, "Frames that the guest received.");
//! frames.sample(&[("port", "web")], 42_u64);
//! assert!(text.finish().ends_with("memlane_port_receive_frames_total{port=\"web\"} 42\n"));
//! ```

use std::fmt::{self, Display, Write as _};

use crate::accept::Accept;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format 0.0.4.
    Prometheus,
}

impl Format {
    /// The format for a request with this `Accept` header (RFC 9110, section 12.5.1): the one with the greater weight; of two that are
    /// equal, OpenMetrics where the scraper names it. A scraper that accepts neither gets the Prometheus format.
    pub fn accepted(accept: &str) -> Self {
        let ranges = Accept::parse(accept);
        let open = ranges.media_type("application/openmetrics-text", Some("1.0.0"));
        let plain = ranges.media_type("text/plain", Some("0.0.4"));
        let wins = open.weight > plain.weight || open.weight == plain.weight && open.is_named;
        if open.weight > 0 && wins { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The `Content-Type` of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A type of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows; its samples end in `_total`.
    Counter,
    /// A value that also falls.
    Gauge,
    /// Counts of values by size.
    Histogram,
    /// Labels alone; its samples end in `_info` and are 1.
    Info,
}

impl Kind {
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }

    fn name(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Counter, _) => "counter",
            (Self::Histogram, _) => "histogram",
            (Self::Info, Format::OpenMetrics) => "info",
            (Self::Info, Format::Prometheus) | (Self::Gauge, _) => "gauge",
        }
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any other.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(value) => write!(f, "{value}"),
            Self::Real(f64::INFINITY) => f.write_str("+Inf"),
            Self::Real(f64::NEG_INFINITY) => f.write_str("-Inf"),
            Self::Real(value) => f.write_str(&canonical(value)),
        }
    }
}

/// A number as OpenMetrics wants it in bounds of buckets ("Canonical Numbers"): with a decimal point, or with a sign and at least two digits
/// in the exponent, as 1e-05.
fn canonical(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// A label and its value.
pub type Label<'a> = (&'a str, &'a str);

/// Labels of samples as they are written, escaped once: a network with many ports has the same ones in thousands of samples.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    /// These labels.
    ///
    /// # Panics
    /// A name has characters that names may not have.
    pub fn new(labels: &[Label<'_>]) -> Self {
        let mut text = String::new();
        for (name, value) in labels {
            assert!(is_name(name) && !name.contains(':'), "{name} is no name of a label");
            let comma = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{comma}{name}=\"{}\"", Escaped { text: value, quotes: true });
        }
        Self(text)
    }
}

/// Upper bounds of a histogram's buckets but the last, in ascending order, as the labels of the buckets.
#[derive(Clone, Debug)]
pub struct Bounds(Vec<Labels>);

impl Bounds {
    /// These bounds.
    pub fn new(bounds: &[f64]) -> Self {
        let all = bounds.iter().copied().chain([f64::INFINITY]);
        Self(all.map(|bound| Labels(format!("le=\"{}\"", Value::Real(bound)))).collect())
    }
}

/// Metrics text under construction.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
    names: Vec<&'static str>,
}

impl Exposition {
    /// An empty text.
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new(), names: Vec::new() }
    }

    /// Begins a family. `name` has no suffix of its [`Kind`].
    ///
    /// # Panics
    /// The family was written before, or a name has characters that names may not have.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Family<'_> {
        assert!(is_name(name) && !name.ends_with("_total") && !name.ends_with("_info"), "{name} is no name of a family");
        assert!(!self.names.contains(&name), "all samples of {name} stand together");
        self.names.push(name);
        let named = match self.format {
            Format::OpenMetrics => "",
            Format::Prometheus => kind.suffix(),
        };
        let kind_name = kind.name(self.format);
        let help = Escaped { text: help, quotes: self.format == Format::OpenMetrics };
        let _ = write!(self.text, "# HELP {name}{named} {help}\n# TYPE {name}{named} {kind_name}\n");
        Family { text: &mut self.text, name, kind }
    }

    /// The complete text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// A family under construction.
#[derive(Debug)]
pub struct Family<'t> {
    text: &'t mut String,
    name: &'static str,
    kind: Kind,
}

impl Family<'_> {
    /// Adds a sample.
    ///
    /// # Panics
    /// The family is a histogram, or a name of a label has characters that names may not have.
    pub fn sample(&mut self, labels: &[Label<'_>], value: impl Into<Value>) {
        self.sample_of(&[&Labels::new(labels)], value);
    }

    /// Adds a sample with all of these labels.
    ///
    /// # Panics
    /// The family is a histogram.
    pub fn sample_of(&mut self, labels: &[&Labels], value: impl Into<Value>) {
        assert!(self.kind != Kind::Histogram, "a histogram has more than one sample");
        self.line(self.kind.suffix(), labels, value.into());
    }

    /// Adds a sample of an [`Kind::Info`].
    pub fn info(&mut self, labels: &[Label<'_>]) {
        self.sample(labels, 1_u64);
    }

    /// Adds a histogram: the bounds of its buckets; the number of values in each bucket, including the one above the last bound; and the
    /// sum of all values.
    ///
    /// # Panics
    /// There is not one more count than bounds.
    pub fn histogram(&mut self, labels: &Labels, bounds: &Bounds, counts: &[u64], sum: impl Into<Value>) {
        assert!(self.kind == Kind::Histogram && counts.len() == bounds.0.len(), "a bucket a bound, and one above");
        let mut below = 0;
        for (bound, count) in bounds.0.iter().zip(counts) {
            below += count;
            self.line("_bucket", &[labels, bound], below.into());
        }
        self.line("_sum", &[labels], sum.into());
        self.line("_count", &[labels], below.into());
    }

    fn line(&mut self, suffix: &str, labels: &[&Labels], value: Value) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let mut opening = '{';
        for Labels(labels) in labels.iter().filter(|labels| !labels.0.is_empty()) {
            self.text.push(opening);
            self.text.push_str(labels);
            opening = ',';
        }
        self.text.push_str(if opening == ',' { "} " } else { " " });
        let _ = writeln!(self.text, "{value}");
    }
}

fn is_name(name: &str) -> bool {
    let may_stand = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    name.chars().all(may_stand) && name.chars().next().is_some_and(|first| !first.is_ascii_digit())
}

/// Escaped text for a label or a help line.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.text;
        while let Some(at) = rest.find(|c: char| c == '\\' || c == '\n' || (c == '"' && self.quotes)) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'\n' => r"\n",
                b'"' => "\\\"",
                _ => r"\\",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.family("memlane_build", Kind::Info, "The program.").info(&[("version", "0.1.0")]);
        let mut frames = text.family("memlane_port_receive_frames", Kind::Counter, "Frames \"received\".");
        frames.sample(&[("port", "we\"b\\\n")], u64::MAX);
        frames.sample(&[], 0_u64);
        text.family("memlane_load", Kind::Gauge, "Load.").sample(&[], 0.5);
        let mut sizes = text.family("memlane_frame_size_bytes", Kind::Histogram, "Sizes.");
        sizes.histogram(&Labels::new(&[("port", "a")]), &Bounds::new(&[64.0, 1518.0]), &[1, 2, 3], 9000_u64);
        text.finish()
    }

    #[test]
    fn the_prometheus_format_names_counters_with_their_suffix() {
        let expected = r#"# HELP memlane_build_info The program.
# TYPE memlane_build_info gauge
memlane_build_info{version="0.1.0"} 1
# HELP memlane_port_receive_frames_total Frames "received".
# TYPE memlane_port_receive_frames_total counter
memlane_port_receive_frames_total{port="we\"b\\\n"} 18446744073709551615
memlane_port_receive_frames_total 0
# HELP memlane_load Load.
# TYPE memlane_load gauge
memlane_load 0.5
# HELP memlane_frame_size_bytes Sizes.
# TYPE memlane_frame_size_bytes histogram
memlane_frame_size_bytes_bucket{port="a",le="64.0"} 1
memlane_frame_size_bytes_bucket{port="a",le="1518.0"} 3
memlane_frame_size_bytes_bucket{port="a",le="+Inf"} 6
memlane_frame_size_bytes_sum{port="a"} 9000
memlane_frame_size_bytes_count{port="a"} 6
"#;
        assert_eq!(example(Format::Prometheus), expected);
    }

    #[test]
    fn openmetrics_names_families_without_suffix_and_ends() {
        let text = example(Format::OpenMetrics);
        assert!(text.starts_with("# HELP memlane_build The program.\n# TYPE memlane_build info\nmemlane_build_info{"));
        assert!(
            text.contains(
                "# HELP memlane_port_receive_frames Frames \\\"received\\\".\n# TYPE memlane_port_receive_frames counter\n"
            )
        );
        assert!(text.contains("\nmemlane_port_receive_frames_total 0\n"));
        assert!(text.ends_with("\n# EOF\n"));
    }

    /// From the list of the specification, and beyond it.
    #[test]
    fn bounds_are_canonical_numbers() {
        let numbers =
            [(0.0, "0.0"), (1.0, "1.0"), (0.1, "0.1"), (1e-5, "1e-05"), (1e-10, "1e-10"), (9000.0, "9000.0"), (1e20, "1e+20")];
        for (number, text) in numbers {
            assert_eq!(Value::Real(number).to_string(), text);
        }
    }

    #[test]
    fn the_format_is_what_the_scraper_accepts() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let newer =
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for open in [
            prometheus,
            newer,
            "application/openmetrics-text",
            "text/plain, application/openmetrics-text",
            "application/*",
            "text/plain;q=0, */*;q=0.1",
        ] {
            assert_eq!(Format::accepted(open), Format::OpenMetrics, "{open}");
        }
        for plain in [
            "",
            "*/*",
            "text/plain",
            "text/plain;q=0.9, application/openmetrics-text;q=0.8",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0, */*",
            "application/openmetrics-text;version=0.0.1",
            "application/json",
        ] {
            assert_eq!(Format::accepted(plain), Format::Prometheus, "{plain}");
        }
    }

    #[test]
    #[should_panic(expected = "stand together")]
    fn a_family_is_written_once() {
        let mut text = Exposition::new(Format::Prometheus);
        let _ = text.family("memlane_load", Kind::Gauge, "Load.");
        let _ = text.family("memlane_load", Kind::Gauge, "Load.");
    }
}
