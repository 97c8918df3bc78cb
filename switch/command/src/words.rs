//! Quoting: text for shells, QEMU's options and XML. Plain text stays as it is.

/// One word of a shell's command.
pub fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A value within an argument of QEMU's: two commas for one.
pub fn qemu(text: &str) -> String {
    text.replace(',', ",,")
}

/// The text of an attribute, in quotes of either kind.
pub fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_read_is_what_was_written() {
        assert_eq!(shell("-m"), "-m");
        assert_eq!(shell("a 'b'"), r"'a '\''b'\'''");
        assert_eq!(shell(""), "''");
        assert_eq!(qemu("a,b"), "a,,b");
        assert_eq!(xml("<&>'\""), "&lt;&amp;&gt;&apos;&quot;");
    }
}
