//! Renamed keys and options: a file, a command or a request with an old name gets an error that states the new one.

/// Old name, new name.
const RENAMED: [(&str, &str); 5] = [
    ("intake", "transmit"),
    ("delivery", "receive"),
    ("delivery-offloads", "receive-offloads"),
    ("no-delivery-offloads", "no-receive-offloads"),
    ("patience-ms", "stall-timeout-ms"),
];

/// The new name of the key `old`, if it was renamed.
pub fn renamed(old: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(key, _)| *key == old).map(|(_, new)| *new)
}

/// The sentence for the key `old`, if it was renamed.
pub(super) fn told(old: &str) -> Option<String> {
    renamed(old).map(|new| format!("the key {old} was renamed to {new}"))
}
