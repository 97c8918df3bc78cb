//! Numbers in the sentences of messages, in plain English.

/// `number` of a thing, as text for messages: "1 port", "2 ports", "3 tries", "4 addresses".
pub fn counted(number: impl TryInto<u64>, one: &str) -> String {
    let number: u64 = number.try_into().unwrap_or(u64::MAX);
    if number == 1 {
        return format!("1 {one}");
    }
    let stem = one.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match stem {
        Some(stem) => format!("{number} {stem}ies"),
        None if one.ends_with('s') => format!("{number} {one}es"),
        None => format!("{number} {one}s"),
    }
}

/// The verb of a sentence about `number` things: "is" or "are".
pub fn is(number: impl TryInto<u64>) -> &'static str {
    if matches!(number.try_into(), Ok(1)) { "is" } else { "are" }
}

/// The verb of a sentence about `number` things in the past: "was" or "were".
pub fn was(number: impl TryInto<u64>) -> &'static str {
    if matches!(number.try_into(), Ok(1)) { "was" } else { "were" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular_and_others_are_plural() {
        assert_eq!(counted(0_u8, "port"), "0 ports");
        assert_eq!((counted(1_usize, "port"), is(1_u16), was(1_u64)), ("1 port".into(), "is", "was"));
        assert_eq!((counted(2_i32, "port"), is(2_u16), was(2_u64)), ("2 ports".into(), "are", "were"));
        assert_eq!(
            [counted(2_u8, "try"), counted(2_u8, "key"), counted(2_u8, "MAC address")],
            ["2 tries", "2 keys", "2 MAC addresses"]
        );
        assert_eq!([counted(1_u8, "try"), counted(1_u8, "MAC address")], ["1 try", "1 MAC address"]);
    }
}
