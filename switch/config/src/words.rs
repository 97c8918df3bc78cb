//! Values and their types, as text for messages.

use serde_json::Value;

use super::document::{alternatives, is_of, words_of};
use super::written::Form;
use crate::quantity::Quantity;

/// Most characters of a string that are shown.
const MOST: usize = 40;

/// The values that a key accepts, as text behind "it must be".
pub(super) fn must_be(root: &Value, schema: &Value, key: &str) -> String {
    let simple = alternatives(root, schema);
    let words: Vec<String> = simple.iter().flat_map(|one| words_of(one)).map(|word| format!("\"{word}\"")).collect();
    let others = simple.iter().filter(|one| words_of(one).is_empty()).map(|one| kind(root, one, key));
    either(&others.chain(words).collect::<Vec<_>>())
}

/// "a", "a or b", "a, b or c".
pub fn either(all: &[String]) -> String {
    match all {
        [] => "left out".into(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn kind(root: &Value, schema: &Value, key: &str) -> String {
    let is = |name| is_of(schema, name);
    match (schema["format"].as_str(), schema["format"].as_str().and_then(Quantity::named)) {
        (Some("ipv4"), _) => "an IPv4 address in quotes, as \"10.0.0.1\"".into(),
        (Some("ip"), _) => "an IP address in quotes, as \"10.0.0.5\" or \"fd00::5\"".into(),
        (Some("prefix"), _) => "an IP address or a prefix in quotes, as \"10.0.0.100\" or \"10.1.0.0/16\"".into(),
        (Some("destination"), _) => {
            "an IP address, a prefix or a DNS name in quotes, as \"192.0.2.7\", \"10.0.0.0/8\" or \"*.example.org\"".into()
        }
        (Some("resolver"), _) => "\"host\", or the IP address of a DNS server in quotes, as \"192.0.2.53\"".into(),
        (Some("vlans"), _) => "a range of VLANs in quotes, as \"100-199\"".into(),
        (Some("ports"), _) => "a range of ports in quotes, as \"8000-8099\"".into(),
        (Some("mac"), _) => "a unicast MAC address in quotes, as \"00:00:5e:00:01:07\"".into(),
        (_, Some(quantity)) => quantity.must_be().into(),
        _ if is("boolean") => "true or false".into(),
        _ if is("integer") => format!("a whole number{}", range(schema)),
        _ if is("number") => format!("a number{}", range(schema)),
        _ if is("array") && alternatives(root, &schema["items"]).iter().any(|one| is_of(one, "object")) => {
            match alternatives(root, &schema["items"]).iter().map(|one| example(one)).find(|example| !example.is_empty()) {
                Some(example) => format!("a list of tables{example}"),
                None => format!("a list of tables, each with the heading [[{key}]]"),
            }
        }
        _ if is("array") => format!("a list with elements of the form: {}", must_be(root, &schema["items"], key)),
        _ if is("object") => format!("a table{}", example(schema)),
        _ => "text in quotes".into(),
    }
}

fn range(schema: &Value) -> String {
    match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (Some(least), Some(most)) => format!(" from {least} to {most}"),
        (Some(least), None) => format!(" of at least {least}"),
        _ => String::new(),
    }
}

fn example(schema: &Value) -> String {
    match schema["examples"].get(0) {
        Some(Value::Object(keys)) => format!(" such as {}", inline_table(keys.iter())),
        _ => String::new(),
    }
}

/// An inline table of TOML; JSON's strings, numbers and booleans are TOML's too.
pub fn inline_table<'v>(keys: impl Iterator<Item = (&'v String, &'v Value)>) -> String {
    let parts = keys.map(|(key, value)| match value.as_object() {
        Some(inner) => format!("{key} = {}", inline_table(inner.iter())),
        None => format!("{key} = {value}"),
    });
    format!("{{ {} }}", parts.collect::<Vec<_>>().join(", "))
}

/// A value as it is shown in a sentence.
pub(super) fn shown(form: &Form) -> String {
    match form {
        Form::Text(text) => format!("\"{}\"", printable(text)),
        Form::Whole(number) => number.to_string(),
        Form::Number(number) => number.to_string(),
        Form::Truth(truth) => truth.to_string(),
        Form::List(_) => "a list".into(),
        Form::Table(_) => "a table".into(),
        Form::Date => "a date".into(),
        Form::Nothing => "null".into(),
    }
}

/// `text` without characters that control a terminal, cut to the length of a line.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| if "\"'\\".contains(c) { c.to_string() } else { c.escape_debug().to_string() };
    let start: String = text.chars().take(MOST).map(escaped).collect();
    if text.chars().count() > MOST { format!("{start}...") } else { start }
}

/// The one of `known` that is most similar to `word`, if any is.
pub fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // Longer than any key: not compared.
    let word = Some(word).filter(|word| word.len() <= 64)?;
    let lower = word.to_lowercase().replace('_', "-");
    let near = known.map(|one| (strsim::damerau_levenshtein(&lower, &one.to_lowercase()), one));
    let most = |one: &str| if one.len().min(lower.len()) < 4 { 1 } else { 2 };
    near.filter(|(distance, one)| *distance <= most(one)).min_by_key(|(distance, _)| *distance).map(|(_, one)| one)
}

/// The table of the file that has the key `name`, which the table with `schema` does not have.
pub(super) fn where_else(root: &Value, schema: &Value, name: &str) -> Option<String> {
    let top = &root["properties"];
    if schema["properties"] != *top && top.get(name).is_some() {
        return Some("it belongs at the top of the file, before the first [[port]] or [[segment]]".into());
    }
    let has = |list: &str| {
        let entries = alternatives(root, &top[list]["items"]);
        entries.iter().any(|entry| entry["properties"].get(name).is_some() && entry["properties"] != schema["properties"])
    };
    let within: Vec<String> =
        ["port", "segment", "policy"].into_iter().filter(|list| has(list)).map(|list| format!("[[{list}]]")).collect();
    (!within.is_empty()).then(|| format!("it belongs in a {}", either(&within)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_recognised_and_others_are_not() {
        let known = ["workers", "poll", "mtu", "mac", "port"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(
            (near("worker"), near("pol"), near("MTU"), near("ports")),
            (Some("workers"), Some("poll"), Some("mtu"), Some("port"))
        );
        assert_eq!((near("colour"), near("x"), near(&"w".repeat(100_000))), (None, None, None));
    }

    #[test]
    fn what_is_shown_obeys_no_terminal_and_ends() {
        assert_eq!(printable("a\x1b[31m'b'\n"), "a\\u{1b}[31m'b'\\n");
        assert_eq!(printable(&"x".repeat(1000)).len(), 43);
    }
}
