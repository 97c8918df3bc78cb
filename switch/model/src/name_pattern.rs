//! DNS names in policy rules: one name, or all names below one.

use std::fmt;
use std::str::FromStr;

/// Longest name in text, without the root's dot (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;
/// Longest label (RFC 1035, section 2.3.4).
const LONGEST_LABEL: usize = 63;

/// A DNS name, as "api.example.org", or with "*." before it all names below it, at any depth. Names are in lower case, without the root's
/// dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePattern {
    name: String,
    is_below: bool,
}

impl NamePattern {
    /// The pattern that is `name` alone; `None` if that is no name of a host.
    pub fn exact(name: &str) -> Option<Self> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        is_name(&name).then_some(Self { name, is_below: false })
    }

    /// The name, or that above the names of the pattern.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the pattern is all names below its own, which is not among them.
    pub fn is_below(&self) -> bool {
        self.is_below
    }

    /// Whether all names of `other` are names of this pattern.
    pub fn covers(&self, other: &Self) -> bool {
        let rest = other.name.strip_suffix(&self.name);
        match (self.is_below, rest) {
            (false, _) | (_, None) => self == other,
            (true, Some("")) => other.is_below,
            (true, Some(rest)) => rest.ends_with('.'),
        }
    }
}

/// Whether `name` is a name of two labels or more in lower case, which no IPv4 address looks like.
fn is_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(is_good) && !label.starts_with('-') && !label.ends_with('-')
    };
    // The last label of a host's name is no number (RFC 1123, section 2.1).
    let is_number = name.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    name.len() <= LONGEST && name.contains('.') && !is_number && name.split('.').all(is_label)
}

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (is_below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        // All names of a domain of the first level are one pattern, too.
        let checked = Self::exact(name).map(|pattern| pattern.name);
        let top = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let checked = checked.or_else(|| (is_below && !top.contains('.') && is_name(&format!("a.{top}"))).then_some(top));
        checked.map(|name| Self { name, is_below }).ok_or_else(|| {
            format!("\"{text}\" is no DNS name, as \"api.example.org\" or \"*.example.org\"; other letters than ASCII are written as xn--")
        })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_below { "*." } else { "" }, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_wildcards_are_parsed() {
        for (text, told) in [
            ("api.example.org", Some("api.example.org")),
            ("API.Example.ORG.", Some("api.example.org")),
            ("*.example.org", Some("*.example.org")),
            ("*.org", Some("*.org")),
            ("_dmarc.example.org", Some("_dmarc.example.org")),
            ("xn--bcher-kva.example", Some("xn--bcher-kva.example")),
            ("localhost", None),
            ("10.0.0", None),
            ("10.0.0.300", None),
            ("*", None),
            ("*.", None),
            ("*.*.org", None),
            ("a*.example.org", None),
            ("a..org", None),
            (".org", None),
            ("-a.org", None),
            ("a-.org", None),
            ("b\u{fc}cher.example", None),
            ("a b.org", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<NamePattern>().ok().map(|name| name.to_string()).as_deref(), told, "{text}");
        }
        let long = |label: usize, count: usize| vec!["a".repeat(label); count].join(".");
        assert!(long(63, 3).parse::<NamePattern>().is_ok() && long(64, 2).parse::<NamePattern>().is_err());
        assert!(long(1, 127).parse::<NamePattern>().is_ok() && long(1, 128).parse::<NamePattern>().is_err());
    }

    #[test]
    fn a_wildcard_covers_the_names_below_it() {
        let covers = |one: &str, other: &str| one.parse::<NamePattern>().unwrap().covers(&other.parse().unwrap());
        assert!(covers("*.example.org", "a.example.org") && covers("*.example.org", "a.b.example.org"));
        assert!(covers("*.example.org", "*.example.org") && covers("*.example.org", "*.a.example.org"));
        assert!(!covers("*.example.org", "example.org") && !covers("*.example.org", "badexample.org"));
        assert!(!covers("a.example.org", "*.example.org") && covers("a.example.org", "A.example.org."));
        assert!(!covers("*.a.example.org", "*.example.org") && covers("*.org", "example.org"));
    }
}
