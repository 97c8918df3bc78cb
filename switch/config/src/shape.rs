//! Each value by itself: unknown keys, wrong types, numbers out of range, words that are not known, keys that are missing.
//!
//! One walk for every key of the file, of the command line and of requests to the control socket. The type of a key is in the
//! JSON Schema that is generated from the Rust types; error messages are generated from the schema too, so that every key has
//! one.
//!
//! 1. [`Written`]: a value with its place in the text.
//! 2. [`mistakes`]: the mistakes in it.
//! 3. [`words`](super::words): the correct form, as text.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::document::{alternatives, is_of, words_of};
use super::renamed;
use super::resolver::Resolver;
use super::words::{must_be, nearest, printable, shown, where_else};
use super::written::{Form, Written};
use crate::frame::MacAddress;
use crate::policy::rules::Prefix;
use crate::quantity::{Quantity, Read};
use memlane_model::policy::{Destination, PortRange};
use memlane_model::vlans::VlanRange;

/// Most mistakes that are reported for one file.
pub(super) const MOST_MISTAKES: usize = 1000;

/// A mistake in a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    /// Position in the text.
    pub at: usize,
    /// The key, relative to the table that was checked.
    pub key: String,
    /// The mistake, and the correct form.
    pub text: String,
}

/// The mistakes in `key`, at position `at`, of a table with the schema `schema`, a part of the schema `root`; its value is
/// `written`.
pub(super) fn mistakes(root: &Value, schema: &Value, key: &str, at: usize, written: &Written) -> Vec<Finding> {
    let mut walk = Walk { root, found: Vec::new() };
    walk.key(schema, "", (key, at, written));
    walk.found
}

/// The mistakes in `written`, a whole request, by its schema `root`.
pub(super) fn mistakes_of_all(root: &Value, written: &Written) -> Vec<Finding> {
    let mut walk = Walk { root, found: Vec::new() };
    walk.value(root, "", written, written.at);
    walk.found
}

struct Walk<'s> {
    root: &'s Value,
    found: Vec<Finding>,
}

impl Walk<'_> {
    fn note(&mut self, at: usize, key: &str, text: String) {
        self.found.push(Finding { at, key: key.into(), text });
    }

    /// `at` is the position of the key.
    fn value(&mut self, schema: &Value, key: &str, written: &Written, at: usize) {
        let simple = alternatives(self.root, schema);
        let of_type = |name| simple.iter().find(|one| is_of(one, name));
        match (&written.form, of_type("object"), of_type("array")) {
            (Form::Nothing, ..) => {}
            (Form::Table(keys), Some(table), _) => self.table(table, key, keys, at),
            (Form::List(list), _, Some(array)) => {
                for (index, one) in list.iter().enumerate() {
                    self.value(&array["items"], &format!("{key}[{index}]"), one, one.at);
                }
            }
            (form, ..) if simple.iter().any(|one| fits(one, form, &simple)) => {}
            (form, ..) => self.note(at, key, wrong(self.root, schema, key, form)),
        }
    }

    fn table(&mut self, schema: &Value, key: &str, keys: &[(Cow<str>, usize, Written)], at: usize) {
        keys.iter().for_each(|(name, at, value)| self.key(schema, key, (name, *at, value)));
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if keys.iter().all(|(known, ..)| known != name) {
                let wanted = must_be(self.root, &schema["properties"][name], name);
                let whole = if key.is_empty() { "the request body" } else { key };
                self.note(at, key, format!("{whole} lacks the key {name}; it must be {wanted}"));
            }
        }
    }

    /// A key of the table `table`, its place and its value.
    fn key(&mut self, schema: &Value, table: &str, (name, at, value): (&str, usize, &Written)) {
        let key = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
        match schema["properties"].get(name) {
            Some(of_key) => self.value(of_key, &key, value, at),
            None if schema["additionalProperties"] == false && self.found.len() < MOST_MISTAKES => {
                let text = unknown(self.root, schema, table, name);
                self.note(at, &key, text);
            }
            // A table with any keys, as labels.
            None if schema["additionalProperties"].is_object() => self.value(&schema["additionalProperties"], &key, value, at),
            None => {}
        }
    }
}

/// Whether `form` fits `schema`; `beside` are the other alternatives, which bound the number that a string stands for.
fn fits(schema: &Value, form: &Form, beside: &[&Value]) -> bool {
    match form {
        Form::Truth(_) => is_of(schema, "boolean"),
        Form::Whole(number) => (is_of(schema, "integer") || is_of(schema, "number")) && is_within(schema, *number as f64),
        Form::Number(number) => is_of(schema, "number") && is_within(schema, *number),
        Form::Text(text) if is_of(schema, "string") => {
            let words = words_of(schema);
            let format = schema["format"].as_str().unwrap_or_default();
            let stands_for = |form: Form| beside.iter().any(|one| fits(one, &form, &[]));
            let is_quantity = |quantity: Quantity| match quantity.read(text) {
                Some(Read::Number(number)) => stands_for(Form::Number(number)),
                Some(Read::Whole(number)) => stands_for(Form::Whole(number.into())),
                Some(Read::Text) => true,
                None => false,
            };
            (words.is_empty() || words.contains(&&**text))
                && match format {
                    "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
                    "ip" => text.parse::<IpAddr>().is_ok(),
                    "prefix" => text.parse::<Prefix>().is_ok(),
                    "destination" => text.parse::<Destination>().is_ok(),
                    "resolver" => text.parse::<Resolver>().is_ok(),
                    "mac" => text.parse::<MacAddress>().is_ok_and(MacAddress::is_unicast),
                    "vlans" => text.parse::<VlanRange>().is_ok(),
                    "ports" => text.parse::<PortRange>().is_ok(),
                    _ => true,
                }
                && Quantity::named(format).is_none_or(is_quantity)
        }
        _ => false,
    }
}

fn is_within(schema: &Value, number: f64) -> bool {
    let beyond =
        |bound: &str, is_beyond: fn(f64, f64) -> bool| schema[bound].as_f64().is_some_and(|bound| is_beyond(number, bound));
    // Larger numbers fit no key, and no type of ours.
    number.abs() < 1e18 && !beyond("minimum", |number, least| number < least) && !beyond("maximum", |number, most| number > most)
}

/// The sentence for a value that does not fit its key.
fn wrong(root: &Value, schema: &Value, key: &str, form: &Form) -> String {
    let simple = alternatives(root, schema);
    if key.is_empty() {
        return format!("the request body is {}; it must be a JSON object", shown(form));
    }
    let text = format!("{key} is {}; it must be {}", shown(form), must_be(root, schema, key));
    let Form::Text(written) = form else { return text };
    let words: Vec<&str> = simple.iter().flat_map(|one| words_of(one)).collect();
    if let Some(word) = nearest(written, words.into_iter()) {
        return format!("{text}; did you mean \"{word}\"?");
    }
    let bare = written.parse().map(Form::Whole).or_else(|_| written.parse().map(Form::Truth));
    match bare.is_ok_and(|bare| simple.iter().any(|one| fits(one, &bare, &simple))) {
        true => format!("{text}, without quotes"),
        false => text,
    }
}

/// The sentence for an unknown key of the table `table`, of this schema.
fn unknown(root: &Value, schema: &Value, table: &str, name: &str) -> String {
    if let Some(told) = renamed::told(name) {
        return told;
    }
    let known: Vec<&str> = schema["properties"].as_object().into_iter().flatten().map(|(known, _)| known.as_str()).collect();
    let name_shown = printable(name);
    let what = if table.is_empty() { format!("unknown key {name_shown}") } else { format!("unknown key {table}.{name_shown}") };
    if let Some(elsewhere) = where_else(root, schema, name) {
        return format!("{what} here: {elsewhere}");
    }
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("{what}; did you mean {near}?"),
        None => format!("{what}; the valid keys here are {}", known.join(", ")),
    }
}
