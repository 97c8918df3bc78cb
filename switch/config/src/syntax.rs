//! TOML syntax errors: the parser's findings, in words that say how to write it.

use super::words::printable;

/// Beginnings of the parser's findings, and their meaning for the file's author. Findings that are not listed are reported as "a
/// line is ...".
const HINTS: [(&str, &str); 18] = [
    ("key with no value", "= and a value must follow the key, as in KEY = VALUE"),
    ("missing value", "a value must follow the =, as in KEY = VALUE"),
    ("invalid basic string", "the closing quote is missing"),
    ("invalid literal string", "the closing quote is missing"),
    ("unclosed array table", "the closing ]] of the heading is missing, as in [[port]]"),
    ("unclosed table", "the closing ] of the heading is missing"),
    ("unclosed array", "the closing ] of the list is missing"),
    ("unclosed inline table", "the closing } of the table is missing"),
    ("unexpected key or value", "each key needs a line of its own, and a heading is written as [[port]]"),
    ("missing escaped value", "a backslash in text must be written twice"),
    ("unexpected leading zero", "a number must not start with 0"),
    ("`_` may only", "_ is allowed only between digits"),
    ("invalid mantissa", "a decimal point needs digits before and after it"),
    ("invalid fraction", "a decimal point needs digits before and after it"),
    ("missing assignment", "a table in braces is written as { KEY = VALUE }"),
    ("missing comma", "the comma between two entries is missing"),
    ("unquoted keys cannot be empty", "the key before the = is missing"),
    ("cannot recurse further", "brackets are nested too deeply"),
];

/// The sentence for the parser's finding about `text` at the bytes `from` to `to`.
pub(super) fn told(text: &str, from: usize, to: usize, message: &str) -> String {
    let start = text[..floor(text, from)].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or_default().trim();
    if message.starts_with("duplicate key") {
        let key = text.get(from..to).unwrap_or_default();
        return format!("duplicate key {} in one table: remove one of the two", printable(key));
    }
    let hint = match message.starts_with("string values must be quoted") {
        true => unquoted(text.get(from..).unwrap_or_default().lines().next().unwrap_or_default()),
        false => HINTS.iter().find(|(start, _)| message.starts_with(start)).map(|(_, hint)| (*hint).to_owned()),
    };
    let hint = hint.unwrap_or_else(|| "a line must be KEY = VALUE, [[port]] or # COMMENT".into());
    format!("this line is not valid TOML: {hint}: {}", printable(line))
}

/// The mistake in a value that is neither a number nor in quotes.
fn unquoted(value: &str) -> Option<String> {
    let value = value.split('#').next().unwrap_or_default().trim();
    Some(match value {
        "" => "a value must follow the =, as in KEY = VALUE".into(),
        "yes" | "Yes" | "on" | "On" | "True" | "TRUE" => "booleans are true and false: write true".into(),
        "no" | "No" | "off" | "Off" | "False" | "FALSE" => "booleans are true and false: write false".into(),
        text => format!("text must be in quotes, as \"{}\"", printable(text.trim_matches(['"', '\'']))),
    })
}

/// The last place at or before `at` where a character begins.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}
