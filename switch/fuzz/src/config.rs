//! Target `config`: a network's file. Any text gives either a configuration or mistakes with lines that exist; a good one survives being
//! written out and read again.

use memlane::config::{Config, Mistakes, check::check};

/// Reads `data` as a network's file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match check(text) {
        Ok(document) => {
            let written = toml::to_string(&document).expect("a checked document can be written");
            let again = check(&written).unwrap_or_else(|mistakes| panic!("{mistakes}\n{written}"));
            assert_eq!(json(&document), json(&again));
            assert_eq!(Config::parse(text, "net").unwrap(), Config::parse(&written, "net").unwrap());
        }
        Err(mistakes) => check_mistakes(text, &mistakes),
    }
}

/// The document without the lines of its policy rules.
fn json(document: &memlane::config::Document) -> serde_json::Value {
    let mut document = document.clone();
    document.policy.iter_mut().for_each(|rule| rule.line = 0);
    serde_json::to_value(document).expect("a document is plain data")
}

fn check_mistakes(text: &str, mistakes: &Mistakes) {
    let lines = 1 + text.bytes().filter(|&byte| byte == b'\n').count();
    assert!(!mistakes.list.is_empty());
    assert!(mistakes.list.is_sorted_by_key(|mistake| mistake.line));
    assert!(mistakes.list.iter().all(|mistake| mistake.line <= lines && !mistake.text.is_empty()));
    assert!(!mistakes.to_string().is_empty());
}
