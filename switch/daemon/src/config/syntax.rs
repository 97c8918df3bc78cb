//! TOML syntax errors: the parser's findings, in words that say how to write it.

use super::words::printable;

/// Beginnings of the parser's findings, and their meaning for the file's author. Findings that are not listed are reported as "a
/// line is ...".
const HINTS: [(&str, &str); 18] = [
    ("key with no value", "= and a value belong behind a key, as in KEY = VALUE"),
    ("missing value", "a value belongs behind the =, as in KEY = VALUE"),
    ("invalid basic string", "the text lacks its closing quote"),
    ("invalid literal string", "the text lacks its closing quote"),
    ("unclosed array table", "the heading lacks its closing ]], as in [[port]]"),
    ("unclosed table", "the heading lacks its closing ]"),
    ("unclosed array", "the list lacks its closing ]"),
    ("unclosed inline table", "the table lacks its closing }"),
    ("unexpected key or value", "each key stands in a line of its own, and a heading is written as [[port]]"),
    ("missing escaped value", "a backslash in text is written twice"),
    ("unexpected leading zero", "a number begins with no 0"),
    ("`_` may only", "_ stands between digits only"),
    ("invalid mantissa", "a number has digits before and behind its point"),
    ("invalid fraction", "a number has digits before and behind its point"),
    ("missing assignment", "keys in braces are written as { KEY = VALUE }"),
    ("missing comma", "a comma belongs between two"),
    ("unquoted keys cannot be empty", "a key belongs before the ="),
    ("cannot recurse further", "brackets are nested too deep"),
];

/// The sentence for the parser's finding about `text` at the bytes `from` to `to`.
pub(super) fn told(text: &str, from: usize, to: usize, message: &str) -> String {
    let start = text[..floor(text, from)].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or_default().trim();
    if message.starts_with("duplicate key") {
        let key = text.get(from..to).unwrap_or_default();
        return format!("{} stands twice in one table: leave one of the two out", printable(key));
    }
    let hint = match message.starts_with("string values must be quoted") {
        true => unquoted(text.get(from..).unwrap_or_default().lines().next().unwrap_or_default()),
        false => HINTS.iter().find(|(start, _)| message.starts_with(start)).map(|(_, hint)| (*hint).to_owned()),
    };
    let hint = hint.unwrap_or_else(|| "a line is KEY = VALUE, [[port]] or # a comment".into());
    format!("this line is not valid TOML: {hint}: {}", printable(line))
}

/// The mistake in a value that is neither a number nor in quotes.
fn unquoted(value: &str) -> Option<String> {
    let value = value.split('#').next().unwrap_or_default().trim();
    Some(match value {
        "" => "a value belongs behind the =, as in KEY = VALUE".into(),
        "yes" | "Yes" | "on" | "On" | "True" | "TRUE" => "write true".into(),
        "no" | "No" | "off" | "Off" | "False" | "FALSE" => "write false".into(),
        text => format!("text must stand in quotes, as \"{}\"", printable(text.trim_matches(['"', '\'']))),
    })
}

/// The last place at or before `at` where a character begins.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}
