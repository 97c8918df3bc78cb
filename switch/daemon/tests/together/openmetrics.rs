//! Metrics against the grammar of OpenMetrics 1.0, read by a parser of this test's own, and counters that never fall.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::metrics::{asked, guest, up};
use crate::command::{Running, write};
use crate::common::{TIMEOUT, frame, mac};
use crate::dice::Dice;

/// A sample: its name, its labels in order, its value.
type Sample = (String, Vec<(String, String)>, f64);

/// A family: its type, its help text, its samples.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: Option<String>,
    samples: Vec<Sample>,
}

/// The rest of a text that is read by the grammar.
struct Text<'t>(&'t str);

impl<'t> Text<'t> {
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.0.strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn take(&mut self, token: &str) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(format!("{token:?} is missing before {:?}", self.line())) }
    }

    fn line(&self) -> &'t str {
        self.0.lines().next().unwrap_or_default()
    }

    /// metricname, or label-name where there are no colons.
    fn name(&mut self, colons: bool) -> Result<&'t str, String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
        let end = self.0.find(|c| !is_part(c)).unwrap_or(self.0.len());
        let (name, rest) = self.0.split_at(end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("no name before {:?}", self.line()));
        }
        self.0 = rest;
        Ok(name)
    }

    /// escaped-string, up to but without `end`.
    fn escaped(&mut self, end: char) -> Result<String, String> {
        let (mut text, mut rest) = (String::new(), self.0.char_indices());
        while let Some((at, c)) = rest.next() {
            match c {
                _ if c == end => {
                    self.0 = &self.0[at..];
                    return Ok(text);
                }
                '\\' => match rest.next().map(|(_, escaped)| escaped) {
                    Some('n') => text.push('\n'),
                    Some(c @ ('"' | '\\')) => text.push(c),
                    other => return Err(format!("{other:?} is escaped in {:?}", self.line())),
                },
                '\n' | '"' => return Err(format!("{c:?} is not escaped in {:?}", self.line())),
                c => text.push(c),
            }
        }
        Err("the text ends within a string".into())
    }

    /// number: realnumber, or infinity, or not a number.
    fn number(&mut self) -> Result<f64, String> {
        let end = self.0.find(['\n', ' ']).unwrap_or(self.0.len());
        let (number, rest) = self.0.split_at(end);
        self.0 = rest;
        number.parse().map_err(|_| format!("{number:?} is no number"))
    }

    fn labels(&mut self) -> Result<Vec<(String, String)>, String> {
        let mut labels = Vec::new();
        if !self.takes("{") {
            return Ok(labels);
        }
        while !self.takes("}") {
            if !labels.is_empty() {
                self.take(",")?;
            }
            let name = self.name(false)?;
            self.take("=\"")?;
            let value = self.escaped('"')?;
            self.take("\"")?;
            if labels.iter().any(|(other, _)| other == name) {
                return Err(format!("label {name} stands twice"));
            }
            labels.push((name.into(), value));
        }
        Ok(labels)
    }
}

/// The families of an exposition, by name: `metricset HASH SP eof [LF]`.
fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut text = Text(text);
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut present = String::new();
    while !text.takes("# EOF") {
        if text.takes("# ") {
            let is_type = text.takes("TYPE ");
            if !is_type {
                text.take("HELP ")?;
            }
            let name = text.name(true)?.to_owned();
            text.take(" ")?;
            if name != present && families.contains_key(&name) {
                return Err(format!("family {name} is in two places"));
            }
            present.clone_from(&name);
            let family = families.entry(name.clone()).or_default();
            if !family.samples.is_empty() {
                return Err(format!("{name} is described after its samples"));
            }
            let described = if is_type {
                let kind = text.name(false)?.to_owned();
                std::mem::replace(&mut family.kind, kind)
            } else {
                family.help.replace(text.escaped('\n')?).unwrap_or_default()
            };
            if !described.is_empty() {
                return Err(format!("{name} is described twice"));
            }
        } else {
            let name = text.name(true)?.to_owned();
            let labels = text.labels()?;
            text.take(" ")?;
            let value = text.number()?;
            let family = families.get_mut(&present).ok_or("a sample before any family")?;
            if !name.starts_with(&present) {
                return Err(format!("{name} stands in family {present}"));
            }
            family.samples.push((name, labels, value));
        }
        text.take("\n")?;
    }
    text.takes("\n");
    if text.0.is_empty() { Ok(families) } else { Err(format!("{:?} follows the end", text.line())) }
}

/// Checks the rules for the type of a family.
fn check(name: &str, family: &Family) -> Result<(), String> {
    let suffixes: &[&str] = match family.kind.as_str() {
        "counter" => &["_total"],
        "gauge" => &[""],
        "info" => &["_info"],
        "histogram" => &["_bucket", "_sum", "_count"],
        other => return Err(format!("{name} is of type {other:?}")),
    };
    let mut series = BTreeSet::new();
    for (sample, labels, value) in &family.samples {
        let suffix = &sample[name.len()..];
        let fits = suffixes.contains(&suffix)
            && match family.kind.as_str() {
                "counter" | "histogram" => *value >= 0.0 && !value.is_nan(),
                "info" => *value == 1.0,
                _ => true,
            };
        let mut sorted = labels.clone();
        sorted.sort();
        if !fits || !series.insert((sample, sorted)) {
            return Err(format!("{sample} {labels:?} {value} does not fit a {}, or stands twice", family.kind));
        }
    }
    if family.kind == "histogram" { check_buckets(name, family) } else { Ok(()) }
}

type Labels = Vec<(String, String)>;

/// Buckets ascend in bound and count, and the last one has all values.
fn check_buckets(name: &str, family: &Family) -> Result<(), String> {
    let mut last: Option<(Labels, f64, f64)> = None;
    for (sample, labels, value) in &family.samples {
        let mut own = labels.clone();
        let bound = own.iter().position(|(name, _)| name == "le").map(|at| own.remove(at).1);
        match (&sample[name.len()..], bound, &last) {
            ("_bucket", Some(bound), last) => {
                let is_canonical = bound == "+Inf" || bound.contains('.') || bound.contains('e');
                let bound: f64 = bound.parse().map_err(|_| format!("the bound of {sample} {labels:?} is no number"))?;
                let ascends =
                    last.as_ref().is_none_or(|(labels, below, count)| *labels != own || (bound > *below && value >= count));
                if !ascends || !is_canonical {
                    return Err(format!("bucket {labels:?} {value} is out of order, or its bound has no point"));
                }
            }
            ("_count", None, Some((labels, bound, all))) if *labels == own && bound.is_infinite() && all == value => {}
            ("_sum", None, Some((labels, bound, _))) if *labels == own && bound.is_infinite() => {}
            (_, bound, last) => return Err(format!("{sample} {labels:?} with bound {bound:?} follows {last:?}")),
        }
        if let Some((_, bound)) = labels.iter().find(|(name, _)| name == "le") {
            last = Some((own, bound.parse().unwrap_or(f64::NAN), *value));
        }
    }
    Ok(())
}

/// The families of the metrics at the socket of `folder`, checked.
fn scrape(folder: &Path) -> BTreeMap<String, Family> {
    let stream = UnixStream::connect(folder.join("control")).unwrap();
    let (_, text) = asked(stream, "GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0");
    let families = parse(&text).unwrap_or_else(|fault| panic!("{fault}"));
    families.iter().for_each(|(name, family)| check(name, family).unwrap_or_else(|fault| panic!("{fault}")));
    families
}

#[test]
fn the_parser_refuses_what_breaks_the_grammar() {
    let good = "# TYPE a counter\n# HELP a A \\\"b\\\".\na_total{x=\"\\\\\\n\"} 1\n# EOF\n";
    assert_eq!(parse(good).unwrap()["a"].samples, [("a_total".into(), vec![("x".into(), "\\\n".into())], 1.0)]);
    let bad = [
        ("# EOF", "a 1\n"),
        ("a_total{x=\"\\\\\\n\"} 1", "a_total{x=\"\\q\"} 1"),
        ("a_total{x=\"\\\\\\n\"} 1", "a_total{x=\"1\",x=\"2\"} 1"),
        ("a_total{x=\"\\\\\\n\"} 1", "a_total{x=\"1\"} one"),
        ("# EOF\n", "# EOF\nmore"),
        ("# TYPE a", "# KIND a"),
        ("# HELP a A", "# HELP 1a A"),
        ("a_total{", "b_total{"),
    ];
    for (part, wrong) in bad {
        assert!(parse(&good.replacen(part, wrong, 1)).is_err(), "{wrong}");
    }
    let kinds = [
        "# TYPE a counter\na 1\n# EOF",
        "# TYPE a counter\na_total -1\n# EOF",
        "# TYPE a info\na_info 2\n# EOF",
        "# TYPE a gauge\na 1\na 2\n# EOF",
        "# TYPE a histogram\na_bucket{le=\"1.0\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n# EOF",
        "# TYPE a histogram\na_bucket{le=\"1.0\"} 1\na_sum 1\na_count 1\n# EOF",
        "# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 2\n# EOF",
        "# TYPE a unknowable\na 1\n# EOF",
    ];
    for text in kinds {
        assert!(check("a", &parse(text).unwrap()["a"]).is_err(), "{text}");
    }
}

#[test]
fn metrics_follow_the_grammar() {
    let folder = tempfile::tempdir().unwrap();
    let _running = up(folder.path(), &file(&[0], 1));
    let families = scrape(folder.path());
    assert!(families.len() > 40, "{}", families.len());
    assert!(families.values().all(|family| family.help.as_ref().is_some_and(|help| help.ends_with('.'))));
}

/// Samples that only grow, of other ports than those in `except`.
fn counters(families: &BTreeMap<String, Family>, except: &BTreeSet<String>) -> BTreeMap<(String, Vec<(String, String)>), f64> {
    let grows = |family: &&Family| family.kind == "counter" || family.kind == "histogram";
    let is_left = |labels: &[(String, String)]| !labels.iter().any(|(name, value)| name == "port" && except.contains(value));
    let samples = families.values().filter(grows).flat_map(|family| &family.samples);
    samples.filter(|(_, labels, _)| is_left(labels)).map(|(name, labels, value)| ((name.clone(), labels.clone()), *value)).collect()
}

fn file(extra: &[usize], weight: usize) -> String {
    let port = |name: &str, more: &str| format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\n{more}");
    let extra: String = extra.iter().map(|n| port(&format!("x{n}"), &format!("weight = {weight}\n"))).collect();
    format!("control = \"control\"\n{}{}{extra}", port("web", ""), port("db", ""))
}

fn ask(folder: &Path, request: &str, body: &str) -> String {
    let stream = UnixStream::connect(folder.join("control")).unwrap();
    let head = format!("{request} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    super::metrics::asked_with(stream, &head, body).0
}

#[test]
fn counters_never_fall_whatever_happens_to_other_ports() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running: Running = up(folder, &file(&[0, 1], 1));
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    let (mut dice, mut before) = (Dice::new(), BTreeMap::new());
    for round in 0..60 {
        for number in 0..1 + dice.below(20) {
            web.send(&frame(mac(0), mac(1), 60 + dice.below(1400), number as u64)).unwrap();
            db.receive(TIMEOUT).unwrap();
        }
        web.wait_sent(TIMEOUT).unwrap();
        let name = format!("x{}", dice.below(4));
        let done = match dice.below(5) {
            0 => {
                let ports: Vec<usize> = (0..4).filter(|_| dice.once_in(2)).collect();
                write(folder, "net.toml", &file(&ports, 1 + dice.below(9)));
                ask(folder, "POST /v1/reload", "{\"prune\":true}")
            }
            1 => ask(folder, &format!("POST /v1/ports/{name}/drain"), "{\"timeout-ms\":5000}"),
            2 => ask(folder, &format!("DELETE /v1/ports/{name}"), ""),
            3 => ask(folder, &format!("PATCH /v1/ports/{name}"), "{\"enabled\":true}"),
            _ => ask(folder, "PATCH /v1/ports/web", "{\"weight\":3}"),
        };
        let status = done.split(' ').nth(1).unwrap_or_default();
        assert!(["200", "201", "404"].contains(&status), "round {round}: {done}");
        // A port that is attached anew counts from 0.
        let after = counters(&scrape(folder), &(0..4).map(|n| format!("x{n}")).collect());
        for (series, value) in &before {
            assert!(
                after.get(series).is_some_and(|now| now >= value),
                "round {round}: {series:?} was {value}, is {:?}",
                after.get(series)
            );
        }
        before = after;
    }
    assert!(before.values().any(|&value| value > 0.0));
}
